"""Images by path in real sandboxes: a tar and a directory, made of busybox or of the host's own programs."""

import os
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from kernpool_mesh.messages import Command, SandboxState, Template
from kernpool_mesh.reasons import EndReason
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.errors import ImageError, TemplateError
from tests.sandbox.conftest import Node, checked_node


def libraries(program: str) -> list[str]:
    """Return the shared libraries of a program, as ldd tells them."""
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [word for line in out.splitlines() for word in line.split() if word.startswith("/")]


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root filesystem of a few programs, with files of several owners and modes."""
    root = tmp_path_factory.mktemp("rootfs")
    for name in ("usr/bin", "usr/lib", "etc", "tmp", "home/app", "var"):
        (root / name).mkdir(parents=True)
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to("usr/bin" if link == "bin" else "usr/lib")
    for name in ("sh", "cat", "ls", "id", "stat", "true"):
        program = os.path.realpath(shutil.which(name) or "")
        if not program:
            pytest.skip(f"the host has no {name}")
        shutil.copy2(program, root / "usr/bin" / name)
        for library in libraries(program):
            (root / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, root / library.lstrip("/"))
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n")
    (root / "etc/marker").write_text("the image's own\n")
    (root / "etc/secret").write_text("readable by the image's root\n")
    (root / "etc/secret").chmod(0o600)
    shutil.copy2(root / "usr/bin/id", root / "usr/bin/suid-id")
    if os.geteuid() == 0:
        os.chown(root / "home/app", 1000, 1000)
    (root / "usr/bin/suid-id").chmod(0o4755)
    root.chmod(0o755)
    return root


@pytest.fixture(scope="module")
def archive(rootfs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "image.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(rootfs, arcname=".")
    return path


@pytest.mark.parametrize("kind", ["tar", "directory"])
async def test_a_sandbox_sees_the_image_and_writes_only_for_itself(
    node: Node, rootfs: Path, archive: Path, kind: str
) -> None:
    """One image, many sandboxes: what one writes neither the next nor the image sees."""
    template = Template(image=str(archive if kind == "tar" else rootfs))
    one, two = await node.sandbox(template), await node.sandbox(template)
    result = await node.sh(
        one,
        "cat /etc/marker /etc/secret /etc/hostname; echo changed > /etc/marker; echo new > /new; cat /etc/marker /new",
    )
    assert result.stdout == b"the image's own\nreadable by the image's root\nsandbox\nchanged\nnew\n", result
    result = await node.sh(two, "cat /etc/marker; ls /new /root /home")
    assert result.stdout.startswith(b"the image's own\n")
    assert b"new" not in result.stdout
    assert (rootfs / "etc/marker").read_text() == "the image's own\n"
    assert not (rootfs / "new").exists()
    if node.runtime.isolation.uids == "range":
        result = await node.sh(two, "stat -c %u:%g /home/app /etc/passwd; id -u", user="app")
        assert result.stdout == b"1000:1000\n0:0\n1000\n"
        result = await node.runtime.run(two, Command(["suid-id", "-u"], user="app"))
        assert result.stdout == b"1000\n", "setuid bits do not count"


async def test_setuid_counts_where_the_template_allows_it(node: Node, archive: Path) -> None:
    """`sudo` in an image; root of the sandbox, never of the node."""
    if node.runtime.isolation.uids != "range":
        pytest.skip("single-id node: there is no second user whom setuid could make root")
    box = await node.sandbox(Template(image=str(archive), allow_setuid=True))
    result = await node.runtime.run(box, Command(["suid-id", "-u"], user="app"))
    assert result.stdout == b"0\n"


async def test_a_tar_is_unpacked_once(node: Node, archive: Path) -> None:
    """The second sandbox of a large image starts in milliseconds, also after a restart of the agent."""
    import asyncio

    template = Template(image=str(archive))
    await asyncio.gather(*(node.sandbox(template) for _ in range(4)))
    unpacked = list((node.runtime._config.images / "tar").iterdir())
    assert len([path for path in unpacked if "setuid" not in path.name]) == 1


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("ubuntu", "use `host`, or the absolute path"),
        ("/no/such/image", "cannot be found"),
        ("/", "can be no image"),
        ("/etc", "can be no image"),
        ("/usr/share", "can be no image"),
        ("/proc/self/root", "can be no image"),
    ],
)
async def test_what_cannot_be_an_image_is_refused_and_nothing_is_made(node: Node, image: str, message: str) -> None:
    """A typing error, and a try to see the host through an image."""
    with pytest.raises(ImageError, match=message):
        await node.runtime.create("sb-1", Template(image=image), ttl_s=60)
    assert node.runtime.sandboxes() == []


async def test_the_agents_state_and_homes_can_be_no_image(node: Node, tmp_path: Path) -> None:
    """Neither the state directory, nor one that holds it, nor a user's home."""
    state = node.runtime._config.state_dir
    (state / "bin").mkdir()
    for path in (state, state.parent, node.runtime._config.images):
        with pytest.raises(ImageError, match="can be no image"):
            await node.runtime.create("sb-1", Template(image=str(path)), ttl_s=60)
    with pytest.raises(ImageError, match="neither /bin nor /usr"):
        await node.runtime.create("sb-1", Template(image=str(tmp_path)), ttl_s=60)


async def test_the_owner_may_narrow_where_images_lie(config: RuntimeConfig, rootfs: Path, tmp_path: Path) -> None:
    """The ceiling of node.toml: not even the spawner would mount another path."""
    async with checked_node(replace(config, image_roots=(tmp_path,))) as node:
        with pytest.raises(ImageError, match="outside the directories that this node's owner allows"):
            await node.sandbox(Template(image=str(rootfs)))
        box = await node.sandbox()
        assert (await node.sh(box, "echo host")).stdout == b"host\n"


async def test_a_broken_tar_is_told_to_all_who_wait_for_it(node: Node, tmp_path: Path) -> None:
    """A download that was cut; mended, the next create works."""
    import asyncio

    path = tmp_path / "image.tar"
    path.write_bytes(b"this is no tar")
    results = await asyncio.gather(*(node.sandbox(Template(image=str(path))) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, ImageError) for result in results), results
    assert "not a readable tar archive" in str(results[0])
    assert not any(one.state is SandboxState.RUNNING for one in node.runtime.sandboxes())
    assert not any(path.name.startswith("new-") for path in (node.runtime._config.images / "tar").iterdir())


async def test_an_image_without_the_command_says_so(node: Node, archive: Path) -> None:
    """No bash in a small image."""
    box = await node.sandbox(Template(image=str(archive)))
    result = await node.runtime.run(box, Command(["bash", "-c", "true"]))
    assert (result.reason, result.exit_code) == (EndReason.START_FAILED, 127)


async def test_host_and_setuid_do_not_go_together(node: Node) -> None:
    """The host's setuid programs never count."""
    with pytest.raises(TemplateError, match="needs an image of its own"):
        await node.sandbox(Template(allow_setuid=True))
