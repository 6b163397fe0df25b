"""Sandboxes for asyncio: made in bulk over one connection, used by handles that need none of their own."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, Unpack, final

import aiohttp

from kernpool.aio.files import Files
from kernpool.aio.process import PortConnection, Process
from kernpool.aio.transport import Request, new_retries
from kernpool.batch import Items
from kernpool.errors import CutError, KernpoolError
from kernpool.options import Argv, CommandOptions, CreateOptions, argv_of
from kernpool.protocol import calls
from kernpool.protocol.bulk import BulkReader
from kernpool.protocol.execution import COMMAND_CUT, Chunk, Exit, OutputKeeper, read_event
from kernpool.protocol.lines import LineReader
from kernpool.protocol.retries import TransportError
from kernpool.results import CommandResult, Created, Pool, Removed, SandboxInfo
from kernpool.units import duration_s

if TYPE_CHECKING:
    from kernpool.aio.client import Client

SILENCE_S: Final = 60.0
"""Beyond the time to live: every sandbox has ended by then, so an answer that is still silent is lost."""
OUTPUT_BYTES_MAX: Final = 1 << 20


@final
class Sandbox:
    """One sandbox; as an async context manager it is removed at the end."""

    __slots__ = ("_client", "files", "id", "info")

    def __init__(self, client: "Client", sandbox_id: str, info: SandboxInfo | None = None) -> None:
        self._client = client
        self.id = sandbox_id
        self.info = info
        """As of the last call that told of it; None: nothing told yet."""
        self.files = Files(client, self)

    @classmethod
    async def create(cls, **options: Unpack[CreateOptions]) -> "Sandbox":
        """Make one with this loop's default client. Raises ApiError when it cannot be made."""
        from kernpool.aio.default import default_client

        return await (await default_client(start=True)).sandboxes.create_one(**options)

    def __repr__(self) -> str:
        return f"aio.Sandbox({self.id!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.remove()

    @property
    def object(self) -> str:
        """Its name in tokens and events."""
        return f"sandbox/{self.id}"

    @property
    def parked(self) -> bool:
        """It was claimed from the parked pool, not made cold."""
        return self.info is not None and self.info.parked

    @property
    def node(self) -> str:
        """Id of its node; empty while nothing told."""
        return self.info.node if self.info else ""

    async def refresh(self) -> SandboxInfo:
        """Ask for its state now."""
        self.info = await self._client.run(calls.sandbox(self.id))
        return self.info

    async def extend(self, ttl: str | float) -> SandboxInfo:
        """Count its time to live anew from now."""
        self.info = await self._client.run(calls.extend_sandbox(self.id, duration_s(ttl)))
        return self.info

    async def remove(self) -> None:
        """End it and leave nothing of it; one that is gone already is no error."""
        await self._client.run(calls.remove_sandboxes([self.id], {}))

    async def exec(self, command: Argv, *, check: bool = False, **options: Unpack[CommandOptions]) -> CommandResult:
        """Run a command to its end and give its output; never raises for what it does, unless `check`.

        Raises CommandFailedError (check), NotFoundError, UnreachableError, CutError.
        """
        keeper = OutputKeeper(options.get("output_bytes_max", OUTPUT_BYTES_MAX))
        async for event in self.stream(command, **options):
            if isinstance(event, Exit):
                result = keeper.result(event.result)
                return result.check(tuple(argv_of(command))) if check else result
            keeper.take(event)
        raise CutError(f"The output of the command in {self.id} ended before its end.")

    async def stream(self, command: Argv, **options: Unpack[CommandOptions]) -> AsyncIterator[Chunk | Exit]:
        """Run a command and give its output as it comes, then its Exit; stdin, if any, is given whole."""
        body = calls.exec_body(command, options)
        request = Request("POST", calls.exec_path(self.id), body, repeatable=False)
        lines = LineReader()
        async with await self._client.open_at_node(self.object, self.node, lambda _: request) as stream:
            try:
                while data := await stream.read():
                    for line in lines.feed(data):
                        yield read_event(line)
            except TransportError as error:
                raise CutError(
                    f"The connection to the command in {self.id} broke: {error}.",
                    hint="Whether the command still runs is not known; it was not started twice.",
                ) from error

    async def start(self, command: Argv, **options: Unpack[CommandOptions]) -> Process:
        """Start a command with its input open."""
        socket = await self._client.websocket_at_node(self.object, self.node, calls.exec_path(self.id))
        try:
            await socket.send_str(calls.exec_body(command, options).decode())
        except (aiohttp.ClientError, ConnectionError) as error:
            await socket.close()
            raise CutError(f"{COMMAND_CUT}: {error}.") from error
        return Process(socket)

    async def connect(self, port: int) -> PortConnection:
        """Connect to a port inside. Raises ApiError (unreachable) where nothing listens."""
        return PortConnection(
            await self._client.websocket_at_node(self.object, self.node, calls.port_path(self.id, port))
        )


