"""Unpacking a stranger's tar."""

import io
import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kernpool_sandbox.errors import ImageError
from kernpool_sandbox.rootfs import UnpackPolicy, digest, unpack

POLICY = UnpackPolicy(keep_owners=os.geteuid() == 0)


def entry(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime = 1_000_000_000
    info.mode = 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def file(name: str, content: bytes = b"x", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, size=len(content), **fields), content


def directory(name: str, **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, **({"type": tarfile.DIRTYPE, "mode": 0o755} | fields)), b""


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=kind, linkname=to), b""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def make(*entries: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
        path = tmp_path / "image.tar"
        with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
            for info, content in entries:
                tar.addfile(info, io.BytesIO(content))
        return path

    return make


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_an_ordinary_image_is_unpacked_as_it_is(make: Callable[..., Path], tmp_path: Path, mode: str) -> None:
    """The output of `docker export`, plain or compressed."""
    archive = make(
        directory("./"),
        directory("usr/bin", mode=0o555),
        file("usr/bin/tool", b"#!/bin/sh\n", mode=0o755, uid=0, gid=0),
        link("bin", "usr/bin"),
        link("etc/mtab", "/proc/self/mounts"),
        link("usr/bin/again", "usr/bin/tool", tarfile.LNKTYPE),
        file("home/user/f", b"hers", uid=1000, gid=1000, mode=0o600),
        file("home/far", b"?", uid=100_000, gid=100_000),
        file("run/x", b"1"),
        file("run/x", b"2"),
        mode=mode,
    )
    root = tmp_path / "out"
    unpack(archive, root, POLICY)
    assert (root / "usr/bin/tool").read_text() == "#!/bin/sh\n"
    assert (root / "usr/bin/again").samefile(root / "usr/bin/tool")
    assert (root / "bin").readlink() == Path("usr/bin")
    assert (root / "etc/mtab").readlink() == Path("/proc/self/mounts")
    assert (root / "run/x").read_text() == "2"
    assert (root / "usr/bin/tool").stat().st_mtime == 1_000_000_000
    if POLICY.keep_owners:
        assert stat.S_IMODE((root / "usr/bin").stat().st_mode) == 0o555
        assert (root / "home/user/f").stat().st_uid == 1000
        assert (root / "home/far").stat().st_uid == 65534
    assert len(digest(archive)) == 64


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([file("../evil")], "leads out of the image"),
        ([file("a/../../evil")], "leads out of the image"),
        ([file("/etc/evil")], "absolute name"),
        ([link("out", "/etc"), file("out/evil")], "passes through out, not a directory"),
        ([link("a", "b"), link("b", "/tmp"), directory("a/evil")], "passes through a"),
        ([link("evil", "/etc/shadow", tarfile.LNKTYPE)], "absolute name"),
        ([link("evil", "../../etc/shadow", tarfile.LNKTYPE)], "leads out of the image"),
        ([link("l", "/etc/shadow"), link("evil", "l", tarfile.LNKTYPE)], "no earlier file"),
        ([link("d", "/etc"), link("evil", "d/shadow", tarfile.LNKTYPE)], "passes through d"),
        ([(entry("sda", type=tarfile.BLKTYPE, devmajor=8), b"")], "is a device"),
        ([(entry("mem", type=tarfile.CHRTYPE, devmajor=1), b"")], "is a device"),
        ([directory("d"), file("d/f"), file("d")], "replaces a directory"),
        ([file("/".join("d" * 200))], "too long a name"),
        ([file("n" * 5000)], "too long a name"),
        ([file(f"f{number}") for number in range(30)], "more than 20 entries"),
        ([file("big", b"x" * 3_000_000)], "unpacks to more than 2 MiB"),
    ],
)
def test_a_hostile_archive_is_refused_and_nothing_is_left(
    make: Callable[..., Path], tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]], message: str
) -> None:
    """An image from the internet tries to write over the node's own files, or to fill its disk."""
    root = tmp_path / "out"
    policy = UnpackPolicy(bytes_max=2 << 20, entries_max=20, keep_owners=POLICY.keep_owners)
    with pytest.raises(ImageError, match=message):
        unpack(make(*entries), root, policy)
    assert not root.exists()
    assert not (tmp_path / "evil").exists()


def test_devices_below_dev_are_left_out(make: Callable[..., Path], tmp_path: Path) -> None:
    """debootstrap's tars have some; a sandbox has its own /dev."""
    root = tmp_path / "out"
    unpack(make(directory("dev"), (entry("dev/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3), b"")), root, POLICY)
    assert (root / "dev").is_dir()
    assert list((root / "dev").iterdir()) == []


@pytest.mark.parametrize(("allowed", "mode"), [(False, 0o755), (True, 0o6755)])
def test_setuid_bits_are_dropped_unless_the_template_allows_them(
    make: Callable[..., Path], tmp_path: Path, allowed: bool, mode: int
) -> None:
    """An image that was made for a machine of its own."""
    root = tmp_path / "out"
    policy = UnpackPolicy(allow_setuid=allowed, keep_owners=POLICY.keep_owners)
    unpack(make(file("su", mode=0o6755), directory("shared", mode=0o2775)), root, policy)
    assert stat.S_IMODE((root / "su").stat().st_mode) == mode
    assert stat.S_IMODE((root / "shared").stat().st_mode) == 0o2775


def test_without_root_its_only_owner_can_read_everything(make: Callable[..., Path], tmp_path: Path) -> None:
    """A rootless node squashes the image to its user."""
    root = tmp_path / "out"
    unpack(make(directory("d", mode=0), file("d/f", mode=0)), root, UnpackPolicy(keep_owners=False))
    assert stat.S_IMODE((root / "d").stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "d/f").stat().st_mode) == 0o400
    assert (root / "d/f").stat().st_uid == os.geteuid()


@pytest.mark.parametrize("content", [b"", b"this is no tar", b"\x1f\x8b\x08\x00garbage", os.urandom(2048)])
def test_what_is_no_tar_is_told_with_its_name(tmp_path: Path, content: bytes) -> None:
    """A download that was cut, or an HTML error page."""
    archive = tmp_path / "image.tar"
    archive.write_bytes(content)
    with pytest.raises(ImageError, match=r"image\.tar is not a readable tar archive"):
        unpack(archive, tmp_path / "out", POLICY)
    assert not (tmp_path / "out").exists()


def test_a_cut_archive_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    """The disk was full when the image was copied."""
    archive = make(file("a", b"x" * 100_000))
    archive.write_bytes(archive.read_bytes()[:50_000])
    with pytest.raises(ImageError):
        unpack(archive, tmp_path / "out", POLICY)
    assert not (tmp_path / "out").exists()
