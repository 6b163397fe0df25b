"""The life of each sandbox as a state machine without I/O: starting, running, ending, ended; a delete always wins.

`SandboxTable.handle` takes an event and gives back what is to be done. A sandbox's end reason is set once, by whoever
came first: the person who removed it, its own deadline, the kernel's OOM killer, or the death of its PID 1.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import final

from kernpool_mesh.messages import SandboxState, SandboxStatus, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.errors import IllegalTransitionError, SandboxNotFoundError

ENDED_KEPT_MAX = 4096
"""How many ended sandboxes are remembered, so that whoever asks late still learns the reason."""


class Phase(StrEnum):
    """Where one sandbox stands."""

    STARTING = "starting"
    """Asked for; no slot serves it yet."""
    RUNNING = "running"
    """A slot serves it: commands can run."""
    ENDING = "ending"
    """Its end reason is known; its processes are being ended and what they used is given back."""
    ENDED = "ended"
    """Nothing of it is left on the node."""


_SHOWN: Mapping[Phase, SandboxState] = {
    Phase.STARTING: SandboxState.STARTING,
    Phase.RUNNING: SandboxState.RUNNING,
    Phase.ENDING: SandboxState.ENDED,  # no command can start in it any more, and its reason will not change
    Phase.ENDED: SandboxState.ENDED,
}


@final
@dataclass(slots=True)
class Sandbox:
    """One sandbox; changed by SandboxTable only."""

    sandbox_id: str
    key: str
    """Key of its template: equal templates share a pool."""
    template: Template
    labels: dict[str, str]
    workspace: str
    owner: str
    ttl_s: float
    idle_s: float
    """0: no idle end."""
    phase: Phase = Phase.STARTING
    slot: str = ""
    """The slot that serves it; empty while STARTING."""
    parked: bool = False
    started_unix_s: float = 0.0
    expires_unix_s: float = 0.0
    """Shown to people; the deadline itself is kept by the sandbox's own PID 1."""
    reason: EndReason | None = None
    """Not None once ENDING."""
    detail: str = ""
    story: list[str] = field(default_factory=list)

    def status(self) -> SandboxStatus:
        """Return what the rest of the world may know of it."""
        return SandboxStatus(
            self.sandbox_id,
            _SHOWN[self.phase],
            self.reason,
            self.detail,
            self.parked,
            self.started_unix_s,
            self.expires_unix_s,
            self.template,
            self.labels,
            self.workspace,
            self.owner,
        )


# --- events ---


@final
@dataclass(frozen=True, slots=True)
class Ready:
    """Its slot is claimed."""

    slot: str
    parked: bool
    started_unix_s: float


@final
@dataclass(frozen=True, slots=True)
class Failed:
    """It could not be made; nothing of it is left."""

    reason: EndReason
    detail: str


@final
@dataclass(frozen=True, slots=True)
class RemoveAsked:
    """Somebody wants it gone."""

    reason: EndReason
    detail: str = ""


@final
@dataclass(frozen=True, slots=True)
class InitGone:
    """Its PID 1, and so every process in it, is no more."""

    reason: EndReason
    detail: str = ""


@final
@dataclass(frozen=True, slots=True)
class Released:
    """All that its slot used was given back."""


Event = Ready | Failed | RemoveAsked | InitGone | Released


# --- instructions ---


@final
@dataclass(frozen=True, slots=True)
class KillSlot:
    """Instruction: end every process of this slot; InitGone follows."""

    slot: str


@final
@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """Instruction: give back the slot's cgroup, uids and socket; Released follows."""

    slot: str


@final
@dataclass(frozen=True, slots=True)
class Report:
    """Instruction: tell whoever listens that this sandbox's shown state changed."""

    sandbox_id: str


Instruction = KillSlot | ReleaseSlot | Report


def _ready(sandbox: Sandbox, event: Ready) -> list[Instruction]:
    sandbox.slot = event.slot
    if sandbox.phase is Phase.ENDING:
        return [KillSlot(event.slot)]  # it was deleted while it was made
    sandbox.parked = event.parked
    sandbox.started_unix_s = event.started_unix_s
    sandbox.expires_unix_s = event.started_unix_s + sandbox.ttl_s
    return [Report(sandbox.sandbox_id)]


def _failed(sandbox: Sandbox, event: Failed) -> list[Instruction]:
    if sandbox.reason is None:
        sandbox.reason, sandbox.detail = event.reason, event.detail
    return [Report(sandbox.sandbox_id)]


