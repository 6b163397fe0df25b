"""One sandbox from its birth to its end."""

import asyncio
import errno
import fcntl
import os
import signal
import stat
import termios
from pathlib import Path
from typing import Any

import pytest

from kernpool_sandbox.kpinit.errors import GoneError, SetupError
from kernpool_sandbox.kpinit.init import InitClient
from kernpool_sandbox.kpinit.plan import Bind, Dir, ExecCause, ExecSpec, File, Kind, Overlay, Rlimit, Symlink, Tmpfs
from kernpool_sandbox.kpinit.record import EndCause
from kernpool_sandbox.kpinit.spawner import SpawnerClient


async def test_a_new_sandbox_says_hello_when_it_is_ready(node: Any) -> None:
    """The agent must know from the first answer whom it talks to and whether it was handed out."""
    box = await node.park()
    hello = box.client.hello
    assert (hello.kind, hello.id, hello.claimed, hello.execs) == (Kind.SANDBOX, box.id, False, 0)
    assert hello.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert hello.pid == box.spawned.pid


async def test_a_command_has_separate_output_streams_and_a_status(node: Any) -> None:
    """A test runner's stderr must not end up in the middle of its JSON on stdout."""
    box = await node.box()
    result = await box.run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.stdout, result.stderr, result.code) == (b"out\n", b"err\n", 7)
    assert result.exit.cause is ExecCause.EXITED


async def test_a_command_killed_by_itself_reports_the_signal(node: Any) -> None:
    """A segfault is 139, not 'failed'."""
    box = await node.box()
    result = await box.run("sh", "-c", "kill -SEGV $$")
    assert result.code == 128 + signal.SIGSEGV


async def test_stdin_reaches_the_command_and_its_close_is_the_end(node: Any) -> None:
    """`cat` must end when the client has sent everything."""
    box = await node.box()
    result = await box.run("cat", stdin=b"hello\n")
    assert result.stdout == b"hello\n"


async def test_without_stdin_a_command_reads_nothing(node: Any) -> None:
    """A tool that asks a question must not hang for ever."""
    box = await node.box()
    assert (await box.run("cat")).stdout == b""


@pytest.mark.parametrize(
    ("argv", "cwd", "code"),
    [
        (("no-such-command",), "", errno.ENOENT),
        (("/etc/passwd",), "", errno.EACCES),
        (("/tmp/garbage",), "", errno.ENOEXEC),
        (("true",), "/nowhere", errno.ENOENT),
    ],
)
async def test_a_command_that_cannot_start_is_an_errno_at_once(
    node: Any, argv: tuple[str, ...], cwd: str, code: int
) -> None:
    """`pytest: not found` must not look like a failing test."""
    box = await node.box()
    await box.sh("printf '\\1\\2\\3' > /tmp/garbage; chmod +x /tmp/garbage")
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        await box.run(*argv, cwd=cwd)
    assert caught.value.errno == code
    assert [row.exec_id for row in await box.client.list()] == []


async def test_the_environment_of_the_claim_holds_for_every_command(node: Any) -> None:
    """Secrets and settings are given once, with the hand-out; a command may override them."""
    box = await node.park()
    await box.client.claim("token", ttl_s=60, env={"A": "claim", "B": "claim"})
    text = await box.sh('echo "$A $B $C $HOME $USER $PATH"', env={"B": "exec", "C": ""})
    assert text.split(" ", 3)[:2] == ["claim", "exec"]
    assert "/root root /usr/local/sbin:" in text


async def test_a_command_may_be_long_up_to_the_frame(node: Any) -> None:
    """`xargs` makes long commands: all of it arrives, or nothing starts."""
    box = await node.box()
    words = tuple(f"{number:06d}" for number in range(7000))
    assert (await box.run("sh", "-c", "echo $#", "sh", *words)).stdout == b"7000\n"
    env = {f"V{number}": "x" for number in range(5000)}
    assert int(await box.sh("env | grep -c ^V", env=env)) == 5000
    with pytest.raises(OSError, match="limit of 131072"):
        await box.run("echo", "x" * 131072)
    with pytest.raises(OSError, match="Invalid argument") as caught:
        await box.run("true", env={"": "x"})
    assert "environment" in str(caught.value.filename)


async def test_a_sandbox_is_handed_out_once(node: Any) -> None:
    """Two agents, or a repeated request, must not both believe that they own it."""
    box = await node.park(hostname="parked")
    await box.client.claim("mine", ttl_s=60, hostname="mine", entropy=bytes(range(16)))
    await box.client.claim("mine", ttl_s=30)
    with pytest.raises(OSError, match="busy") as caught:
        await box.client.claim("yours", ttl_s=60)
    assert caught.value.errno == errno.EBUSY
    assert await box.sh("uname -n; cat /etc/machine-id") == f"mine\n{bytes(range(16)).hex()}\n"


