"""Files in a sandbox: bytes in and out, streamed, and the few operations around them."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar, final

from kernpool.errors import CutError, NotFoundError
from kernpool.protocol import calls
from kernpool.protocol.calls import Call
from kernpool.protocol.retries import TransportError, told
from kernpool.results import FileInfo
from kernpool.sdk.transport import Request, Stream

if TYPE_CHECKING:
    from kernpool.sdk.client import Client
    from kernpool.sdk.sandbox import Sandbox

T = TypeVar("T")
READ_BYTES_MAX: Final = 1 << 30
"""`read` gives a file as one value up to here; `iter` has no bound."""
STALL_S: Final = 120.0


@final
class Files:
    """`sandbox.files`; paths are absolute, or relative to /."""

    __slots__ = ("_client", "_sandbox")

    def __init__(self, client: "Client", sandbox: "Sandbox") -> None:
        self._client = client
        self._sandbox = sandbox

    def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Give a file's bytes. Raises NotFoundError, ApiError, CutError."""
        pieces: list[bytes] = []
        size = 0
        for piece in self.iter(path, offset=offset, limit=limit):
            size += len(piece)
            if size > READ_BYTES_MAX:
                raise CutError(f"{path} is larger than 1 GiB.", hint="Read it piece by piece with files.iter().")
            pieces.append(piece)
        return b"".join(pieces)

    def iter(self, path: str, *, offset: int = 0, limit: int | None = None) -> Iterator[bytes]:
        """Give a file piece by piece."""
        target = calls.files_path(self._sandbox.id, path=path, offset=offset or None, limit=limit)
        request = Request("GET", target)
        with self._open(request) as stream:
            try:
                while piece := stream.read(STALL_S):
                    yield piece
            except TransportError as error:
                raise CutError(f"Reading {path} from {self._sandbox.id} was cut: {error}.") from error

    def write(self, path: str, data: bytes | str | Iterable[bytes], *, mode: int = 0o644, user: str = "") -> None:
        """Write a file, from its beginning; parents must be there. Text is written as UTF-8."""
        body = data.encode() if isinstance(data, str) else data
        target = calls.files_path(self._sandbox.id, path=path, mode=f"{mode:o}", user=user or None)
        request = Request("PUT", target, body, "application/octet-stream", repeatable=isinstance(body, bytes))
        stream = self._open(request)
        with told(self._client.origin):
            stream.read_all(STALL_S)

    def list(self, path: str = "/") -> tuple[FileInfo, ...]:
        """List a directory."""
        return self._run(calls.list_files(self._sandbox.id, path))

    def stat(self, path: str) -> FileInfo:
        """Describe a file. Raises NotFoundError."""
        return self._run(calls.stat_file(self._sandbox.id, path))

    def exists(self, path: str) -> bool:
        """Say whether there is such a file."""
        try:
            self.stat(path)
        except NotFoundError:
            return False
        return True

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents."""
        self._run(calls.make_directory(self._sandbox.id, path))

    def move(self, path: str, to: str) -> None:
        """Rename, replacing a file that is there."""
        self._run(calls.move_file(self._sandbox.id, path, to))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with all in it."""
        self._run(calls.remove_file(self._sandbox.id, path))

    def _run(self, call: Call[T]) -> T:
        return self._client.run_at_node(self._sandbox.object, self._sandbox.node, call)

    def _open(self, request: Request) -> Stream:
        return self._client.open_at_node(self._sandbox.object, self._sandbox.node, lambda _: request)
