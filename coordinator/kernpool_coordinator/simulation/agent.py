"""A synchronous agent in memory: messages in, messages out. It keeps the rules of the real one and counts starts.

Its journal (attempts, fences, ends not yet acknowledged) and its work survive `restart`, as on a real node.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import final

from kernpool_mesh.messages import (
    PROTO_MAX,
    PROTO_MIN,
    AckAttempts,
    AttemptState,
    AttemptStatus,
    AttemptUpdate,
    CommandResult,
    CreateSandboxes,
    ExtendSandbox,
    ForgetJobs,
    Gpu,
    Heartbeat,
    Hello,
    Inventory,
    Message,
    RemoveSandboxes,
    Reply,
    Resources,
    SandboxItem,
    SandboxItems,
    SandboxState,
    SandboxStatus,
    SandboxUpdate,
    SetPools,
    Snapshot,
    StartAttempt,
    StopAttempt,
)
from kernpool_mesh.reasons import EndReason

Key = tuple[str, int, int]
"""(job id, rank, fence)"""


@final
@dataclass(slots=True)
class SimAgent:
    """One node's agent."""

    node_id: str
    hostname: str = ""
    total: Resources = field(default_factory=lambda: Resources(4000, 8192, 100_000))
    gpus: list[Gpu] = field(default_factory=list)
    isolation: list[str] = field(default_factory=lambda: ["namespace"])
    runs_at_once: bool = True
    """An accepted attempt is RUNNING at once; otherwise `begin` says when."""
    refuses: str = ""
    """Not empty: every StartAttempt is refused with this code."""
    holds_creates: bool = False
    """Creates are made and not answered until `answer_creates`."""
    incarnation: int = 1
    attempts: dict[Key, AttemptStatus] = field(default_factory=dict)
    """The journal: kept until forgotten."""
    acked: set[Key] = field(default_factory=set)
    floors: dict[tuple[str, int], int] = field(default_factory=dict)
    """Highest fence of each rank."""
    starts: Counter[Key] = field(default_factory=Counter)
    """How often each attempt was really started: never more than once."""
    messages: list[StartAttempt] = field(default_factory=list)
    """The StartAttempts that started something."""
    sandboxes: dict[str, SandboxStatus] = field(default_factory=dict)
    ended: dict[str, SandboxStatus] = field(default_factory=dict)
    """Sandboxes that ended, with their reasons; never made again."""
    fresh: set[str] = field(default_factory=set)
    """Sandboxes whose first command has not run; a restart gives it up."""
    results: dict[str, CommandResult] = field(default_factory=dict)
    """Of commands that ran; forgotten by a restart."""
    held: list[CreateSandboxes] = field(default_factory=list)
    """Creates that wait for `answer_creates`."""
    created: Counter[str] = field(default_factory=Counter)
    """How often each sandbox was made: never more than once."""
    runs: Counter[str] = field(default_factory=Counter)
    """How often a command was run in each."""
    pools: list[SetPools] = field(default_factory=list)

    # --- the greeting ---

    def hello(self) -> Hello:
        """First word of a link."""
        return Hello(PROTO_MIN, PROTO_MAX, self.node_id, self.incarnation, "boot-1", "sim")

    def inventory(self) -> Inventory:
        """What it has."""
        total = replace(self.total, gpus=len(self.gpus))
        address = f"10.0.0.{1 + sum(self.node_id.encode()) % 250}"
        return Inventory(self.hostname or self.node_id, total, self.gpus, addresses=[address], isolation=self.isolation)

    def snapshot(self) -> Snapshot:
        """All it holds: live attempts and ends that nobody acknowledged."""
        told = [status for key, status in self.attempts.items() if key not in self.acked]
        return Snapshot(told, [*self.sandboxes.values(), *self.ended.values()])

    def restart(self) -> None:
        """The agent process dies and comes back; its work goes on."""
        self.incarnation += 1
        self.results.clear()
        self.held.clear()
        self.fresh.clear()

    def heartbeat(self, seq: int) -> Heartbeat:
        """A sign of life."""
        return Heartbeat(seq, self.total, sandboxes_running=len(self.sandboxes))

    # --- what the coordinator sends ---

    def handle(self, message: Message) -> list[Message]:
        """Do what is asked; gives the answers."""
        match message:
            case StartAttempt():
                return self._start(message)
            case StopAttempt():
                return self._stop(message)
            case AckAttempts(attempts=ends):
                self.acked.update((job_id, index, fence) for job_id, index, fence in ends)
                return []
            case ForgetJobs(job_ids=job_ids):
                self.attempts = {key: status for key, status in self.attempts.items() if key[0] not in job_ids}
                return []
            case CreateSandboxes():
                return self._create(message)
            case RemoveSandboxes(request_id=number, sandbox_ids=ids):
                updates = [update for one in ids for update in self.end_sandbox(one, EndReason.CANCELLED)]
                return [*updates, Reply(number)]
            case ExtendSandbox(request_id=number, sandbox_id=one):
                known = one in self.sandboxes
                return [Reply(number) if known else Reply(number, f"no sandbox {one}", "not_found")]
            case SetPools(request_id=number):
                self.pools.append(message)
                return [Reply(number)]
            case _:
                return []

    def _start(self, order: StartAttempt) -> list[Message]:
        key, rank = (order.job_id, order.index, order.fence), (order.job_id, order.index)
        if self.refuses:
            return [Reply(order.request_id, f"refused by the test: {self.refuses}", self.refuses)]
        if key in self.attempts and self.floors[rank] == order.fence:
            return [Reply(order.request_id)]
        if order.fence <= self.floors.get(rank, 0):
            return [Reply(order.request_id, f"fence {order.fence} is stale", "stale_fence")]
        self.floors[rank] = order.fence
        self.starts[key] += 1
        self.messages.append(order)
        self.attempts[key] = AttemptStatus(order.job_id, order.index, order.fence, AttemptState.ACCEPTED)
        return [Reply(order.request_id), *(self.begin(order.job_id, order.index) if self.runs_at_once else [])]

    def _stop(self, order: StopAttempt) -> list[Message]:
        status = self.attempts.get((order.job_id, order.index, order.fence))
        if status is None:
            return [Reply(order.request_id, "no such attempt", "not_found")]
        if status.state is AttemptState.ENDED:
            return [Reply(order.request_id)]
        return [Reply(order.request_id), *self._end(status, order.reason, 143)]

    # --- what its work does ---

    def live(self, job_id: str, index: int = 0) -> AttemptStatus | None:
        """The attempt of a rank that is not over."""
        return next(
            (
                status
                for key, status in self.attempts.items()
                if key[:2] == (job_id, index) and status.state is not AttemptState.ENDED
            ),
            None,
        )

    def begin(self, job_id: str, index: int = 0, state: AttemptState = AttemptState.RUNNING) -> list[Message]:
        """A rank gets on; gives the word for the coordinator."""
        status = self.live(job_id, index)
        if status is None:
            return []
        return [self._set(replace(status, state=state, started_unix_s=1000.0))]

    def finish(
        self, job_id: str, index: int = 0, exit_code: int = 0, reason: EndReason = EndReason.EXITED
    ) -> list[Message]:
        """A rank ends; gives the word for the coordinator."""
        status = self.live(job_id, index)
        return self._end(status, reason, exit_code) if status is not None else []

    def repeat_ends(self) -> list[Message]:
        """Tell again the ends that nobody acknowledged, as the real agent does from time to time."""
        return [
            AttemptUpdate(status)
            for key, status in self.attempts.items()
            if status.state is AttemptState.ENDED and key not in self.acked
        ]

    def end_sandbox(self, sandbox_id: str, reason: EndReason) -> list[Message]:
        """A sandbox ends by itself."""
        status = self.sandboxes.pop(sandbox_id, None)
        if status is None:
            return []
        self.ended[sandbox_id] = replace(status, state=SandboxState.ENDED, reason=reason)
        return [SandboxUpdate([self.ended[sandbox_id]])]

    def answer_creates(self) -> list[Message]:
        """Answer the creates that were held."""
        held, self.held = self.held, []
        return [answer for order in held for answer in self._answers(order)]

    def _end(self, status: AttemptStatus, reason: EndReason, exit_code: int) -> list[Message]:
        started = status.started_unix_s or 1000.0
        return [
            self._set(
                replace(
                    status,
                    state=AttemptState.ENDED,
                    reason=reason,
                    exit_code=exit_code,
                    started_unix_s=started,
                    ended_unix_s=started + 1,
                )
            )
        ]

    def _set(self, status: AttemptStatus) -> AttemptUpdate:
        self.attempts[status.job_id, status.index, status.fence] = status
        return AttemptUpdate(status)

    # --- sandboxes ---

    def _create(self, order: CreateSandboxes) -> list[Message]:
        for one in order.sandbox_ids:
            if one in self.sandboxes or one in self.ended:
                continue
            self.sandboxes[one] = SandboxStatus(
                one, SandboxState.RUNNING, parked=True, started_unix_s=1000.0, expires_unix_s=1000.0 + order.ttl_s,
                template=order.template, labels=order.labels, workspace=order.workspace, owner=order.owner,
            )  # fmt: skip
            self.created[one] += 1
            self.fresh.add(one)
        if self.holds_creates:
            self.held.append(order)
            return []
        return self._answers(order)

    def _answers(self, order: CreateSandboxes) -> list[Message]:
        """Items in two messages; the end of those that are removed after their command may overtake them."""
        items = [self._item(one, order) for one in order.sandbox_ids]
        ends: list[Message] = []
        if order.remove_after and order.command is not None:
            ends = [end for one in order.sandbox_ids for end in self.end_sandbox(one, EndReason.EXITED)]
        half = len(items) // 2
        parts = [part for part in (items[:half], items[half:]) if part]
        told = [SandboxItems(order.request_id, part, done=number == len(parts)) for number, part in enumerate(parts, 1)]
        return [*ends, *told]

    def _item(self, one: str, order: CreateSandboxes) -> SandboxItem:
        status = self.sandboxes.get(one) or self.ended[one]
        if order.command is None:
            return SandboxItem(one, status, ready_ms=1.0)
        if one in self.fresh and status.state is SandboxState.RUNNING:
            self.fresh.discard(one)
            self.runs[one] += 1
            self.results[one] = CommandResult(EndReason.EXITED, 0, stdout=b"hi\n")
        lost = CommandResult(EndReason.LOST, 255, detail="its result is no longer known")
        return SandboxItem(one, status, self.results.get(one, lost), ready_ms=1.0)
