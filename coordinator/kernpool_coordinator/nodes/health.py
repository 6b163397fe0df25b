"""The health of nodes: from signs of life to ready, suspect, unreachable. Synchronous; time is a parameter.

                 hears it                      silent 8 s
     (joined) --> READY --link lost, silent 6 s--> SUSPECT --> UNREACHABLE --300 s--> (told once: node lost)
                    ^                                |              |
                    `--------- heard again ----------'--------------'

Two things are never mistaken for sick nodes. When this process itself stood still, all silences are forgiven. When more
than 15 % of 8 or more nodes fall silent at once, it is more likely our network than theirs: nothing is declared
unreachable for up to a minute.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, final

FREEZE_SHARE: Final = 0.15
FREEZE_NODES_MIN: Final = 8


class Health(StrEnum):
    """What placement and people may count on."""

    READY = "ready"
    """Linked and in time."""
    SUSPECT = "suspect"
    """Its link broke or it is silent: no new work, nothing is killed."""
    UNREACHABLE = "unreachable"
    """Silent for long: its work is taken to go on there, and the clock of the policy runs."""


@final
@dataclass(frozen=True, slots=True)
class HealthLimits:
    """How long a silence means what."""

    suspect_after_s: float = 6.0
    unreachable_after_s: float = 8.0
    lost_after_s: float = 300.0
    """Unreachable for so long, the node's work is given up."""
    reattach_s: float = 30.0
    """After our own start nodes have so long to link before they are unreachable."""
    freeze_s_max: float = 60.0
    pause_s: float = 2.0
    """A tick that comes so late means that we stood still ourselves."""


@final
@dataclass(frozen=True, slots=True)
class HealthChange:
    """A node's health changed."""

    node_id: str
    before: Health
    after: Health
    cause: str


@final
@dataclass(frozen=True, slots=True)
class NodeLost:
    """The policy gives the node's work up; told once for each absence."""

    node_id: str
    cause: str


@final
@dataclass(slots=True)
class _Pulse:
    health: Health
    heard: float
    """Monotonic time of the last sign of life, moved forward by what is forgiven."""
    linked: bool = False
    ever_heard: bool = False
    unreachable_since: float = 0.0
    told_lost: bool = False


@final
class HealthMachine:
    """All nodes' pulses."""

    def __init__(self, limits: HealthLimits | None = None) -> None:
        self.limits = limits or HealthLimits()
        self._pulses: dict[str, _Pulse] = {}
        self._last_tick: float | None = None
        self._frozen_since: float | None = None
        """Not None while more are silent than can be true."""

    # --- events ---

    def add(self, node_id: str, mono: float) -> None:
        """A node that is known and not linked: it has the re-attach time to come."""
        grace = self.limits.reattach_s - self.limits.unreachable_after_s
        self._pulses[node_id] = _Pulse(Health.SUSPECT, mono + grace)

    def remove(self, node_id: str) -> None:
        """Forget a node."""
        self._pulses.pop(node_id, None)

    def linked(self, node_id: str, mono: float) -> list[HealthChange]:
        """Its link stands."""
        self._pulses[node_id].linked = True
        return self.heard(node_id, mono)

    def heard(self, node_id: str, mono: float) -> list[HealthChange]:
        """It said anything at all. Called for every message: does next to nothing for a healthy node."""
        pulse = self._pulses[node_id]
        pulse.heard = mono
        if pulse.health is Health.READY or not pulse.linked:
            return []
        cause = "it is back" if pulse.ever_heard else "it linked"
        pulse.ever_heard = True
        return [self._change(node_id, pulse, Health.READY, cause)]

    def link_lost(self, node_id: str, cause: str) -> list[HealthChange]:
        """Its link broke: no new work at once; whether it is gone, the silence will say."""
        pulse = self._pulses[node_id]
        pulse.linked = False
        if pulse.health is not Health.READY:
            return []
        return [self._change(node_id, pulse, Health.SUSPECT, f"its link broke: {cause}" if cause else "its link broke")]

    def tick(self, mono: float) -> list[HealthChange | NodeLost]:
        """Look at all silences."""
        self._forgive_own_pause(mono)
        out: list[HealthChange | NodeLost] = []
        for node_id, pulse in self._pulses.items():
            if pulse.health is Health.READY and mono - pulse.heard >= self.limits.suspect_after_s:
                out.append(self._change(node_id, pulse, Health.SUSPECT, f"silent for {mono - pulse.heard:.0f} s"))
        if self._frozen(mono):
            return out
        for node_id, pulse in self._pulses.items():
            out += self._judge_silence(node_id, pulse, mono)
        return out

    # --- questions ---

    def health(self, node_id: str) -> Health:
        """How the node is."""
        return self._pulses[node_id].health

    def silence_s(self, node_id: str, mono: float) -> float | None:
        """Seconds since the last sign of life; None before the first."""
        pulse = self._pulses[node_id]
        return max(0.0, mono - pulse.heard) if pulse.ever_heard else None

    @property
    def frozen(self) -> bool:
        """Whether declarations are held back because too many are silent at once."""
        return self._frozen_since is not None

    # --- inside ---

    def _forgive_own_pause(self, mono: float) -> None:
        last, self._last_tick = self._last_tick, mono
        if last is not None and mono - last > self.limits.pause_s:
            for pulse in self._pulses.values():
                pulse.heard += mono - last

    def _frozen(self, mono: float) -> bool:
        present = [pulse for pulse in self._pulses.values() if pulse.health is not Health.UNREACHABLE]
        silent = sum(pulse.health is Health.SUSPECT for pulse in present)
        if len(present) < FREEZE_NODES_MIN or silent <= FREEZE_SHARE * len(present):
            self._frozen_since = None
            return False
        if self._frozen_since is None:
            self._frozen_since = mono
        return mono - self._frozen_since < self.limits.freeze_s_max

    def _judge_silence(self, node_id: str, pulse: _Pulse, mono: float) -> list[HealthChange | NodeLost]:
        silence = mono - pulse.heard
        if pulse.health is Health.SUSPECT and silence >= self.limits.unreachable_after_s:
            pulse.unreachable_since = mono
            return [self._change(node_id, pulse, Health.UNREACHABLE, f"silent for {silence:.0f} s")]
        absence = mono - pulse.unreachable_since
        if pulse.health is Health.UNREACHABLE and not pulse.told_lost and absence >= self.limits.lost_after_s:
            pulse.told_lost = True
            return [NodeLost(node_id, f"unreachable for {absence:.0f} s")]
        return []

    def _change(self, node_id: str, pulse: _Pulse, after: Health, cause: str) -> HealthChange:
        before, pulse.health = pulse.health, after
        if after is Health.READY:
            pulse.told_lost = False
        return HealthChange(node_id, before, after, cause)

    def __repr__(self) -> str:
        counts = {health.value: sum(p.health is health for p in self._pulses.values()) for health in Health}
        return f"<HealthMachine {counts}{' frozen' if self.frozen else ''}>"