@final
class Batch(Items[Sandbox]):
    """What came of a bulk create; as an async context manager it removes at the end what it made."""

    __slots__ = ("_client",)

    def __init__(self, client: "Client", items: list[Created[Sandbox]]) -> None:
        super().__init__(items)
        self._client = client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.remove()

    async def remove(self) -> None:
        """Remove all that were made."""
        if self.ids:
            await self._client.run(calls.remove_sandboxes(self.ids, {}))


@final
class Sandboxes:
    """All about sandboxes of one client: `client.sandboxes`."""

    __slots__ = ("_client",)

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def create(self, count: int = 1, **options: Unpack[CreateOptions]) -> Batch:
        """Make `count` sandboxes, and run a command in each where one is given: one request, one connection.

        Raises ApiError when nothing could be asked; what went wrong with one of many is in its item. Raises CutError
        with the items that came when the answer broke off for good.
        """
        items: list[Created[Sandbox]] = []
        try:
            async for item in self.stream(count, **options):
                items.append(item)  # noqa: PERF401 - what came before an error is kept
        except CutError as error:
            error.items = items
            raise
        return Batch(self._client, items)

    async def create_one(self, **options: Unpack[CreateOptions]) -> Sandbox:
        """Make one. Raises ApiError when it cannot be made."""
        for item in await self.create(1, **options):
            if item.error is not None:
                raise item.error
            return item.sandbox
        raise KernpoolError("The coordinator made no sandbox and gave no reason.")

    async def stream(self, count: int = 1, **options: Unpack[CreateOptions]) -> AsyncIterator[Created[Sandbox]]:
        """Make sandboxes and give each as soon as it (or its command's result) is there."""
        call = calls.create_sandboxes(count, options, calls.new_key())
        request = Request(call.method, call.path, call.body)
        timeout_s = duration_s(options.get("ttl", 600.0)) + SILENCE_S
        reader = BulkReader(expects_result="command" in options and bool(options["command"]))
        retries = new_retries(repeatable=True, timeout_s=timeout_s)
        while True:
            reader.restart()
            error = TransportError("it ended before its last line", sent=True)
            try:
                async with await self._client.open(request) as stream:
                    while data := await stream.read(timeout_s):
                        for item in reader.feed(data):
                            yield self._with_handle(item)
            except TransportError as caught:
                error = caught
            if reader.done:
                return
            pause_s = retries.after_error(error, time.monotonic())
            if pause_s is None:
                raise CutError(
                    f"The answer to the bulk create broke off: {error}.",
                    hint="See what was made with: kernpool sandbox ls",
                )
            await asyncio.sleep(pause_s)

    def _with_handle(self, item: Created[None]) -> Created[Sandbox]:
        return Created(
            item.id, Sandbox(self._client, item.id, item.info), item.info, item.result, item.error, item.ready_ms
        )

    def handle(self, sandbox_id: str) -> Sandbox:
        """Make a handle without asking whether there is such a sandbox; its first use tells."""
        return Sandbox(self._client, sandbox_id)

    async def get(self, sandbox_id: str) -> Sandbox:
        """Take up a sandbox. Raises NotFoundError."""
        info = await self._client.run(calls.sandbox(sandbox_id))
        return Sandbox(self._client, sandbox_id, info)

    def ls(self, labels: Mapping[str, str] | None = None, state: str | None = None) -> AsyncIterator[SandboxInfo]:
        """List sandboxes; all the labels must match."""
        return self._client.pages(lambda after: calls.sandboxes(labels or {}, state, after=after))

    async def remove(
        self,
        ids: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        *,
        all: bool = False,  # noqa: A002 - the word of the API and the command line
    ) -> Removed:
        """Remove by ids, by labels (all must match), or all of the workspace."""
        return await self._client.run(calls.remove_sandboxes(ids, labels or {}, everything=all))

    async def pools(self) -> tuple[Pool, ...]:
        """List the parked pools."""
        return await self._client.run(calls.pools())

    async def set_pools(self, wanted: Sequence[Pool]) -> tuple[Pool, ...]:
        """Set all parked pools; those not named are drained."""
        return await self._client.run(calls.set_pools(wanted))