def _remove(sandbox: Sandbox, event: RemoveAsked) -> list[Instruction]:
    sandbox.reason, sandbox.detail = event.reason, event.detail
    return [KillSlot(sandbox.slot)] if sandbox.slot else []


def _gone(sandbox: Sandbox, event: InitGone) -> list[Instruction]:
    if sandbox.reason is None:
        sandbox.reason, sandbox.detail = event.reason, event.detail
    return [ReleaseSlot(sandbox.slot)]


def _released(sandbox: Sandbox, _event: Released) -> list[Instruction]:
    return [Report(sandbox.sandbox_id)]


def _nothing(_sandbox: Sandbox, _event: RemoveAsked) -> list[Instruction]:
    return []


_P = Phase
TRANSITIONS: Mapping[tuple[Phase, type[Event]], tuple[Phase, Callable[..., list[Instruction]]]] = {
    (_P.STARTING, Ready): (_P.RUNNING, _ready),
    (_P.STARTING, Failed): (_P.ENDED, _failed),
    (_P.STARTING, RemoveAsked): (_P.ENDING, _remove),
    (_P.RUNNING, RemoveAsked): (_P.ENDING, _remove),
    (_P.RUNNING, InitGone): (_P.ENDING, _gone),
    (_P.ENDING, Ready): (_P.ENDING, _ready),
    (_P.ENDING, Failed): (_P.ENDED, _failed),
    (_P.ENDING, InitGone): (_P.ENDING, _gone),
    (_P.ENDING, RemoveAsked): (_P.ENDING, _nothing),
    (_P.ENDING, Released): (_P.ENDED, _released),
    (_P.ENDED, RemoveAsked): (_P.ENDED, _nothing),
}
"""Every legal (phase, event); an absent pair is a fault of ours and raises with the sandbox's story."""


@final
class SandboxTable:
    """Every sandbox of the node: the living ones, and the last ended ones with their reasons."""

    __slots__ = ("_ended", "_ended_max", "_living")

    def __init__(self, ended_max: int = ENDED_KEPT_MAX) -> None:
        self._living: dict[str, Sandbox] = {}
        """Starting, running and ending ones by id."""
        self._ended: OrderedDict[str, Sandbox] = OrderedDict()
        """The last ended ones, oldest first."""
        self._ended_max = ended_max

    def add(self, sandbox: Sandbox) -> None:
        """Take up a new sandbox; the caller has made sure that the id is free."""
        assert sandbox.sandbox_id not in self._living, f"{sandbox.sandbox_id} is there already"
        self._ended.pop(sandbox.sandbox_id, None)
        if sandbox.phase is Phase.ENDED:
            self._remember(sandbox)
        else:
            self._living[sandbox.sandbox_id] = sandbox

    def handle(self, sandbox_id: str, event: Event) -> list[Instruction]:
        """Let one event happen to one sandbox; IllegalTransitionError when its phase does not know it."""
        sandbox = self.get(sandbox_id)
        step = TRANSITIONS.get((sandbox.phase, type(event)))
        if step is None:
            raise IllegalTransitionError(
                f"sandbox {sandbox_id} is {sandbox.phase} and got {event!r}; before: " + "; ".join(sandbox.story)
            )
        after, act = step
        if len(sandbox.story) < 32:
            sandbox.story.append(f"{sandbox.phase} {type(event).__name__}")
        instructions = act(sandbox, event)
        sandbox.phase = after
        if after is Phase.ENDED and sandbox_id in self._living:
            del self._living[sandbox_id]
            self._remember(sandbox)
        return instructions

    def get(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox, living or lately ended; SandboxNotFoundError when there is none."""
        sandbox = self.find(sandbox_id)
        if sandbox is None:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id} on this node")
        return sandbox

    def find(self, sandbox_id: str) -> Sandbox | None:
        """Return a sandbox, living or lately ended, or None."""
        return self._living.get(sandbox_id) or self._ended.get(sandbox_id)

    def living(self) -> Iterable[Sandbox]:
        """Those of which something is, or will be, on the node."""
        return self._living.values()

    def ended(self) -> Iterable[Sandbox]:
        """The last ended ones, oldest first."""
        return self._ended.values()

    def _remember(self, sandbox: Sandbox) -> None:
        self._ended[sandbox.sandbox_id] = sandbox
        while len(self._ended) > self._ended_max:
            self._ended.popitem(last=False)
