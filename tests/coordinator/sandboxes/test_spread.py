"""How a create is split."""

import random

import pytest

from kernpool_coordinator.errors import NoCapacityError
from kernpool_coordinator.sandboxes.spread import Candidate, room_for, spread
from kernpool_mesh.messages import Limits, Resources


def node(name: str, cpus: int = 4, memory_mib: int = 8192, disk_mib: int = 100_000) -> Candidate:
    amounts = Resources(cpus * 1000, memory_mib, disk_mib)
    return Candidate(name, name, amounts, amounts)


def test_nodes_get_their_share_by_cpus() -> None:
    assert spread(100, Limits(), [node("a", 2), node("b", 6)]) == [("a", 25), ("b", 75)]


def test_fewer_than_nodes_go_to_the_largest() -> None:
    assert spread(1, Limits(), [node("a", 2), node("b", 6)]) == [("b", 1)]


def test_no_node_gets_more_than_it_has_room_for() -> None:
    assert spread(10, Limits(memory_mib=100), [node("a", memory_mib=250), node("b")]) == [("a", 2), ("b", 8)]


def test_a_limit_above_the_node_fits_nowhere() -> None:
    assert room_for(Limits(cpu_millis=5000), node("a", 4)) == 0
    assert room_for(Limits(disk_mib=1000), node("a", disk_mib=2500)) == 2


def test_what_does_not_fit_is_refused_whole() -> None:
    with pytest.raises(NoCapacityError, match=r"no room for 9 sandboxes of 1000 MiB \(room on a: 8\)"):
        spread(9, Limits(memory_mib=1000), [node("a")])


def test_every_split_adds_up() -> None:
    rng = random.Random(1)
    for _ in range(2000):
        nodes = [node(f"n{i}", rng.randint(1, 64), rng.randint(1, 400)) for i in range(rng.randint(1, 9))]
        limits = Limits(memory_mib=rng.choice([0, 10, 50]))
        rooms = {one.node_id: room_for(limits, one) for one in nodes}
        count = rng.randint(1, 300)
        if sum(rooms.values()) < count:
            with pytest.raises(NoCapacityError):
                spread(count, limits, nodes)
            continue
        split = spread(count, limits, nodes)
        assert sum(number for _, number in split) == count
        assert all(0 < number <= rooms[name] for name, number in split)
