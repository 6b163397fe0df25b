"""The parked pool's decisions, without any I/O."""

from hypothesis import given, settings
from hypothesis import strategies as st

from kernpool_sandbox.pool import Drain, Park, ParkedPools, PoolPhase, PoolPolicy, Target

POLICY = PoolPolicy(
    parked_max=100,
    auto_max=20,
    auto_min=2,
    auto_drain_after_s=60,
    refill_at_once=4,
    refill_quiet_s=0.05,
    busy_concurrency=2,
)


class Node:
    """Plays the shell: does what the pools say at once, with names of its own."""

    def __init__(self, policy: PoolPolicy = POLICY) -> None:
        self.pools = ParkedPools(policy)
        self.now = 1000.0
        self.count = 0
        self.drained: list[str] = []

    def settle(self) -> None:
        for _ in range(1000):
            instructions = self.pools.advance(self.now)
            if not instructions:
                return
            for instruction in instructions:
                match instruction:
                    case Park(key, count):
                        for _ in range(count):
                            self.count += 1
                            self.pools.parked(key, f"s{self.count}")
                    case Drain(_, slots):
                        self.drained.extend(slots)
        raise AssertionError("the pools never settle")

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    def phase(self, key: str = "k") -> PoolPhase | None:
        return next((pool.phase for pool in self.pools.statistics(self.now) if pool.key == key), None)


def test_a_template_that_nobody_used_has_nothing_parked() -> None:
    """A fresh node must not spend memory on guesses."""
    node = Node()
    node.settle()
    assert node.pools.parked_total == 0
    assert node.pools.wakeup_s(node.now) is None


def test_after_a_burst_as_many_are_parked_as_lived_at_once() -> None:
    """An RL trainer asks for 12 rollouts at once, again and again: from the second time on they are claimed."""
    node = Node()
    assert [node.pools.claim("k", node.now) for _ in range(12)] == [None] * 12
    for _ in range(12):
        node.pools.ended("k")
    node.after(1)
    assert node.pools.parked_total == 12
    assert node.phase() is PoolPhase.FULL
    assert all(node.pools.claim("k", node.now) for _ in range(12))
    assert node.pools.claim("k", node.now) is None


def test_an_automatic_pool_has_a_bound() -> None:
    """A burst of 1,000 must not leave 1,000 parked for ever."""
    node = Node()
    for _ in range(1000):
        node.pools.claim("k", node.now)
    node.after(1)
    assert node.pools.parked_total == POLICY.auto_max


def test_an_unused_pool_is_drained_after_its_idle_time() -> None:
    """Nothing may stand between runs: the trainer's night costs no memory."""
    node = Node()
    node.pools.claim("k", node.now)
    node.pools.ended("k")
    node.after(1)
    assert node.pools.parked_total == POLICY.auto_min
    wakeup = node.pools.wakeup_s(node.now)
    assert wakeup == 1000.0 + POLICY.auto_drain_after_s
    node.now = wakeup
    node.settle()
    assert node.pools.parked_total == 0
    assert len(node.drained) == POLICY.auto_min
    assert node.pools.statistics(node.now) == []
    assert node.pools.wakeup_s(node.now) is None