async def test_a_time_to_live_must_be_given(node: Any) -> None:
    """Nothing lives for ever by accident."""
    box = await node.park()
    with pytest.raises(OSError, match="Invalid"):
        await box.client.extend(5)
    with pytest.raises(OSError, match="Invalid"):
        await box.client.claim("t", ttl_s=1e12)


async def test_an_exec_id_in_use_is_refused(node: Any) -> None:
    """A repeated request must not start the command twice."""
    box = await node.box()
    await box.run("true", ack=False)
    with pytest.raises(FileExistsError):
        await box.client.exec(ExecSpec(101, ("true",)))
    rows = await box.client.list()
    assert [(row.exec_id, row.running, row.exit_code) for row in rows] == [(101, False, 0)]
    await box.client.ack(101)
    assert (await box.client.list()) == []


async def test_a_running_command_can_be_signalled_and_not_acknowledged(node: Any) -> None:
    """Ctrl-C in the client's terminal."""
    box = await node.box()
    started = await box.client.exec(ExecSpec(9, ("sleep", "1000")))
    with pytest.raises(OSError, match="busy"):
        await box.client.ack(9)
    await box.client.signal(9, signal.SIGINT)
    exited = await asyncio.wait_for(box.exit_of(9), 10)
    assert (exited.cause, exited.exit_code) == (ExecCause.SIGNALLED, 128 + signal.SIGINT)
    with pytest.raises(ProcessLookupError):
        await box.client.signal(9, signal.SIGINT)
    with pytest.raises(ProcessLookupError):
        await box.client.signal(10, signal.SIGINT)
    os.close(started.stdout_fd)
    os.close(started.stderr_fd)


async def test_users_come_from_the_sandbox_own_files(root_node: Any) -> None:
    """`user: bob` means the image's bob, with his groups and home."""
    box = await root_node.box()
    assert await box.sh("id -u; id -g; id -G; echo $HOME $USER", user="bob") == "1000\n1000\n1000 50\n/home/bob bob\n"
    assert await box.sh("id -u; id -g", user="bob:staff") == "1000\n50\n"
    assert await box.sh("id -u; id -g", user="4242:17") == "4242\n17\n"
    with pytest.raises(OSError, match="Invalid"):
        await box.run("true", user="nobody-here")


async def test_root_inside_has_only_harmless_capabilities(root_node: Any) -> None:
    """apt-get works; mounting does not; an ordinary user has none at all."""
    box = await root_node.box()
    status = await box.sh("grep -E 'CapEff|CapBnd|NoNewPrivs|Seccomp:' /proc/self/status | tr -d '\\t\\n'")
    assert status == "CapEff:00000000800404fbCapBnd:00000000800404fbNoNewPrivs:1Seccomp:2"
    assert "CapEff:\t0000000000000000" in await box.sh("grep CapEff /proc/self/status", user="bob")
    assert await box.sh("touch /tmp/new && chown 1000:50 /tmp/new && stat -c %u:%g /tmp/new") == "1000:50\n"
    assert (await box.run("mount", "-t", "tmpfs", "none", "/tmp")).code != 0
    assert (await box.run("unshare", "-Ur", "true")).code != 0


async def test_nothing_of_the_host_shows_inside(node: Any) -> None:
    """No path, process, network or program of the host can be reached from a sandbox."""
    box = await node.box()
    assert int(await box.sh("ls /proc | grep -c '^[0-9]*$'")) <= 6  # init, a shim, and these commands
    assert (
        await box.run("sh", "-c", "cat /proc/1/maps /proc/1/environ; readlink /proc/1/exe /proc/1/root")
    ).stdout == b""
    assert (await box.sh("cat /proc/net/dev | tail -n +3 | cut -d: -f1")).strip() == "lo"
    assert (await box.sh("cat /proc/self/mountinfo | grep -c -e kp- -e /home || true")).strip() == "0"
    assert (await box.sh("kill -9 1; kill -TERM 1; echo alive")) == "alive\n"
    assert await box.sh("head -c 1 /proc/keys | wc -c") == "0\n"
    assert (await box.run("sh", "-c", "echo 1 > /proc/sys/kernel/printk")).code != 0


