"""Prometheus metrics of the node, read from the objects that hold the truth at the moment of a scrape."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import final

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

READY_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 30.0)


@final
@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one metric."""

    name: str
    """With its unit; `kp_agent_` goes before it."""
    help: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    counter: bool = False


@final
class _Reader(Collector):
    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for sample in self._read():
            kind = CounterMetricFamily if sample.counter else GaugeMetricFamily
            names = [name for name, _ in sample.labels]
            family = families.setdefault(sample.name, kind(f"kp_agent_{sample.name}", sample.help, labels=names))
            family.add_metric([value for _, value in sample.labels], sample.value)
        yield from families.values()


@final
class Metrics:
    """The node's registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(namespace="kp_agent", registry=self._registry)
        self._ready = Histogram(
            "kp_agent_sandbox_ready_seconds",
            "From receipt of a create request to the sandbox being ready",
            buckets=READY_BUCKETS_S,
            registry=self._registry,
        )

    def read_from(self, read: Callable[[], Iterable[Sample]]) -> None:
        """Ask `read` for samples at each scrape."""
        self._registry.register(_Reader(read))

    def sandbox_ready(self, seconds: float) -> None:
        """Count one sandbox."""
        self._ready.observe(seconds)

    def text(self) -> bytes:
        """Return the exposition."""
        return generate_latest(self._registry)
