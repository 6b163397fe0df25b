"""The ledger of what is free on a node."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernpool_agent.capacity import Capacity, Need, attempt_need, sandbox_need
from kernpool_agent.errors import RefusedError
from kernpool_mesh.fits import fits, shortage
from kernpool_mesh.messages import Limits, Resources

NODE = Resources(cpu_millis=2000, memory_mib=1000, disk_mib=500, gpus=2)


def ledger() -> Capacity:
    return Capacity(NODE, [0, 1])


def test_what_is_taken_is_not_free_until_it_is_given_back() -> None:
    """A job starts and ends."""
    capacity = ledger()
    capacity.take("a", attempt_need(Limits(1500, 600, 100), [1]))
    assert capacity.free() == Resources(500, 400, 400, 1)
    capacity.give_back("a")
    capacity.give_back("a")
    assert capacity.free() == NODE


def test_what_does_not_fit_is_refused_with_the_first_thing_that_is_short() -> None:
    """Two coordinators planned for the same node at once: the node has the last word."""
    capacity = ledger()
    with pytest.raises(RefusedError, match=r"memory: 2000 MiB wanted, 1000 MiB free") as caught:
        capacity.take("a", attempt_need(Limits(100, 2000), []))
    assert caught.value.code == "no_capacity"
    assert capacity.free() == NODE


def test_a_gpu_has_one_holder() -> None:
    """Two jobs on one GPU would run out of its memory both."""
    capacity = ledger()
    capacity.take("first", attempt_need(Limits(), [1]))
    with pytest.raises(RefusedError, match="GPU 1 is held by first"):
        capacity.take("second", attempt_need(Limits(), [1]))
    with pytest.raises(RefusedError, match=r"GPU 7 is not here \(there are: \[0, 1\]\)"):
        capacity.take("second", attempt_need(Limits(), [7]))
    capacity.take("second", attempt_need(Limits(), [0]))


def test_what_runs_already_is_counted_even_when_it_is_too_much() -> None:
    """After a restart the reserve was raised, or a GPU is gone: running work is never refused afterwards."""
    capacity = ledger()
    capacity.adopt("a", attempt_need(Limits(9000, 9000, 9000), [0, 1]))
    assert capacity.free() == Resources(0, 0, 0, 0)
    capacity.set_total(NODE, [0])
    assert capacity.free().gpus == 0
    capacity.give_back("a")
    assert capacity.free() == Resources(2000, 1000, 500, 1)


def test_a_sandbox_without_limits_counts_a_little() -> None:
    """2,000 idle sandboxes must fit a small machine, but not be free of charge."""
    assert sandbox_need(Limits(), cpu_millis_default=0, memory_mib_default=4) == Need(Resources(0, 4))
    assert sandbox_need(Limits(500, 64, 999), cpu_millis_default=0, memory_mib_default=4) == Need(Resources(500, 64))


AMOUNTS = st.builds(Resources, st.integers(0, 999), st.integers(0, 999), st.integers(0, 999), st.integers(0, 9))


@given(AMOUNTS, AMOUNTS)
def test_fits_is_the_absence_of_a_shortage(free: Resources, need: Resources) -> None:
    """Whoever plans and whoever commits must never disagree."""
    pairs = zip(
        (need.cpu_millis, need.memory_mib, need.disk_mib, need.gpus),
        (free.cpu_millis, free.memory_mib, free.disk_mib, free.gpus),
        strict=True,
    )
    assert fits(free, need) == all(wanted <= there for wanted, there in pairs)
    assert fits(free, need) == (shortage(free, need) == "")


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), AMOUNTS), max_size=40))
def test_a_ledger_never_promises_more_than_there_is(steps: list[tuple[str, bool, Resources]]) -> None:
    """Any order of starts and ends."""
    capacity = Capacity(Resources(1000, 1000, 1000, 0))
    held: dict[str, Resources] = {}
    for holder, take, amounts in steps:
        amounts.gpus = 0
        if take and holder not in held:
            try:
                capacity.take(holder, Need(amounts))
            except RefusedError:
                continue
            held[holder] = amounts
        elif not take:
            capacity.give_back(holder)
            held.pop(holder, None)
        assert capacity.free().cpu_millis == 1000 - sum(a.cpu_millis for a in held.values()) >= 0
        assert capacity.free().memory_mib == 1000 - sum(a.memory_mib for a in held.values()) >= 0
