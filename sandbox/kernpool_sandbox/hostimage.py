"""The image `host`: the node's own programs under a private overlay, with everything else made up.

Two directories are made once in the state directory and shared by all sandboxes: `root` (skeleton.py) and, where host
files are mapped into the sandbox (a root node), `hide` (hostscan.py). They lie under a digest of what they hold: an
image in use is never changed, a changed host gives a new one.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from kernpool_sandbox import hostscan, skeleton
from kernpool_sandbox.hostscan import ALWAYS_HIDDEN, TreeScan

VERSION = 2
FULL_SCAN_AFTER_S = 3600.0
"""A change of a file's mode alone does not change its directory; so now and then everything is looked at."""
PACKAGE_DATABASES = ("var/lib/dpkg/status", "var/lib/rpm/rpmdb.sqlite", "var/lib/rpm/Packages", "lib/apk/db/installed")
"""A change of one of these means that packages came or went: everything is looked at anew."""
HOST_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""All that a host image may ever show of the host."""
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


@final
@dataclass(frozen=True, slots=True)
class HostTree:
    """One tree of the host that sandboxes see."""

    source: str
    """Absolute path on the host and inside."""
    hide_layer: str = ""
    """Directory laid over it; empty where the host's own permissions hold (unmapped)."""


@final
@dataclass(frozen=True, slots=True)
class HostImage:
    """A host image that is ready to be mounted."""

    digest: str
    skeleton: str
    """Directory that becomes the sandbox's root, under a private overlay."""
    trees: tuple[HostTree, ...]
    has_local: bool
    """The host has a /usr/local on which something can be mounted."""
    owner: int = 0
    """Host uid of whoever made the directories: they can be shown as they are where this is the sandbox's root."""


def prepare(
    images: Path, *, hide: bool, forbidden: Iterable[str], now_unix_s: float, host: Path = Path("/")
) -> HostImage:
    """Scan the host, make the image's directories if they are not there yet, and describe them. Slow; OSError.

    `hide`: host files will be mapped into sandboxes, so what others may not read has to be hidden.
    """
    base = images / "host"
    base.mkdir(parents=True, exist_ok=True)
    trees, links = _top_level(host)
    hidden = frozenset(path for path in (*ALWAYS_HIDDEN, *forbidden) if any(path.startswith(f"{t}/") for t in trees))
    scans = _scan_all(base, trees, hidden, now_unix_s, host) if hide else []
    what = repr((VERSION, hide, sorted(links.items()), skeleton.stamp(host), hostscan.stamp(scans)))
    digest = hashlib.sha256(what.encode(errors="surrogateescape")).hexdigest()[:16]
    final_path = base / digest
    if not final_path.exists():
        _build(base / f"new-{os.getpid()}", final_path, scans, links, host)
    return HostImage(
        digest,
        str(final_path / "root"),
        tuple(HostTree(tree, str(final_path / "hide" / hostscan.layer_name(tree)) if hide else "") for tree in trees),
        (host / "usr/local").is_dir(),
        os.geteuid(),
    )


def remove_unused(images: Path, used: frozenset[str]) -> list[str]:
    """Remove host images whose digest nobody uses any more, and half-made ones; return what was removed."""
    base = images / "host"
    removed = []
    for path in base.iterdir() if base.is_dir() else ():
        if path.is_dir() and path.name not in used:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
    return removed


def _build(building: Path, final_path: Path, scans: Iterable[TreeScan], links: dict[str, str], host: Path) -> None:
    shutil.rmtree(building, ignore_errors=True)
    (building / "root").mkdir(parents=True)
    skeleton.build(building / "root", host=host, top_links=links)
    hostscan.write_hide_layer(building / "hide", scans)
    try:
        building.rename(final_path)
    except OSError:
        shutil.rmtree(building)
        if not final_path.exists():  # else another agent made the same image at the same time
            raise


def _top_level(host: Path) -> tuple[list[str], dict[str, str]]:
    """Return the trees that are shown and the links of a merged /usr (bin -> usr/bin)."""
    trees, links = ["/usr"], {}
    for name in _TOP:
        path = host / name
        if path.is_symlink():
            links[name] = str(path.readlink())
        elif path.is_dir():
            trees.append(f"/{name}")
    return trees, links


def _scan_all(
    base: Path, trees: Iterable[str], forbidden: frozenset[str], now_unix_s: float, host: Path
) -> list[TreeScan]:
    stamp = {"version": VERSION, "forbidden": sorted(forbidden), "packages": _package_stamp(host)}
    before, scanned_unix_s = _load_scan(base / "scan.json", stamp, now_unix_s)
    scans = [hostscan.scan(tree, forbidden, before.get(tree)) for tree in trees]
    if all(before.get(scan.root) == scan for scan in scans):
        return scans
    text = json.dumps(stamp | {"scanned_unix_s": scanned_unix_s, "trees": hostscan.to_json(scans)})
    temporary = base / f"scan.json.{os.getpid()}"
    temporary.write_text(text)
    temporary.replace(base / "scan.json")
    return scans


def _load_scan(path: Path, stamp: dict[str, Any], now_unix_s: float) -> tuple[dict[str, TreeScan], float]:
    """Return the last scan and when all was looked at; nothing and now if it is missing, old or of other inputs."""
    try:
        data = json.loads(path.read_text())
        fresh = 0 <= now_unix_s - data["scanned_unix_s"] < FULL_SCAN_AFTER_S
        if fresh and all(data[key] == value for key, value in stamp.items()):
            return hostscan.from_json(data["trees"]), data["scanned_unix_s"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}, now_unix_s  # no scan yet, or one of an earlier version
    return {}, now_unix_s


def _package_stamp(host: Path) -> list[int]:
    stamps = []
    for name in PACKAGE_DATABASES:
        try:
            stamps.append((host / name).stat().st_mtime_ns)
        except OSError:
            stamps.append(0)
    return stamps
