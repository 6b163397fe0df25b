"""What of the host is shown inside: the scan, the hide layer and the made-up rest."""

import json
import os
import socket
import stat
import time
from pathlib import Path

import pytest

from kernpool_sandbox import hostimage, hostscan, skeleton
from kernpool_sandbox.hostscan import TreeScan, scan

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="keeps owners, which needs root")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A /usr with everything that must not be seen as it is."""
    tree = tmp_path / "usr"
    for directory in ("bin", "share/doc", "share/secret", "lib"):
        (tree / directory).mkdir(parents=True)
    for name, mode in {"bin/ls": 0o755, "bin/su": 0o4755, "bin/wall": 0o2755, "bin/sudo": 0o4711}.items():
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    (tree / "share/secret").chmod(0o700)
    (tree / "share/secret/key").write_text("hidden with its directory")
    (tree / "share/doc/readme").write_text("read me")
    (tree / "lib/key.pem").write_text("a key")
    (tree / "lib/key.pem").chmod(0o600)
    (tree / "lib/link").symlink_to("key.pem")
    os.mkfifo(tree / "lib/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tree / "lib/sock"))
    return tree


def actions(result: TreeScan, tree: Path) -> dict[str, str]:
    return {os.path.relpath(path, tree): action for path, action in result.actions()}


def test_the_scan_finds_all_that_others_may_not_read(tree: Path) -> None:
    """An administrator keeps a key of mode 0600 under /usr; inside, root would read it as its own."""
    found = actions(scan(str(tree), frozenset()), tree)
    assert found == {
        "bin/su": "strip",
        "bin/wall": "strip",
        "bin/sudo": "hide",
        "lib/key.pem": "hide",
        "lib/pipe": "hide",
        "lib/sock": "hide",
        "share/secret": "hide",
    }


def test_forbidden_paths_are_hidden_with_all_in_them(tree: Path) -> None:
    """Somebody put the agent's state under /usr/local."""
    result = scan(str(tree), frozenset({f"{tree}/share/doc"}))
    assert actions(result, tree)["share/doc"] == "hide"
    assert f"{tree}/share/doc" not in result.directories


def test_a_later_scan_looks_only_into_changed_directories(tree: Path) -> None:
    """Fifteen thousand directories are compared in 0.1 s."""
    first = scan(str(tree), frozenset())
    first.directories[f"{tree}/bin"].actions["ls"] = "hide"  # a mark that only a new look would remove
    (tree / "lib/new.key").write_text("new")
    (tree / "lib/new.key").chmod(0o600)
    second = scan(str(tree), frozenset(), first)
    found = actions(second, tree)
    assert found["lib/new.key"] == "hide"
    (tree / "share/doc").chmod(0o700)
    third = scan(str(tree), frozenset(), second)
    assert actions(third, tree)["share/doc"] == "hide", "closed since: its parent did not change"
    assert f"{tree}/share/doc" not in third.directories
    assert found["bin/ls"] == "hide"
    again = hostscan.from_json(json.loads(json.dumps(hostscan.to_json([second]))))
    assert again == {str(tree): second}


def test_the_hide_layer_has_whiteouts_and_stripped_copies(tree: Path, tmp_path: Path) -> None:
    """Overlaid on /usr it shows `su` without its bit and no key."""
    target = tmp_path / "hide"
    try:
        hostscan.write_hide_layer(target, [scan(str(tree), frozenset())])
    except PermissionError:
        pytest.skip("this kernel lets only root make whiteouts")
    layer = target / hostscan.layer_name(str(tree))
    whiteout = (layer / "lib/key.pem").lstat()
    assert stat.S_ISCHR(whiteout.st_mode)
    assert whiteout.st_rdev == 0
    assert stat.S_ISCHR((layer / "share/secret").lstat().st_mode)
    assert (layer / "bin/su").read_text() == "bin/su"
    assert stat.S_IMODE((layer / "bin/su").lstat().st_mode) == 0o755
    assert not (layer / "bin/ls").exists()
    assert stat.S_IMODE((layer / "bin").lstat().st_mode) == stat.S_IMODE((tree / "bin").lstat().st_mode)


def test_the_made_up_part_holds_nothing_secret_of_the_host(tmp_path: Path) -> None:
    """The host's passwords, users, keys, tokens and settings stay outside."""
    host = tmp_path / "host"
    etc = host / "etc"
    for directory in ("ssl/certs", "ssl/private", "alternatives", "ssh"):
        (etc / directory).mkdir(parents=True)
    for name in ("shadow", "passwd", "pip.conf", "ssh/ssh_host_key", "ssl/private/key.pem", "machine-id", "hostname"):
        (etc / name).write_text("secret of the host")
    (etc / "ssl/certs/public.pem").write_text("a certificate")
    (etc / "ssl/certs/private.pem").write_text("secret of the host")
    (etc / "ssl/certs/private.pem").chmod(0o640)
    (etc / "ld.so.cache").write_text("cache")
    (etc / "alternatives/vi").symlink_to("/usr/bin/vim")
    outside = tmp_path / "nix"
    outside.write_text("UTC")
    (etc / "localtime").symlink_to(outside)
    target = tmp_path / "root"
    target.mkdir()
    skeleton.build(target, host=host, top_links={"bin": "usr/bin"})
    found = {str(path.relative_to(target)): path for path in target.rglob("*")}
    texts = [path.read_text() for path in found.values() if path.is_file() and not path.is_symlink()]
    assert not any("secret of the host" in text for text in texts)
    assert {"etc/ssl/certs/public.pem", "etc/ld.so.cache", "etc/passwd", "home/user", "var/tmp"} <= found.keys()
    assert not {"etc/ssl/private", "etc/ssh", "etc/machine-id", "etc/pip.conf"} & found.keys()
    assert (target / "etc/alternatives/vi").readlink() == Path("/usr/bin/vim")
    assert (target / "etc/localtime").read_text() == "UTC"
    assert not (target / "etc/localtime").is_symlink()
    assert (target / "bin").readlink() == Path("usr/bin")
    assert stat.S_IMODE((target / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((target / "root").stat().st_mode) == 0o700


@needs_root
def test_the_host_image_is_made_once_and_named_after_what_it_holds(tmp_path: Path) -> None:
    """A second agent start on an unchanged host makes nothing new; unused ones go."""
    now = time.time()
    first = hostimage.prepare(tmp_path, hide=True, forbidden=[str(tmp_path)], now_unix_s=now)
    for _ in range(5):  # somebody else may change the host meanwhile
        before, first = first, hostimage.prepare(tmp_path, hide=True, forbidden=[str(tmp_path)], now_unix_s=now + 5)
        if before == first:
            break
    assert before == first
    hostimage.remove_unused(tmp_path, frozenset({first.digest}))
    assert first.trees[0].source == "/usr"
    assert Path(first.trees[0].hide_layer, "local").is_dir()
    assert [path.name for path in (tmp_path / "host").iterdir() if path.is_dir()] == [first.digest]
    unhidden = hostimage.prepare(tmp_path, hide=False, forbidden=[], now_unix_s=now)
    assert unhidden.digest != first.digest
    assert hostimage.remove_unused(tmp_path, frozenset({first.digest})) == [unhidden.digest]
    assert Path(first.skeleton).is_dir()
    assert not Path(unhidden.skeleton).exists()
