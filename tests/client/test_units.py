"""Durations and sizes as people write and read them."""

import pytest

from kernpool.units import duration_s, show_duration, show_mib, show_number, size_mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400), ("2d", 172800), (7, 7)],
)
def test_durations_are_read(text: str | float, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "10x", "-5s", "5s!", "m", "1h 30", None, True])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration like"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "mib"),
    [("512", 512), ("512m", 512), ("2g", 2048), ("1.5GiB", 1536), ("1t", 1 << 20), ("2048k", 2), (64, 64)],
)
def test_sizes_are_read(text: str | int, mib: int) -> None:
    assert size_mib(text) == mib


@pytest.mark.parametrize("text", ["", "lots", "2x", "-1g", "1k", "0m", "1 000m", True])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size like"):
        size_mib(text)


def test_they_are_written_for_people() -> None:
    shown = [show_duration(value) for value in (-1, 0.04, 9.94, 12.4, 60, 185, 3600, 90_000, 200_000)]
    assert shown == ["0.0s", "0.0s", "9.9s", "12s", "1m", "3m 5s", "1h", "1d 1h", "2d 7h"]
    assert [show_mib(value) for value in (5, 1536, 24_000, 3 << 20)] == ["5 MiB", "1.5 GiB", "23.4 GiB", "3.0 TiB"]
    assert [show_number(value) for value in (2.0, 1.5, 0.25, 100)] == ["2", "1.5", "0.25", "100"]
