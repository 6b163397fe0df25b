"""Prometheus metrics of the coordinator, in a registry of their own, written as text on demand."""

from collections.abc import Callable, Iterable, Mapping
from typing import final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


@final
class Metrics:
    """Counts requests; asks for the core's numbers when it is scraped."""

    __slots__ = ("_answers", "_registry", "_seconds")

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Gauges(gauges))
        self._answers = Counter(
            "kernpool_http_requests", "HTTP requests answered.", ("route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "kernpool_http_request_seconds",
            "From the request's head to the end of its answer; long answers are left out.",
            ("route",),
            buckets=_BUCKETS,
            registry=self._registry,
        )

    def answered(self, route: str, status: int, seconds: float | None) -> None:
        """Count one answer; `seconds` is None for long ones, whose length says nothing about the coordinator."""
        self._answers.labels(route, str(status)).inc()
        if seconds is not None:
            self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self._registry)


@final
class _Gauges(Collector):
    """Numbers that others keep, read at the scrape."""

    def __init__(self, gauges: Callable[[], Mapping[str, float]]) -> None:
        self._gauges = gauges

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"kernpool_{name}", name.replace("_", " ").capitalize() + ".", value=value)
