"""Bulk creates: minted, split, sent, answered; the same request twice is one create.

Nothing on the way to the nodes waits for the store (DECISIONS 20): rows and the key's row follow in the background.
With an idempotency key the ids follow from the key, so that even a coordinator that crashed before the key's row was
written recognises the sandboxes of a repeated request by what the nodes hold.
"""

import hashlib
import secrets
from base64 import b32encode
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, Protocol, final

from kernpool.bodies import CreateSandboxesBody
from kernpool_coordinator.core.clock import Clock, Now
from kernpool_coordinator.errors import BusyError, CoordinatorError, PendingError
from kernpool_coordinator.events.commits import Commits
from kernpool_coordinator.idempotency.keys import KeyName, Keys, UsedKey, fingerprint
from kernpool_coordinator.nodes.links import Links
from kernpool_coordinator.sandboxes.book import NEVER_MADE, Kit, Sandbox, SandboxBook
from kernpool_coordinator.sandboxes.creation import Creation, Item, new_item
from kernpool_coordinator.sandboxes.spread import Candidate, spread
from kernpool_coordinator.sandboxes.templates import check_size, command_of, result_body, template_of
from kernpool_coordinator.tokens.actor import Actor
from kernpool_mesh.messages import CommandResult, CreateSandboxes, Reply, SandboxItems
from kernpool_mesh.reasons import EndReason

ALIVE_MAX: Final = 200_000
REPLAY_ITEMS_MAX: Final = 20_000
"""Answers of finished creates with a key that are kept for a repeated request."""
ID_BYTES: Final = 10
ID_CHARS: Final = 16

LOST_RESULT: Final = CommandResult(
    EndReason.LOST, 255, detail="the sandbox has ended and the result of its command is no longer known"
)

Split = dict[str, list[str]]
"""Node id -> sandbox ids."""


class Surroundings(Protocol):
    """What creates ask of the rooms beside them."""

    def candidates(self, node: str | None) -> list[Candidate]:
        """Ready nodes with sandboxes; that one alone when named. Raises NotFoundError, UnreachableError."""
        ...

    def away(self) -> list[str]:
        """Nodes that are part of the cluster and have not told what they hold."""
        ...

    def remove_on(self, node_id: str, ids: list[str]) -> None:
        """Ask a node to remove sandboxes that nobody wants."""
        ...

    def note(self, actor: str, verb: str, workspace: str, data: dict[str, Any]) -> None:
        """Write an event with the next rows."""
        ...