def test_the_refill_waits_for_a_quiet_moment_but_never_lets_the_pool_run_dry() -> None:
    """Parking competes for the same two CPUs with the commands of the burst."""
    node = Node()
    for _ in range(20):
        node.pools.claim("k", node.now)
    for round_number in range(POLICY.refill_at_once // POLICY.busy_concurrency):
        assert node.pools.advance(node.now) == [Park("k", POLICY.busy_concurrency)]
        for number in range(POLICY.busy_concurrency):
            node.pools.parked("k", f"slot-{round_number}-{number}")
    assert node.pools.advance(node.now) == []
    assert node.pools.wakeup_s(node.now) == node.now + POLICY.refill_quiet_s
    node.now += POLICY.refill_quiet_s
    assert node.pools.advance(node.now) == [Park("k", POLICY.quiet_concurrency)]


def test_an_explicit_target_overrides_and_those_not_named_are_drained() -> None:
    """The operator parks 30 of one template for the evening's run."""
    node = Node()
    node.pools.claim("other", node.now)
    node.pools.ended("other")
    node.after(1)
    node.pools.set_targets({"k": Target(30, drain_after_s=0)}, node.now)
    node.after(1)
    assert node.pools.parked_total == 30
    assert node.phase("other") is None
    node.after(100_000)
    assert node.pools.parked_total == 30


def test_an_explicit_pool_is_drained_when_unused_and_filled_again_when_used() -> None:
    """drain_after_s of a target holds, and the target itself is not forgotten."""
    node = Node()
    node.pools.set_targets({"k": Target(5, drain_after_s=10)}, node.now)
    node.after(1)
    assert node.pools.parked_total == 5
    node.after(10)
    assert node.pools.parked_total == 0
    assert node.pools.claim("k", node.now) is None
    node.pools.ended("k")
    node.after(1)
    assert node.pools.parked_total == 5


def test_a_smaller_target_drains_the_oldest_first() -> None:
    """What was parked last is warm; what stands longest goes."""
    node = Node()
    node.pools.set_targets({"k": Target(5, 0)}, node.now)
    node.after(1)
    node.pools.set_targets({"k": Target(2, 0)}, node.now)
    node.after(1)
    assert node.drained == ["s1", "s2", "s3"]
    assert node.pools.claim("k", node.now) == "s5"


def test_all_pools_together_have_a_bound() -> None:
    """Two teams ask for more than the node may hold parked."""
    node = Node()
    node.pools.set_targets({"a": Target(80, 0), "b": Target(80, 0)}, node.now)
    node.after(1)
    assert node.pools.parked_total == POLICY.parked_max


def test_failed_parking_is_tried_again_after_growing_pauses() -> None:
    """A full disk must not make the node spin."""
    node = Node()
    node.pools.set_targets({"k": Target(1, 0)}, node.now)
    node.now += 1
    pauses = []
    for _ in range(10):
        assert node.pools.advance(node.now) == [Park("k", 1)]
        node.pools.park_failed("k", node.now, "disk full")
        assert node.pools.advance(node.now) == []
        assert node.phase() is PoolPhase.RESTING
        wakeup = node.pools.wakeup_s(node.now)
        assert wakeup is not None
        pauses.append(wakeup - node.now)
        node.now = wakeup
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses[-1] == POLICY.retry_max_s
    node.settle()
    assert node.phase() is PoolPhase.FULL


def test_a_parked_one_that_died_is_replaced() -> None:
    """The host's OOM killer takes a parked PID 1."""
    node = Node()
    node.pools.set_targets({"k": Target(3, 0)}, node.now)
    node.after(1)
    assert node.pools.lost("k", "s2")
    assert not node.pools.lost("k", "s2")
    node.after(1)
    assert node.pools.parked_total == 3


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "ended", "lost", "parked", "failed", "target", "time", "advance", "returned"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 30),
    ),
    max_size=200,
)


class Model:
    """What must be true of the pools after any order of events, kept in the simplest way."""

    def __init__(self) -> None:
        self.pools = ParkedPools(POLICY)
        self.now = 0.0
        self.live = {"a": 0, "b": 0}
        self.parking = {"a": 0, "b": 0}
        self.standing: dict[str, list[str]] = {"a": [], "b": []}
        self.count = 0

    def claim(self, key: str, _amount: int) -> None:
        slot = self.pools.claim(key, self.now)
        self.live[key] += 1
        if slot is not None:
            self.standing[key].remove(slot)

    def ended(self, key: str, _amount: int) -> None:
        if self.live[key]:
            self.live[key] -= 1
            self.pools.ended(key)

    def lost(self, key: str, _amount: int) -> None:
        if self.standing[key]:
            assert self.pools.lost(key, self.standing[key].pop())

    def returned(self, key: str, _amount: int) -> None:
        if self.live[key]:
            self.pools.returned(key, self.stand(key))

    def parked(self, key: str, _amount: int) -> None:
        if self.parking[key]:
            self.parking[key] -= 1
            self.pools.parked(key, self.stand(key))

    def failed(self, key: str, _amount: int) -> None:
        if self.parking[key]:
            self.parking[key] -= 1
            self.pools.park_failed(key, self.now, "no")

    def target(self, key: str, amount: int) -> None:
        self.pools.set_targets({key: Target(amount, 5.0)} if amount else {}, self.now)

    def time(self, _key: str, amount: int) -> None:
        self.now += amount

    def advance(self, _key: str, _amount: int) -> None:
        for instruction in self.pools.advance(self.now):
            match instruction:
                case Park(which, count):
                    self.parking[which] += count
                    assert sum(self.parking.values()) + sum(map(len, self.standing.values())) <= POLICY.parked_max
                case Drain(which, slots):
                    for slot in slots:
                        self.standing[which].remove(slot)
        wakeup = self.pools.wakeup_s(self.now)
        assert wakeup is None or wakeup > self.now or any(self.parking.values())

    def stand(self, key: str) -> str:
        self.count += 1
        self.standing[key].append(f"{key}{self.count}")
        return f"{key}{self.count}"


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_no_order_of_events_breaks_a_bound_or_meets_an_illegal_transition(events: list[tuple[str, str, int]]) -> None:
    """Thousands of seeded orders of claims, deaths, failures and targets."""
    model = Model()
    for what, key, amount in events:
        getattr(model, what)(key, amount)
        assert sorted(model.pools.slots()) == sorted(model.standing["a"] + model.standing["b"])
