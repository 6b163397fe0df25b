"""`kernpool sandbox cp`."""

import argparse
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from kernpool.cli.common import connect
from kernpool.cli.errors import UsageError
from kernpool.cli.sandbox_ids import find_id
from kernpool.cli.terminal import Terminal
from kernpool.errors import KernpoolError, NotFoundError
from kernpool.results import FileInfo
from kernpool.sdk.sandbox import Sandbox

EPILOG = """\
examples:
  kernpool sandbox cp data.csv sb-k3v:/root/        into a directory
  kernpool sandbox cp sb-k3v:/root/out ./results    a file, or a directory with all in it
  kernpool sandbox cp sb-k3v:/root/out -            to stdout

A target that is a directory, or ends with /, takes the source in; symbolic links are followed on their way in and left
out on their way out."""

READ_BYTES: Final = 1 << 20
DEPTH_MAX: Final = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("source", metavar="SOURCE", help="PATH or ID:PATH; - is stdin")
    parser.add_argument("target", metavar="TARGET", help="PATH or ID:PATH; - is stdout")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Copy in or out."""
    source, target = _split(arguments.source), _split(arguments.target)
    if (source is None) is (target is None):
        raise UsageError("one of SOURCE and TARGET is in a sandbox: write it as ID:PATH")
    with connect(terminal) as client:
        if target is not None:
            sandbox = client.sandboxes.handle(find_id(client, target[0]))
            _copy_in(arguments.source, sandbox, target[1])
        elif source is not None:
            sandbox = client.sandboxes.handle(find_id(client, source[0]))
            _copy_out(sandbox, source[1], arguments.target, terminal)
    return 0


def _split(text: str) -> tuple[str, str] | None:
    """Take ID:PATH apart; None for a path here (one with a slash before its colon is a path)."""
    name, colon, path = text.partition(":")
    if not colon or not name or "/" in name or name.startswith("."):
        return None
    return name, path or "/"


# --- in ---


def _copy_in(source: str, sandbox: Sandbox, target: str) -> None:
    if source == "-":
        sandbox.files.write(target, _pieces(sys.stdin.buffer))
        return
    local = Path(source)
    if not local.exists():
        raise UsageError(f"there is no file {source}")
    if target.endswith("/") or _is_directory(sandbox, target):
        target = str(PurePosixPath(target) / local.resolve().name)
    _put(local, sandbox, target, 0)


def _put(local: Path, sandbox: Sandbox, target: str, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise KernpoolError(f"{local} is nested more than {DEPTH_MAX} directories deep.")
    try:
        if local.is_dir():
            sandbox.files.mkdir(target)
            for child in sorted(local.iterdir()):
                _put(child, sandbox, str(PurePosixPath(target) / child.name), depth + 1)
        elif local.is_file():
            with local.open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o777
                sandbox.files.write(target, _pieces(file), mode=mode)
    except OSError as error:
        raise KernpoolError(f"Cannot read {local}: {error.strerror}.") from error


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(READ_BYTES):
        yield piece


def _is_directory(sandbox: Sandbox, path: str) -> bool:
    try:
        return sandbox.files.stat(path).type == "dir"
    except NotFoundError:
        return False


# --- out ---


def _copy_out(sandbox: Sandbox, source: str, target: str, terminal: Terminal) -> None:
    found = sandbox.files.stat(source)
    if target == "-":
        if found.type == "dir":
            raise UsageError(f"{source} is a directory: copy it to one")
        for piece in sandbox.files.iter(source):
            terminal.write(piece)
        return
    local = Path(target)
    if target.endswith("/") or local.is_dir():
        local = local / (PurePosixPath(source).name or sandbox.id)
    _get(sandbox, source, found, local, terminal, 0)


def _get(sandbox: Sandbox, source: str, found: FileInfo, local: Path, terminal: Terminal, depth: int) -> None:
    """Fetch a file or a tree; what is inside may be hostile, so names stay names and links are not made."""
    if depth > DEPTH_MAX:
        raise KernpoolError(f"{source} is nested more than {DEPTH_MAX} directories deep.")
    try:
        if found.type == "dir":
            local.mkdir(exist_ok=True)
            for child in sandbox.files.list(source):
                if child.name in ("", ".", "..") or "/" in child.name or "\0" in child.name:
                    raise KernpoolError(f"{sandbox.id} has a file named {child.name!r} in {source}; it is not copied.")
                inner = str(PurePosixPath(source) / child.name)
                _get(sandbox, inner, child, local / child.name, terminal, depth + 1)
        elif found.type == "file":
            _fetch(sandbox, source, local, found.mode & 0o777)
        else:
            terminal.note(f"{source}: left out ({found.type})")
    except OSError as error:
        raise KernpoolError(f"Cannot write {local}: {error.strerror}.") from error


def _fetch(sandbox: Sandbox, source: str, local: Path, mode: int) -> None:
    """Write beside the target and put it there when it is whole."""
    part = local.with_name(f".{local.name}.part")
    try:
        with part.open("wb") as file:
            for piece in sandbox.files.iter(source):
                file.write(piece)
            os.fchmod(file.fileno(), mode)
        part.replace(local)
    finally:
        part.unlink(missing_ok=True)