async def test_the_plan_is_what_stands_inside(node: Any, state_dir: Path) -> None:
    """Each mount operation does what it says."""
    source = state_dir / "data"
    source.mkdir()
    (source / "file").write_text("from the host")
    (source / "file").chmod(0o644)
    box = await node.box(
        Bind(str(source), "/data"),
        Bind(str(source / "file"), "/srv/one/file", read_only=True),
        Tmpfs("/scratch", 1 << 20, 0o700),
        Dir("/deep/er/dir", 0o711),
        File("/deep/file", 0o600, b"text"),
        Symlink("/deep/link", "file"),
    )
    assert await box.sh("cat /data/file /srv/one/file /deep/link") == "from the hostfrom the hosttext"
    assert await box.sh("stat -c %a /scratch /deep/er/dir /deep/file") == "700\n711\n600\n"
    assert (await box.run("touch", "/data/new")).stderr.endswith(b"Read-only file system\n")
    assert (await box.run("sh", "-c", "head -c 2000000 /dev/zero > /scratch/big")).code != 0


@pytest.mark.usefixtures("needs_idmap")
async def test_an_overlay_can_be_the_root_and_is_private(root_node: Any, state_dir: Path) -> None:
    """An image's files stay as they are, whatever two sandboxes do to them."""
    lower = state_dir / "image"
    (lower / "etc").mkdir(parents=True)
    (lower / "etc" / "motd").write_text("image")
    (lower / "etc" / "passwd").symlink_to("/../../../etc/shadow")
    ops = list(root_node.plan().ops)
    ops[1] = Overlay("/", (str(lower),), idmap=True)
    ops.insert(2, Overlay("/usr", ("/usr",), idmap=True))
    one = await root_node.box(ops=tuple(ops))
    two = await root_node.box(ops=tuple(ops))
    await one.sh("echo changed > /etc/motd; rm -rf /usr/share; mkdir /usr/share; ls /usr/share")
    assert await two.sh("cat /etc/motd; ls /usr/share | head -1") != ""
    assert (lower / "etc" / "motd").read_text() == "image"
    assert (await one.sh("cat /etc/passwd")).startswith("root:")
    assert (lower / "etc" / "passwd").is_symlink()


@pytest.mark.usefixtures("needs_idmap")
async def test_links_in_an_image_lead_nowhere_outside(root_node: Any, state_dir: Path) -> None:
    """An image from the internet may hold `/data -> ../../../..`: mounts and files must still land inside."""
    lower, host = state_dir / "image", state_dir / "host"
    lower.mkdir()
    host.mkdir()
    (lower / "data").symlink_to(f"../../../../..{host}")
    (lower / "abs").symlink_to(host)
    ops = list(root_node.plan().ops)
    ops[1:2] = [Overlay("/", (str(lower),), idmap=True), Overlay("/usr", ("/usr",), idmap=True)]
    extra = (Dir(str(host)), File("/data/file", 0o644, b"inside"), Dir("/abs/dir"), Bind("/usr", "/abs/usr"))
    box = await root_node.box(ops=(*ops, *extra))
    assert await box.sh(f"cat {host}/file; ls {host}") == "insidedir\nfile\nusr\n"
    assert list(host.iterdir()) == []


async def test_resource_limits_hold_for_commands(node: Any) -> None:
    """Without cgroups, rlimits are what keeps a fork bomb or a runaway allocation in."""
    import resource

    box = await node.box(rlimits=(Rlimit(resource.RLIMIT_NOFILE, 33), Rlimit(resource.RLIMIT_CORE, 0)))
    assert await box.sh("ulimit -n; ulimit -c") == "33\n0\n"


async def test_shutdown_ends_everything_and_says_so(node: Any) -> None:
    """After rm nothing is left, and the reason stands in the record."""
    box = await node.box()
    started = await box.client.exec(ExecSpec(1, ("sh", "-c", "sleep 1000 & sleep 1000")))
    await box.client.shutdown()
    assert (await node.wait_record(box.id)).cause is EndCause.SHUTDOWN
    assert os.read(started.stdout_fd, 1) == b""
    await box.gone.wait()
    with pytest.raises(GoneError):
        await box.client.ping()
    os.close(started.stdout_fd)
    os.close(started.stderr_fd)


async def test_a_kill_is_recorded_and_the_socket_goes_with_it(node: Any) -> None:
    """The agent learns from the record who ended it, and finds no dead socket."""
    box = await node.box()
    assert [child.id for child in await node.client.list()] == [box.id]
    await node.client.kill(box.id)
    record = await node.wait_record(box.id)
    assert (record.cause, record.status) == (EndCause.KILLED, signal.SIGKILL)
    await asyncio.wait_for(box.gone.wait(), 10)
    assert not Path(box.spawned.socket_path).exists()
    assert await node.client.list() == []
    with pytest.raises(ProcessLookupError):
        await node.client.kill(box.id)


async def test_a_death_nobody_asked_for_is_recorded_as_such(node: Any) -> None:
    """The OOM killer may take PID 1: that is not a shutdown."""
    box = await node.box()
    os.kill(box.spawned.pid, signal.SIGKILL)
    record = await node.wait_record(box.id)
    assert (record.cause, record.status) == (EndCause.DIED, signal.SIGKILL)


