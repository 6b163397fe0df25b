"""Who of those that wait may start: first in, first out, with what fits, and nobody delayed."""

import pytest

from kernpool.spec import Demand
from kernpool_coordinator.placement import (
    Amounts,
    Ask,
    FirstFit,
    Holder,
    Line,
    Placement,
    Refusal,
    Room,
    Start,
    Waiting,
    fits,
    plan,
)
from kernpool_mesh.messages import Gpu, Resources


def room(name: str, cpus: int = 8, gpus: int = 0, model: str = "H100") -> Room:
    made = Room(f"n-{name}", name, open=True)
    made.set_total(Resources(cpus * 1000, 16384, 100_000), [Gpu(i, f"GPU-{i}", model, 80_000) for i in range(gpus)])
    return made


def waiting(number: int, cpus: int = 0, count: int = 1, **ask: object) -> Waiting:
    return Waiting(f"j-{number}", (Ask(cpu_millis=cpus * 1000, **ask),), count, (0, number))  # type: ignore[arg-type]


def hold(where: Room, number: int, cpus: int, *, lasting: bool = False) -> None:
    where.take(Holder(f"j-{number}", (0, number), lasting), where.holding_for(Ask(cpu_millis=cpus * 1000)))


def run(line: list[Waiting], *rooms: Room) -> dict[str, str]:
    """Plan a line and take what starts; gives the node of each that starts, and the sentence of each that waits."""
    found: dict[str, str] = {}
    for answer in plan(line, rooms, FirstFit()):
        match answer:
            case Start(waiting=one, placement=placement):
                for holding in placement.holdings:
                    where = next(room for room in rooms if room.node_id == holding.node_id)
                    where.take(Holder(one.key, one.order), holding)
                found[one.key] = ",".join(holding.node_id for holding in placement.holdings)
            case Line(waiting=one, sentence=sentence):
                found[one.key] = sentence
    return found


def test_the_first_that_fits_takes_the_first_node() -> None:
    assert run([waiting(1, 4), waiting(2, 4), waiting(3, 4)], room("a"), room("b")) == {
        "j-1": "n-a", "j-2": "n-a", "j-3": "n-b",
    }  # fmt: skip


def test_a_small_job_runs_beside_a_waiting_large_one_when_it_delays_it_by_nothing() -> None:
    """6 of 8 CPUs are busy; a job of 4 waits. One of 2 may run: when the busy one ends, 6 are free for the 4."""
    node = room("a")
    hold(node, 1, 6)
    found = run([waiting(2, 4), waiting(3, 2)], node)
    assert found["j-3"] == "n-a"
    assert "4 CPUs asked, 2 there" in found["j-2"]


def test_a_small_job_waits_when_it_would_delay_the_large_one() -> None:
    """A job of 8 waits for the whole node: with small ones slipping in before it, it would wait for ever."""
    node = room("a")
    hold(node, 1, 6)
    found = run([waiting(2, 8), waiting(3, 2)], node)
    assert found["j-3"] == "would fit now, but would delay j-2, which came first"


def test_those_that_overtook_are_counted() -> None:
    """Each overtaker alone delays nobody; together they would."""
    node = room("a", cpus=10)
    hold(node, 1, 6)
    found = run([waiting(2, 6), waiting(3, 2), waiting(4, 2)], node)
    assert (found["j-3"], found["j-4"]) == ("n-a", "n-a")
    hold(node, 1, 4)  # the first one shrinks: room for one more, were it not for j-2
    assert run([waiting(2, 6), waiting(5, 2)], node)["j-5"].startswith("would fit now, but would delay j-2")


def test_one_that_no_node_could_take_holds_up_nobody() -> None:
    found = run([waiting(1, 99), waiting(2, 8)], room("a"))
    assert found["j-2"] == "n-a"
    assert "no node could ever take it: a: 99 CPUs asked, 8 there" in found["j-1"]


def test_one_that_waits_for_a_lasting_hold_holds_up_nobody() -> None:
    """A cluster keeps 6 CPUs until someone takes it down: to wait for that moment behind a job of 8 helps nobody."""
    node = room("a")
    hold(node, 1, 6, lasting=True)
    assert run([waiting(2, 8), waiting(3, 2)], node)["j-3"] == "n-a"


