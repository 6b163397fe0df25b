"""The NDJSON answer of a bulk create, read item by item; repeated after a cut it gives only what was not seen yet."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

from kernpool.errors import ProtocolError
from kernpool.protocol import fields as read
from kernpool.protocol.lines import LineReader
from kernpool.results import CommandResult, Created, SandboxInfo, read_problem


@final
class BulkReader:
    """Bytes in, items out; remembers what it gave, over several tries of the same request."""

    __slots__ = ("_expects_result", "_lines", "_seen", "_started", "done")

    def __init__(self, *, expects_result: bool) -> None:
        self.done = False
        """The last line was there; without it the items not seen are unknown."""
        self._expects_result = expects_result
        """A command was given: an item is whole once its result is there."""
        self._lines = LineReader()
        self._seen: set[str] = set()
        """Ids given out already: a repeated request tells of them again."""
        self._started: dict[str, Created[None]] = {}
        """Made, and their command not over yet."""

    def restart(self) -> None:
        """Begin with the answer of the next try."""
        self._lines = LineReader()

    def feed(self, data: bytes) -> list[Created[None]]:
        """Take the next bytes, give the items that are whole now.

        Raises ProtocolError, or the ApiError of the whole request.
        """
        return [item for line in self._lines.feed(data) for item in self._take(line)]

    def _take(self, line: Mapping[str, Any]) -> list[Created[None]]:
        if self.done:
            raise ProtocolError("the server sent more items after the last one")
        if read.flag(line, "done"):
            self.done = True
            return list(self._started.values())
        if "id" not in line and "error" in line:
            raise read_problem(read.any_map(line, "error"))
        item = read_item(line)
        if item.id in self._seen:
            return []
        if earlier := self._started.pop(item.id, None):
            item = replace(item, info=item.info or earlier.info, ready_ms=item.ready_ms or earlier.ready_ms)
        if self._expects_result and item.result is None and item.error is None:
            self._started[item.id] = item
            return []
        self._seen.add(item.id)
        return [item]


def read_item(line: Mapping[str, Any]) -> Created[None]:
    """Read one line."""
    return Created(
        id=read.name(line, "id"),
        sandbox=None,
        info=read.maybe_record(line, "sandbox", SandboxInfo.read),
        result=read.maybe_record(line, "result", CommandResult.read),
        error=read.maybe_record(line, "error", read_problem),
        ready_ms=read.maybe_number(line, "ready_ms"),
    )
