"""Finds and prepares the image of a template: the host's own, a directory, or a tar that is unpacked once by digest.

Slow work runs in a process of its own (imagework.py), once for each image however many sandboxes wait for it.
"""

import asyncio
import json
import os
import pwd
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, final

from kernpool_sandbox import hostimage
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.errors import ImageError
from kernpool_sandbox.hostimage import HostImage, HostTree
from kernpool_sandbox.isolation import NodeIsolation
from kernpool_sandbox.subprograms import run_module
from kernpool_sandbox.template import RootfsImage

HOST_CHECK_AFTER_S = 600.0
"""A host image in use is compared with the host again after this, in the background."""
WORK_TIMEOUT_S = 3600.0
SYSTEM_DIRECTORIES = tuple(
    map(Path, ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr"))
)


@final
class Images:
    """The images of one state directory."""

    def __init__(self, config: RuntimeConfig, isolation: NodeIsolation) -> None:
        self._config = config
        self._isolation = isolation
        self._directory = config.images
        self._running: dict[str, asyncio.Task[Any]] = {}
        """What is being prepared now, by what it is; whoever wants the same waits for the same."""
        self._host: HostImage | None = None
        self._host_checked_s = 0.0
        """When the host image was last compared with the host (monotonic)."""
        self._tars: dict[tuple[str, int, int, bool], RootfsImage] = {}
        """Unpacked tars by path, size, mtime and whether setuid bits count."""

    async def resolve(self, image: str, *, allow_setuid: bool) -> HostImage | RootfsImage:
        """Return the image ready to be mounted. ImageError."""
        if image == "host":
            return await self.host()
        path = self._permitted(image)
        if path.is_dir():
            return _directory_image(path)
        return await self._tar(path, allow_setuid=allow_setuid)

    async def host(self) -> HostImage:
        """Return the host image; one that was not compared with the host lately is compared in the background."""
        if self._host is None:
            made: HostImage = await self._once("host", self._prepare_host)
            return made
        if time.monotonic() - self._host_checked_s > HOST_CHECK_AFTER_S:
            self._host_checked_s = time.monotonic()
            self._start("host", self._prepare_host)
        return self._host

    def known_host_digest(self) -> str:
        """Return the digest of the host image that new sandboxes get, or an empty text before it is known."""
        return self._host.digest if self._host is not None else ""

    def remove_unused(self, used: frozenset[str]) -> None:
        """Remove host images that no living sandbox uses, and half-made ones of an earlier agent."""
        hostimage.remove_unused(self._directory, used | {self.known_host_digest()})
        tars = self._directory / "tar"
        for path in tars.iterdir() if tars.is_dir() else ():
            if path.name.startswith("new-"):
                shutil.rmtree(path, ignore_errors=True)

    async def close(self) -> None:
        """Stop what is being prepared."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prepare_host(self) -> HostImage:
        config = self._config
        job = {
            "kind": "host",
            "images": str(self._directory),
            "hide": self._isolation.idmap,
            "forbidden": [str(path) for path in (config.state_dir, config.images, *config.hidden_paths)],
        }
        result = await _work(job, "the host image")
        result["trees"] = tuple(HostTree(**tree) for tree in result["trees"])
        self._host, self._host_checked_s = HostImage(**result), time.monotonic()
        return self._host

    async def _tar(self, path: Path, *, allow_setuid: bool) -> RootfsImage:
        try:
            info = path.stat()
        except OSError as error:
            raise ImageError(f"image {path} cannot be read: {error.strerror}") from error
        key = (str(path), info.st_size, info.st_mtime_ns, allow_setuid)
        found = self._tars.get(key)
        if found is None:
            found = await self._once(repr(key), lambda: self._unpack(path, allow_setuid=allow_setuid))
            self._tars[key] = found
        return found

    async def _unpack(self, path: Path, *, allow_setuid: bool) -> RootfsImage:
        job = {
            "kind": "tar",
            "images": str(self._directory),
            "archive": str(path),
            "bytes_max": self._config.image_bytes_max,
            "allow_setuid": allow_setuid,
        }
        result = await _work(job, f"image {path}")
        return RootfsImage(result["digest"], result["root"], frozenset(os.listdir(result["root"])))  # noqa: PTH208

    def _permitted(self, image: str) -> Path:
        """Return the path of an image if it is one that may be used. ImageError."""
        if not image.startswith("/"):
            raise ImageError(f"image {image!r} is unknown: use `host`, or the absolute path of a directory or tar")
        try:
            path = Path(image).resolve(strict=True)
        except OSError as error:
            raise ImageError(f"image {image} cannot be found on this node: {error.strerror}") from error
        roots = self._config.image_roots
        if roots is not None and not any(path.is_relative_to(root) for root in roots):
            raise ImageError(f"image {image} lies outside the directories that this node's owner allows for images")
        shut = (*SYSTEM_DIRECTORIES, self._config.state_dir, self._config.images, *self._config.hidden_paths)
        if path == Path("/") or any(path.is_relative_to(one) or one.is_relative_to(path) for one in shut):
            raise ImageError(f"image {image} holds the host's own system or the agent's state; it can be no image")
        return path

    async def _once(self, what: str, work: Callable[[], Awaitable[Any]]) -> Any:
        """Wait for one preparation that all who want it share; a waiter who gives up does not stop it."""
        return await asyncio.shield(self._start(what, work))

    def _start(self, what: str, work: Callable[[], Awaitable[Any]]) -> "asyncio.Task[Any]":
        task = self._running.get(what)
        if task is None:
            task = self._running[what] = asyncio.ensure_future(work())
            task.add_done_callback(lambda done: self._done(what, done))
        return task

    def _done(self, what: str, task: "asyncio.Task[Any]") -> None:
        del self._running[what]
        if not task.cancelled():
            task.exception()  # told to whoever waits; a check in the background is tried again with the next use


def _directory_image(path: Path) -> RootfsImage:
    top = frozenset(entry.name for entry in path.iterdir())
    if not top & {"bin", "usr"}:
        raise ImageError(f"image {path} has neither /bin nor /usr: it is no root filesystem")
    if any(Path(user.pw_dir) == path for user in pwd.getpwall()):
        raise ImageError(f"image {path} is a home directory; it can be no image")
    info = path.stat()
    return RootfsImage(f"dir-{info.st_dev:x}-{info.st_ino:x}", str(path), top)


async def _work(job: dict[str, Any], what: str) -> dict[str, Any]:
    try:
        status, out, err = await run_module("kernpool_sandbox.imagework", json.dumps(job), timeout_s=WORK_TIMEOUT_S)
    except TimeoutError:
        raise ImageError(f"{what} was not ready after {WORK_TIMEOUT_S:.0f} s") from None
    if status:
        raise ImageError(f"{what} cannot be used: {err}")
    result: dict[str, Any] = json.loads(out)
    return result
