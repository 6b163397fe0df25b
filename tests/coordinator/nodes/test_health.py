"""The health of nodes: real silences are told, our own faults are not taken for theirs."""

import pytest

from kernpool_coordinator.nodes.health import Health, HealthChange, HealthLimits, HealthMachine, NodeLost


class Watch:
    """A health machine with a clock that ticks every quarter second, as the ticker does."""

    def __init__(self, count: int = 1, limits: HealthLimits | None = None) -> None:
        self.machine = HealthMachine(limits)
        self.mono = 100.0
        self.names = [f"n-{number}" for number in range(count)]
        for name in self.names:
            self.machine.add(name, self.mono)
            self.machine.linked(name, self.mono)

    def live(self, seconds: float, *silent: str) -> list[HealthChange | NodeLost]:
        """Let time pass; all but the silent ones are heard every 2 s."""
        out: list[HealthChange | NodeLost] = []
        end = self.mono + seconds
        while self.mono < end:
            self.mono += 0.25
            if self.mono % 2 == 0:
                for name in self.names:
                    if name not in silent:
                        out += self.machine.heard(name, self.mono)
            out += self.machine.tick(self.mono)
        return out

    def health(self, name: str = "n-0") -> Health:
        return self.machine.health(name)


def test_a_node_that_is_heard_stays_ready() -> None:
    watch = Watch()
    assert watch.live(60) == []
    assert watch.health() is Health.READY


def test_a_silent_node_is_suspect_after_6_s_and_unreachable_after_8() -> None:
    """A host loses its power: its link stays open for minutes, only the silence tells."""
    watch = Watch(2)
    start = watch.mono
    changes = watch.live(20, "n-0")
    assert [(one.after, one.node_id) for one in changes if isinstance(one, HealthChange)] == [
        (Health.SUSPECT, "n-0"),
        (Health.UNREACHABLE, "n-0"),
    ]
    first = Watch(2)
    first.live(5.75, "n-0")
    assert first.health() is Health.READY
    first.live(0.5, "n-0")
    assert (first.health(), first.mono - start) == (Health.SUSPECT, 6.25)
    first.live(2.0, "n-0")
    assert first.health() is Health.UNREACHABLE


def test_a_broken_link_is_suspect_at_once() -> None:
    watch = Watch()
    (change,) = watch.machine.link_lost("n-0", "reset by peer")
    assert (change.after, change.cause) == (Health.SUSPECT, "its link broke: reset by peer")
    assert watch.machine.link_lost("n-0", "") == []


def test_a_node_that_returns_is_ready_again() -> None:
    watch = Watch()
    watch.machine.link_lost("n-0", "")
    watch.live(20, "n-0")
    assert watch.health() is Health.UNREACHABLE
    (change,) = watch.machine.linked("n-0", watch.mono)
    assert (change.before, change.after, change.cause) == (Health.UNREACHABLE, Health.READY, "it is back")


def test_a_word_on_a_dead_link_does_not_make_it_ready() -> None:
    watch = Watch()
    watch.machine.link_lost("n-0", "")
    assert watch.machine.heard("n-0", watch.mono) == []
    assert watch.health() is Health.SUSPECT


def test_a_long_absence_is_told_once_as_lost() -> None:
    watch = Watch(limits=HealthLimits(lost_after_s=30))
    lost = [one for one in watch.live(200, "n-0") if isinstance(one, NodeLost)]
    assert [(one.node_id, one.cause) for one in lost] == [("n-0", "unreachable for 30 s")]
    watch.machine.linked("n-0", watch.mono)
    assert len([one for one in watch.live(200, "n-0") if isinstance(one, NodeLost)]) == 1


def test_our_own_pause_is_forgiven() -> None:
    """The coordinator is stopped for a minute (SIGSTOP, a laptop's lid): no node did anything wrong."""
    watch = Watch(3)
    watch.live(3)
    watch.mono += 60
    assert watch.machine.tick(watch.mono) == []
    assert watch.live(30) == []


def test_a_mass_silence_freezes_declarations() -> None:
    """A switch dies and a third of the fleet falls silent at once: its work runs on, so nothing is declared."""
    watch = Watch(12)
    silent = watch.names[:4]
    changes = watch.live(40, *silent)
    assert {one.after for one in changes if isinstance(one, HealthChange)} == {Health.SUSPECT}
    assert watch.machine.frozen
    assert "frozen" in repr(watch.machine)
    for name in silent:
        watch.machine.linked(name, watch.mono)
    watch.live(3)
    assert not watch.machine.frozen


def test_a_freeze_ends_when_the_silence_is_real() -> None:
    """A third of the fleet really is gone: after a minute it is said."""
    watch = Watch(12)
    watch.live(80, *watch.names[:4])
    assert [watch.health(name) for name in watch.names[:5]] == [Health.UNREACHABLE] * 4 + [Health.READY]


@pytest.mark.parametrize(("count", "silent"), [(12, 1), (7, 7), (1, 1)])
def test_few_silent_nodes_freeze_nothing(count: int, silent: int) -> None:
    watch = Watch(count)
    watch.live(9, *watch.names[:silent])
    assert watch.health("n-0") is Health.UNREACHABLE


def test_known_nodes_have_time_to_link_after_our_start() -> None:
    """A coordinator restarts: agents dial again with jitter, and none is declared gone meanwhile."""
    machine = HealthMachine()
    machine.add("n-0", 100.0)
    changes = [change for tick in range(29 * 4) for change in machine.tick(100 + tick / 4)]
    assert (changes, machine.health("n-0"), machine.silence_s("n-0", 129)) == ([], Health.SUSPECT, None)
    changes = [change for tick in range(8) for change in machine.tick(129 + tick / 4)]
    assert machine.health("n-0") is Health.UNREACHABLE
