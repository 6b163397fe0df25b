"""Finds what of the host's own /usr, /bin, /lib must not be seen inside: all that is not world-readable, or setuid.

Mapped into a sandbox, the host's files look owned by the sandbox's root, who may read even mode 0600. So every file and
directory that others may not read is hidden, as are sockets, pipes, devices and mount points; a setuid or setgid file
is replaced by a copy without the bit. A scan remembers when each directory changed (ctime): the next one looks only
into those that changed since.
"""

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, final

Action = Literal["hide", "strip"]

ALWAYS_HIDDEN = ("/usr/local/etc", "/usr/local/var")
"""Where administrators keep settings and state of their own: never shown, whatever the modes say."""


@final
@dataclass(slots=True)
class DirectoryScan:
    """What one directory holds."""

    ctime_ns: int
    children: list[str] = field(default_factory=list)
    """Names of the sub-directories that are shown."""
    actions: dict[str, Action] = field(default_factory=dict)
    """Entry name -> what to do with it."""


@final
@dataclass(slots=True)
class TreeScan:
    """What a whole tree holds, by absolute directory path."""

    root: str
    directories: dict[str, DirectoryScan] = field(default_factory=dict)

    def actions(self) -> Iterable[tuple[str, Action]]:
        """Return (absolute path, action) of everything that must not be seen as it is, sorted."""
        for directory in sorted(self.directories):
            for name, action in sorted(self.directories[directory].actions.items()):
                yield f"{directory}/{name}", action


def scan(root: str, forbidden: frozenset[str], before: TreeScan | None = None) -> TreeScan:
    """Scan one tree; `forbidden` paths are hidden with all in them. Unchanged directories come from `before`."""
    result = TreeScan(root)
    known: Mapping[str, DirectoryScan] = before.directories if before is not None else {}
    waiting = [root]
    while waiting:
        path = waiting.pop()
        try:
            info = os.lstat(path)
            old = known.get(path)
            found = old if old is not None and old.ctime_ns == info.st_ctime_ns else _look(path, info, forbidden)
        except FileNotFoundError:
            continue  # removed meanwhile
        if _shown(info) or path == root:
            result.directories[path] = found
            waiting.extend(f"{path}/{name}" for name in found.children)
        else:
            _hide(result, path)
    return result


def _shown(info: os.stat_result) -> bool:
    """Whether others may list and enter a directory."""
    return info.st_mode & 0o005 == 0o005


def _hide(result: TreeScan, path: str) -> None:
    """A directory was closed since its parent was looked at: a change of its mode does not show in its parent."""
    parent, _, name = path.rpartition("/")
    old = result.directories[parent]
    actions: dict[str, Action] = {**old.actions, name: "hide"}
    result.directories[parent] = DirectoryScan(old.ctime_ns, [one for one in old.children if one != name], actions)


def _look(path: str, own: os.stat_result, forbidden: frozenset[str]) -> DirectoryScan:
    found = DirectoryScan(own.st_ctime_ns)
    device = own.st_dev
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.path in forbidden:
                found.actions[entry.name] = "hide"
                continue
            if entry.is_symlink():
                continue  # a link shows nothing by itself; what it points to is looked at where it lies
            _judge(found, entry, entry.stat(follow_symlinks=False), device)
    return found


def _judge(found: DirectoryScan, entry: "os.DirEntry[str]", info: os.stat_result, device: int) -> None:
    mode = info.st_mode
    if stat.S_ISDIR(mode):
        if _shown(info) and info.st_dev == device:
            found.children.append(entry.name)
        else:
            found.actions[entry.name] = "hide"
    elif not stat.S_ISREG(mode) or not mode & 0o004:
        found.actions[entry.name] = "hide"
    elif mode & (stat.S_ISUID | stat.S_ISGID):
        found.actions[entry.name] = "strip"


def to_json(scans: Iterable[TreeScan]) -> dict[str, object]:
    """Return what `from_json` reads, in few bytes: there are some ten thousand directories."""
    return {
        tree.root: {path: [found.ctime_ns, found.children, found.actions] for path, found in tree.directories.items()}
        for tree in scans
    }


def from_json(data: Mapping[str, Mapping[str, list[object]]]) -> dict[str, TreeScan]:
    """Read what `to_json` returned; raises KeyError, TypeError or ValueError on anything else."""
    result = {}
    for root, directories in data.items():
        tree = result[root] = TreeScan(root)
        for path, (ctime_ns, children, actions) in directories.items():
            tree.directories[path] = DirectoryScan(int(str(ctime_ns)), _names(children), _actions(actions))
    return result


def _names(value: object) -> list[str]:
    if not isinstance(value, list):
        raise TypeError("a scan's children must be a list")
    return [str(name) for name in value]


def _actions(value: object) -> dict[str, Action]:
    if not isinstance(value, dict):
        raise TypeError("a scan's actions must be a mapping")
    return {str(name): "strip" if action == "strip" else "hide" for name, action in value.items()}


def write_hide_layer(target: Path, trees: Iterable[TreeScan]) -> None:
    """Make the directories that are laid over the host's trees: whiteouts and stripped copies.

    `target` gets one directory for each tree (its path with `_` for `/`). Needs the right to make whiteouts, which
    Linux gives to everybody (5.8 and later) or to root. OSError.
    """
    for tree in trees:
        layer = target / layer_name(tree.root)
        _mirror(tree.root, layer)
        for path, action in tree.actions():
            try:
                _act(tree.root, path, action, layer)
            except FileNotFoundError:
                continue  # removed on the host meanwhile


def stamp(trees: Iterable[TreeScan]) -> list[object]:
    """Return what decides about a hide layer: the actions, and the files of which copies are made."""
    stamps: list[object] = []
    for path, action in (row for tree in trees for row in tree.actions()):
        try:
            info = os.lstat(path)
        except FileNotFoundError:
            continue
        stamps.append((path, action, info.st_mode, info.st_size, info.st_mtime_ns) if action == "strip" else path)
    return stamps


def _act(root: str, path: str, action: Action, layer: Path) -> None:
    inside = layer / os.path.relpath(path, root)
    _mirror_parents(root, Path(path).parent, layer)
    if action == "strip":
        _copy_stripped(path, inside)
    else:
        os.mknod(inside, stat.S_IFCHR, os.makedev(0, 0))


def layer_name(root: str) -> str:
    """Return the name of a tree's directory in a hide layer."""
    return root.strip("/").replace("/", "_")


def _mirror_parents(root: str, parent: Path, layer: Path) -> None:
    relative = parent.relative_to(root)
    for depth in range(1, len(relative.parts) + 1):
        part = Path(*relative.parts[:depth])
        if not (layer / part).exists():
            _mirror(f"{root}/{part}", layer / part)


def _mirror(source: str, target: Path) -> None:
    """Make a directory that looks like its source: overlay shows the topmost one's owner, mode and time."""
    info = os.lstat(source)
    target.mkdir(parents=True)
    if os.geteuid() == 0:
        os.chown(target, info.st_uid, info.st_gid)
    target.chmod(stat.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _copy_stripped(source: str, target: Path) -> None:
    info = os.lstat(source)
    target.write_bytes(Path(source).read_bytes())
    if os.geteuid() == 0:
        os.chown(target, info.st_uid, info.st_gid)
    target.chmod(stat.S_IMODE(info.st_mode) & 0o777)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