def test_priority_goes_before_age() -> None:
    node = room("a", cpus=4)
    low = waiting(1, 4)
    high = Waiting("j-2", (Ask(cpu_millis=4000),), 1, (-10, 2))
    found = run(sorted([low, high], key=lambda one: one.order), node)
    assert found["j-2"] == "n-a"
    assert "4 CPUs asked, 0 there" in found["j-1"]


def test_a_gang_gets_all_its_nodes_or_none() -> None:
    rooms = [room("a"), room("b"), room("c")]
    hold(rooms[1], 0, 6)
    found = run([waiting(1, 4, count=3), waiting(2, 5, count=2)], *rooms)
    assert "needs 3 nodes with 4 CPUs each; b: 4 CPUs asked, 2 there" in found["j-1"]
    # j-2 would take what the gang waits for.
    assert found["j-2"].startswith("would fit now")


def test_a_gang_larger_than_the_fleet_says_so() -> None:
    rooms = [room("a"), room("b")]
    rooms[1].open = False
    assert run([waiting(1, count=2)], *rooms)["j-1"].endswith("1 of 2 nodes is ready")
    assert run([waiting(1)])["j-1"].endswith("no node has joined yet")


def test_alternatives_are_tried_in_order() -> None:
    asks = (Ask(gpu_model="B200", gpus=8), Ask(gpu_model="h100", gpus=2))
    found = run([Waiting("j-1", asks, 1, (0, 1))], room("a"), room("b", gpus=8))
    assert found["j-1"] == "n-b"


def test_gpus_are_given_by_index_and_only_healthy_ones() -> None:
    node = Room("n-a", "a", open=True)
    gpus = [Gpu(i, f"GPU-{i}", "H100", 80_000, healthy=i != 1) for i in range(4)]
    node.set_total(Resources(8000, 16384, 1000), gpus)
    ask = Ask(gpu_model="H100", gpus=2)
    first = node.holding_for(ask)
    assert first.gpu_indices == (0, 2)
    node.take(Holder("j-1", (0, 1)), first)
    assert str(fits(node.free(), ask)) == "2 x H100 asked, 1 there"
    assert node.give("j-1")
    assert not node.give("j-1")
    assert node.free() == node.total


def test_a_gpu_that_breaks_while_held_leaves_no_false_room() -> None:
    node = room("a", gpus=2)
    node.take(Holder("j-1", (0, 1)), node.holding_for(Ask(gpu_model="H100", gpus=1)))
    node.set_total(Resources(8000, 16384, 1000), [Gpu(1, "GPU-1", "H100", 80_000)])
    assert fits(node.free(), Ask(gpu_model="H100", gpus=1)) is None
    assert fits(node.free(), Ask(gpu_model="H100", gpus=2)) is not None


def test_a_node_that_refused_is_avoided() -> None:
    one = Waiting("j-1", (Ask(),), 1, (0, 1), frozenset({"n-a"}))
    assert run([one], room("a"), room("b"))["j-1"] == "n-b"


def test_equal_asks_are_tried_once() -> None:
    """Ten thousand equal jobs wait: a pass looks at the nodes once, not ten thousand times."""

    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def place(self, rooms: object, asks: object, count: int) -> Placement | Refusal:
            self.calls += 1
            return Refusal("full", hopeless=False)

    engine = Counting()
    answers = list(plan([waiting(number, 4) for number in range(10_000)], [room("a", cpus=1)], engine))
    assert len(answers) == 10_000
    assert engine.calls == 1


DEMANDS = [
    (Demand(), Ask(), "nothing in particular"),
    (
        Demand(cpus=4, cpus_at_least=True, memory_gib=0.5),
        Ask(4000, 512, memory_limited=True),
        "4 CPUs, 0.5 GiB of memory",
    ),
    (
        Demand(cpus=0.5, disk_gib=2, accelerators={"H100": 8}),
        Ask(500, 0, 2048, "H100", 8, cpu_limited=True),
        "0.5 CPUs, 2 GiB of disk, 8 x H100",
    ),
]


@pytest.mark.parametrize(("demand", "ask", "words"), DEMANDS)
def test_a_demand_becomes_an_ask(demand: Demand, ask: Ask, words: str) -> None:
    assert Ask.from_demand(demand) == ask
    assert str(ask) == words


def test_amounts_may_be_negative_after_a_loss_and_fit_nothing() -> None:
    assert fits(Amounts(-1000), Ask(cpu_millis=1)) is not None