@final
class Creates:
    """All creates under way, and the last ones with a key."""

    def __init__(
        self,
        book: SandboxBook,
        links: Links,
        commits: Commits,
        keys: Keys,
        clock: Clock,
        around: Surroundings,
        *,
        cluster_id: str,
        create_timeout_s: float,
    ) -> None:
        self._book = book
        self._links = links
        self._commits = commits
        self._keys = keys
        self._clock = clock
        self._around = around
        self._cluster_id = cluster_id
        self._create_timeout_s = create_timeout_s
        self._by_request: dict[int, Creation] = {}
        """Creates under way, by the number of each part."""
        self._by_key: dict[KeyName, Creation] = {}
        """Creates with a key, under way or kept, oldest first."""

    def create(self, actor: Actor, body: CreateSandboxesBody) -> AsyncIterator[list[Item]]:
        """Ask the nodes at once; gives the batches of answers. Raises what `ControlPlane.create_sandboxes` says."""
        if not body.idempotency_key:
            return self._new(actor, body, self._new_ids(actor, body)).read()
        name = _fingerprint(body)
        used = self._keys.find(actor, "sandboxes", body.idempotency_key, name)
        if used is not None:
            return self._again(actor, body, used).read()
        ids = self._new_ids(actor, body)
        split = self._split_that_is_known(ids)
        if split:
            used = self._use_key(actor, body, name, split)
            return self._retold(actor, body, used.name, split).read()
        creation = self._new(actor, body, ids)
        used = self._use_key(actor, body, name, _split_of(creation))
        self._keep(used.name, creation)
        return creation.read()

    def _new(self, actor: Actor, body: CreateSandboxesBody, ids: Sequence[str]) -> Creation:
        check_size(body)
        if self._book.alive + body.count > ALIVE_MAX:
            raise BusyError(f"there are {self._book.alive} sandboxes already, at most {ALIVE_MAX} are kept")
        creation = self._creation(actor, body)
        shares = spread(body.count, creation.kit.template.limits, self._around.candidates(body.node))
        self._send(creation, body, _split(ids, shares))
        return creation

    def _new_ids(self, actor: Actor, body: CreateSandboxesBody) -> list[str]:
        """Mint all ids in one go; with a key they follow from it."""
        size = ID_BYTES * body.count
        if body.idempotency_key:
            seed = "\0".join((self._cluster_id, actor.workspace, actor.name, body.idempotency_key))
            raw = hashlib.shake_256(seed.encode()).digest(size)
        else:
            raw = secrets.token_bytes(size)
        text = b32encode(raw).decode("ascii").lower()
        return [f"sb-{text[start : start + ID_CHARS]}" for start in range(0, ID_CHARS * body.count, ID_CHARS)]

    def _creation(self, actor: Actor, body: CreateSandboxesBody) -> Creation:
        status_deadline = self._clock.now().mono + self._create_timeout_s
        work_s = (body.command.timeout_s or body.ttl_s) if body.command is not None else 0.0
        return Creation(
            kit=Kit(template_of(body.template), body.labels, actor.workspace, actor.name),
            wants_result=body.command is not None,
            remove_after=body.remove_after,
            keyed=body.idempotency_key is not None,
            status_deadline=status_deadline,
            result_deadline=status_deadline + work_s,
        )

    def _send(self, creation: Creation, body: CreateSandboxesBody, split: Split) -> None:
        """Ask every node, one message each; nothing here waits."""
        now = self._clock.now()
        command = command_of(body.command) if body.command is not None else None
        kit = creation.kit
        expires = now.unix + body.ttl_s
        for node_id, ids in split.items():
            for sandbox_id in ids:
                known = self._book.sandboxes.get(sandbox_id)
                if known is None or not known.alive:
                    self._book.add(Sandbox(sandbox_id, node_id, kit, now.unix, expires_unix_s=expires))
            request_id = self._links.next_id()
            creation.add_part(request_id, node_id, ids)
            self._by_request[request_id] = creation
            message = CreateSandboxes(
                request_id, ids, kit.template, body.ttl_s, body.idle_s, command, body.remove_after, body.env,
                kit.labels, kit.workspace, kit.owner,
            )  # fmt: skip
            self._ask(creation, request_id, node_id, message)
        nodes = {node_id: len(ids) for node_id, ids in split.items()}
        self._around.note(kit.owner, "created", kit.workspace, {"count": sum(nodes.values()), "nodes": nodes})
        self._settle(creation)

    def _ask(self, creation: Creation, request_id: int, node_id: str, message: CreateSandboxes) -> None:
        try:
            self._links.post(node_id, message)
        except CoordinatorError as error:
            # It did not leave this process: these ids are certainly not made.
            creation.fail_part(request_id, "busy", error.message, self._book, self._clock.now().unix)

    # --- a repeated request ---

    def _use_key(self, actor: Actor, body: CreateSandboxesBody, name: str, split: Split) -> UsedKey:
        assert body.idempotency_key, "only called with a key"
        used = self._keys.use(actor, "sandboxes", body.idempotency_key, name, {"nodes": split}, self._clock.now().unix)
        self._commits.later([used.put()])
        return used

    def _keep(self, name: KeyName, creation: Creation) -> None:
        self._by_key.pop(name, None)
        self._by_key[name] = creation
        kept = 0
        for other, one in reversed(list(self._by_key.items())):
            kept += one.created + one.failed
            if one.sealed and kept > REPLAY_ITEMS_MAX:
                del self._by_key[other]

    def _again(self, actor: Actor, body: CreateSandboxesBody, used: UsedKey) -> Creation:
        """The same request once more: the same answers, or the truth of today; never a second create."""
        creation = self._by_key.get(used.name)
        if creation is not None and not (creation.sealed and creation.failed):
            return creation
        split: Split = used.outcome["nodes"]
        away = set(self._around.away())
        self._refuse_while_pending([node for node in split if node in away and self._is_unknown(split[node])])
        return self._retold(actor, body, used.name, split)

    def _split_that_is_known(self, ids: Sequence[str]) -> Split:
        """Where the sandboxes of a lost key are; empty when none is known, so that the request is a new one."""
        known = {one: self._book.sandboxes[one].node_id for one in ids if one in self._book.sandboxes}
        if not known:
            return {}
        if len(known) < len(ids):
            self._refuse_while_pending(self._around.away())
        first = next(iter(known.values()))
        split: Split = {}
        for sandbox_id in ids:
            split.setdefault(known.get(sandbox_id, first), []).append(sandbox_id)
        return split

    def _refuse_while_pending(self, away: Sequence[str]) -> None:
        if away:
            names = ", ".join(away)
            raise PendingError(
                f"this request is pending on {names}: whether its sandboxes were made is not known before it is back",
                hint=f"kernpool node show {away[0]}",
            )

    def _is_unknown(self, ids: Sequence[str]) -> bool:
        """Whether only their node can tell what became of these."""
        found = [self._book.sandboxes.get(one) for one in ids]
        return any(one is None or one.alive for one in found)

    def _retold(self, actor: Actor, body: CreateSandboxesBody, name: KeyName, split: Split) -> Creation:
        """Answer for those that have ended, and ask the nodes anew for the others.

        A node makes nothing twice: for an id that it knows it answers with what is there, and with the command's
        result where it still has it.
        """
        creation = self._creation(actor, body)
        batch: list[Item] = []
        asked: Split = {}
        for node_id, ids in split.items():
            for sandbox_id in ids:
                sandbox = self._book.sandboxes.get(sandbox_id)
                if sandbox is None or sandbox.alive or _was_never_made(sandbox):
                    asked.setdefault(node_id, []).append(sandbox_id)
                else:
                    result = result_body(LOST_RESULT) if creation.wants_result else None
                    batch.append(new_item(sandbox_id) | {"sandbox": sandbox.body(), "result": result})
        creation.answer_known(batch)
        if asked:
            self._send(creation, body, asked)
        self._settle(creation)
        self._keep(name, creation)
        return creation

    # --- what nodes tell ---

    def items(self, message: SandboxItems) -> None:
        """Some answers."""
        creation = self._by_request.get(message.request_id)
        if creation is not None:
            creation.take(message.request_id, message.items, self._book, self._clock.now().unix, done=message.done)
            self._settle(creation)

    def reply(self, reply: Reply) -> None:
        """A node refused a create as a whole."""
        if reply.error or reply.code:
            self._fail(reply.request_id, reply.code or "refused", reply.error or reply.code)

    def node_unlinked(self, node_id: str) -> None:
        """Its link broke: creates on it get no more answers."""
        for request_id, creation in list(self._by_request.items()):
            part = creation.parts.get(request_id)
            if part is not None and part.node_id == node_id:
                self._fail(request_id, "unreachable", f"the link of node {node_id} broke before it answered")

    def tick(self, now: Now) -> None:
        """End what took too long."""
        for creation in {id(one): one for one in self._by_request.values()}.values():
            creation.expire(now.mono, self._book, now.unix)
            self._settle(creation)

    def _fail(self, request_id: int, code: str, message: str) -> None:
        creation = self._by_request.get(request_id)
        if creation is not None:
            creation.fail_part(request_id, code, message, self._book, self._clock.now().unix)
            self._settle(creation)

    def _settle(self, creation: Creation) -> None:
        """Remove what nobody wants; close it when every id has its last answer."""
        for node_id, ids in creation.take_unwanted().items():
            self._around.remove_on(node_id, ids)
        if creation.parts or creation.sealed:
            return
        creation.seal()
        gone = [request_id for request_id, one in self._by_request.items() if one is creation]
        for request_id in gone:
            del self._by_request[request_id]


def _was_never_made(sandbox: Sandbox) -> bool:
    return sandbox.detail == NEVER_MADE or sandbox.reason is EndReason.START_FAILED


def _split(ids: Sequence[str], shares: Sequence[tuple[str, int]]) -> Split:
    split: Split = {}
    start = 0
    for node_id, number in shares:
        split[node_id] = list(ids[start : start + number])
        start += number
    return split


def _split_of(creation: Creation) -> Split:
    return {node_id: list(ids) for node_id, ids in creation.asked.items()}


def _fingerprint(body: CreateSandboxesBody) -> str:
    def hide(data: dict[str, Any]) -> None:
        for holder in (data, data["template"], data["command"]):
            if holder:
                holder["env"] = sorted(holder["env"])
        if data["command"]:
            del data["command"]["stdin_b64"]

    return fingerprint(body, hide)