async def test_a_plan_that_cannot_be_made_says_which_step_failed(node: Any) -> None:
    """`overlay: no such directory` is worth a support call less than `failed`."""
    with pytest.raises(SetupError, match="the directory /proc/nonsense"):
        await node.park(Dir("/proc/nonsense"))
    assert node.record(f"sb-{os.getpid()}-1").cause is EndCause.SETUP_FAILED


async def test_an_id_is_never_used_twice(node: Any) -> None:
    """A name that comes back would hide the first one's end, or its living processes."""
    box = await node.box()
    with pytest.raises(FileExistsError):
        await node.park(sandbox_id=box.id)
    await box.client.shutdown()
    await node.wait_record(box.id)
    with pytest.raises(FileExistsError):
        await node.park(sandbox_id=box.id)


@pytest.mark.parametrize("bad", ["", "..", ".x", "a/b", "x" * 65, "a b"])
async def test_an_id_that_is_no_file_name_is_refused(node: Any, bad: str) -> None:
    """An id becomes a path of the spawner, which is root."""
    with pytest.raises(OSError, match="Invalid"):
        await node.client.spawn(bad, node.plan())


async def test_sources_outside_the_ceiling_are_refused(node: Any, state_dir: Path) -> None:
    """A stolen agent must not mount the host's /etc into a sandbox of its own."""
    outside = Path("/etc/hostname")
    (state_dir / "escape").symlink_to("/etc")
    for source in (str(outside), str(state_dir / "escape" / "hostname"), str(state_dir / ".." / ".." / "etc"), "/usrx"):
        with pytest.raises(OSError, match=r"not permitted|cross-device|No such"):
            await node.park(Bind(source, "/x"))
    assert await node.client.list() == []


async def test_id_ranges_outside_the_ceiling_are_refused(root_node: Any) -> None:
    """Host ids of real users must never be mapped into a sandbox."""
    for start, count in ((0, 1), (1000, 65536), (0x50000000 - 1, 65536), (0x50000000, 2**32 - 1)):
        with pytest.raises(OSError, match=r"not permitted|Invalid"):
            await root_node.park(uid_map_start=start, uid_map_count=count)


async def test_the_template_travels_once_and_again_when_forgotten(node: Any) -> None:
    """240 sandboxes need one plan; a new spawner must get it again without the caller's help."""
    plan = node.plan()
    await node.client.define_template("t-0", plan.ops)
    for number in range(1, 70):  # the spawner keeps 64
        await node.client.define_template(f"t-{number}", plan.ops)
    for _ in range(2):
        name = node.new_id()
        spawned = await node.client.spawn(name, node.plan(ops=()), template="t-0")
        box = await node.attach(name, spawned)
        await box.client.ping()
    with pytest.raises(FileNotFoundError):
        await node.client.spawn(node.new_id(), node.plan(ops=()), template="never-defined")


async def test_only_its_owner_reaches_a_sandbox(node: Any) -> None:
    """The socket is the only lock on a sandbox: nobody else on the machine may open it."""
    box = await node.park()
    path = Path(box.spawned.socket_path)
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_an_agent_of_another_user_reaches_what_it_owns(root_node: Any, second_owner: Any) -> None:
    """On a root install the spawner is root and the agent is `kernpool`: it may ask, and nobody else may."""
    uid, other = 61234, 61235
    node = second_owner(root_node, uid)
    async with node as owned:
        box = await owned.box()
        os.seteuid(uid)
        try:
            client = await SpawnerClient.connect(owned.config.socket_path)
            await client.ping()
            again = await InitClient.attach(box.spawned.socket_path)
            await again.ping()
        finally:
            os.seteuid(0)
        client.close()
        again.close()
        os.seteuid(other)
        try:
            with pytest.raises(PermissionError):
                await SpawnerClient.connect(owned.config.socket_path)
        finally:
            os.seteuid(0)


async def test_the_terminal_of_a_spawner_started_by_hand_is_out_of_reach(node: Any, restart_spawner: Any) -> None:
    """Whoever types into a terminal must not be read, or typed for, by a sandbox whose spawner was started there."""
    ours, theirs = os.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    await restart_spawner(node, preexec_fn=take_terminal)
    box = await node.box()
    assert b"No such device" in (await box.run("sh", "-c", ": < /dev/tty")).stderr
    assert await box.sh("trap | wc -l; cut -d' ' -f7 /proc/self/stat") == "0\n0\n"
    os.close(ours)
    os.close(theirs)


async def test_nothing_listens_where_no_sandbox_is(state_dir: Path) -> None:
    """Adoption meets dead names: that is an answer, not a crash."""
    with pytest.raises(GoneError):
        await InitClient.attach(state_dir / "none.sock")
