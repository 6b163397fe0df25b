"""Tries to get out of a sandbox, or to see what is not its own. Each is a story of an attacker with root inside."""

import os
import secrets
from pathlib import Path

import pytest
import pytest_asyncio

from kernpool_mesh.messages import Command, Template
from tests.sandbox.conftest import Node, find

pytestmark = pytest.mark.asyncio(loop_scope="module")

EPERM = b"Operation not permitted"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(shared: Node) -> str:
    return await shared.sandbox(ttl_s=600)


async def python(node: Node, box: str, script: str) -> tuple[bytes, bytes, int]:
    """Run a Python script inside, as root; skip where the host has none under /usr."""
    result = await node.runtime.run(box, Command(["/usr/bin/python3", "-c", script]))
    if result.exit_code == 127:
        pytest.skip("the host has no /usr/bin/python3")
    return result.stdout, result.stderr, result.exit_code


SYSCALL = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
X86 = platform.machine() == "x86_64"
def c(a):
    return ctypes.c_char_p(a) if isinstance(a, bytes) else ctypes.c_void_p(a) if a is None else ctypes.c_long(a)
def call(name, x86, arm, *args):
    result = libc.syscall(ctypes.c_long(x86 if X86 else arm), *map(c, args))
    print(name, "allowed" if result >= 0 else os.strerror(ctypes.get_errno()), flush=True)
"""


async def test_the_hosts_secrets_are_not_there(shared: Node, box: str) -> None:
    """/etc/shadow, ssh keys, homes, the agent's state, /boot, /srv: made up, empty or missing."""
    shadow = Path("/etc/shadow")
    if os.access(shadow, os.R_OK):
        inside = await shared.sh(box, "cat /etc/shadow")
        hashes = [line.split(":")[1] for line in shadow.read_text().splitlines() if len(line.split(":")[1]) > 4]
        assert not any(hash_.encode() in inside.stdout for hash_ in hashes)
    state = shared.runtime._config.state_dir
    images = shared.runtime._config.images
    for path in (
        "/etc/ssh",
        "/root/.ssh",
        "/boot",
        "/var/lib/dpkg",
        "/proc/kcore",
        state,
        images,
        "/work",
        "/old_root",
    ):
        result = await shared.sh(box, f"ls -A {path} 2>/dev/null | head -3")
        assert result.stdout == b"", path
    assert (await shared.sh(box, "ls -A /home /root /srv /mnt /media /opt")).stdout.split() == [
        *(b"/home:", b"user", b"/media:", b"/mnt:", b"/opt:", b"/root:", b"/srv:"),
    ]


@pytest.mark.skipif(not os.access("/usr/local/share", os.W_OK), reason="writes a file under /usr, which needs root")
async def test_a_file_that_only_the_hosts_root_may_read_is_hidden(shared: Node) -> None:
    """An administrator's key of mode 0600 under /usr/local: the sandbox's root is not that root."""
    name = f"/usr/local/share/kp-test-{secrets.token_hex(4)}"
    directory, key = Path(name), Path(name, "key")
    directory.mkdir(mode=0o755)
    try:
        key.write_text("SECRET OF THE HOST")
        key.chmod(0o600)
        (directory / "public").write_text("public")
        (directory / "public").chmod(0o644)
        shared.runtime._parts.images._host = None
        shared.runtime._planner.forget()
        box = await shared.sandbox(ttl_s=60)
        result = await shared.sh(box, f"cat {key}; cat {name}/public; ls -la {name}")
        assert b"SECRET" not in result.stdout
        if shared.runtime.isolation.idmap:
            assert b"public" in result.stdout
            assert b"key" not in result.stdout
    finally:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        shared.runtime._parts.images._host = None
        shared.runtime._planner.forget()


async def test_setuid_programs_do_not_count(shared: Node, box: str) -> None:
    """Neither the host's nor the sandbox's own."""
    result = await shared.sh(box, "find / -xdev -perm /6000 -type f 2>/dev/null; stat -c %a /usr/bin/su")
    lines = result.stdout.split()
    if shared.runtime.isolation.idmap:
        assert [line for line in lines if line.startswith(b"/")] == []
    if shared.runtime.isolation.uids == "range":
        script = "cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && su user -s /bin/sh -c '/tmp/id -u'"
        result = await shared.sh(box, "cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id; ls -l /tmp/id")
        result = await shared.runtime.run(box, Command(["/tmp/id", "-u"], user="user"))
        assert result.stdout == b"1000\n", script


async def test_no_new_mounts_namespaces_or_roots(shared: Node, box: str) -> None:
    """mount, umount, unshare, setns, pivot_root, fsopen, open_tree: the ways to another view of the machine."""
    out, err, _ = await python(
        shared,
        box,
        SYSCALL
        + """
call("mount", 165, 40, b"none", b"/tmp", b"tmpfs", 0, None)
call("umount", 166, 39, b"/proc/sys", 2)
call("unshare-user", 272, 97, 0x10000000)
call("unshare-ns", 272, 97, 0x20000)
call("setns", 308, 268, os.open("/proc/self/ns/mnt", 0), 0)
call("pivot_root", 155, 41, b"/", b"/")
call("fsopen", 430, 430, b"tmpfs", 0)
call("open_tree", 428, 428, -100, b"/", 1)
call("move_mount", 429, 429, -100, b"/", -100, b"/tmp", 0)
call("clone-user", 56, 220, 0x10000000 | 17, 0)
""",
    )
    results = dict(line.split(b" ", 1) for line in out.splitlines())
    assert len(results) == 10, err
    assert not [name for name, result in results.items() if result == b"allowed"], results


async def test_no_keyrings_bpf_perf_uring_or_modules(shared: Node, box: str) -> None:
    """The kernel's corners where the holes are found."""
    out, _, _ = await python(
        shared,
        box,
        SYSCALL
        + """
call("keyctl", 250, 219, 0, -3, 0)
call("add_key", 248, 217, b"user", b"x", b"y", 1, -3)
call("request_key", 249, 218, b"user", b"x", None, 0)
call("bpf", 321, 280, 0, None, 0)
call("perf_event_open", 298, 241, None, 0, -1, -1, 0)
call("io_uring_setup", 425, 425, 1, None)
call("userfaultfd", 323, 282, 0)
call("init_module", 175, 105, None, 0, b"")
call("kexec_load", 246, 104, 0, 0, None, 0)
call("reboot", 169, 142, 0, 0, 0, None)
call("swapon", 167, 224, b"/tmp/x", 0)
call("syslog", 103, 116, 3, None, 0)
call("settime", 227, 112, 0, None)
call("ptrace-1", 101, 117, 16, 1, 0, 0)
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
call("process_vm_readv", 310, 270, 1, ctypes.addressof(vector), 1, ctypes.addressof(vector), 1, 0)
call("open_by_handle_at", 304, 265, -100, None, 0)
call("acct", 163, 89, b"/tmp/x")
""",
    )
    results = dict(line.split(b" ", 1) for line in out.splitlines())
    assert len(results) == 17
    assert not [name for name, result in results.items() if result == b"allowed"], results


async def test_pid_1_cannot_be_killed_traced_or_read(shared: Node, box: str) -> None:
    """Who controls PID 1 controls the connection to the agent."""
    result = await shared.sh(box, "kill -9 1; kill -TERM 1; kill -STOP 1; echo still here")
    assert result.stdout == b"still here\n"
    script = "cd /proc/1; cat environ; cat maps; ls -l fd; readlink exe; ls root/; cat mem"
    result = await shared.sh(box, script)
    assert result.stdout == b"", result.stdout
    assert result.stderr.count(b"ermission denied") >= 4


async def test_nothing_inside_names_the_hosts_paths(shared: Node, box: str) -> None:
    """Command lines, mount tables and links: the node's layout is nobody's business."""
    state = str(shared.runtime._config.state_dir).encode()
    images = str(shared.runtime._config.images).encode()
    files = ("cmdline", "mountinfo", "mounts", "cgroup", "comm", "maps")
    script = f"cat {' '.join(f'/proc/[0-9]*/{name}' for name in files)} 2>/dev/null | tr '\\0' ' '"
    out = (await shared.sh(box, script)).stdout
    for secret in (state, images, b"/sys/fs/cgroup", b"kernpool-"):
        assert secret not in out, [line for line in out.split(b"\n") if secret in line]


async def test_proc_and_sys_cannot_be_written(shared: Node, box: str) -> None:
    """sysctls, sysrq, core patterns, cgroups: the levers of the whole machine."""
    targets = (
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sysrq-trigger",
        "/proc/irq/default_smp_affinity",
        "/proc/1/oom_score_adj",
        "/proc/1/uid_map",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/memory/x",
    )
    core_pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    for target in targets:
        result = await shared.sh(box, f"echo 1 > {target} && echo written")
        assert b"written" not in result.stdout, target
    assert Path("/proc/sys/kernel/core_pattern").read_text() == core_pattern
    assert (
        await shared.sh(box, "mkdir /sys/fs/cgroup 2>/dev/null; ls /sys | wc -l; touch /sys/x && echo written")
    ).stdout in (
        b"0\n",
        b"1\n",
        b"0\nwritten\n",
        b"1\nwritten\n",
    ), "whatever /sys is, it is the sandbox's own"


async def test_no_device_can_be_made_or_opened(shared: Node, box: str) -> None:
    """mknod of the host's disk, and what is in /dev."""
    result = await shared.sh(box, "mknod /tmp/disk b 254 0; mknod /tmp/mem c 1 1; head -c 10 /tmp/disk; ls /tmp")
    assert b"disk" not in result.stdout
    assert b"mem" not in result.stdout
    result = await shared.sh(box, "ls /dev")
    allowed = b"console core fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero".split()
    assert set(result.stdout.split()) <= set(allowed)
    assert (await shared.sh(box, "echo x > /dev/null && head -c 4 /dev/urandom | wc -c")).stdout == b"4\n"


async def test_there_is_no_network_and_no_raw_socket(shared: Node, box: str) -> None:
    """Neither the node's services nor its neighbours can be reached; loopback is the sandbox's own."""
    out, err, _ = await python(
        shared,
        box,
        """
import socket
def attempt(name, action):
    try:
        action()
        print(name, "allowed")
    except OSError as error:
        print(name, error.strerror)
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("vsock", lambda: socket.socket(40, socket.SOCK_STREAM).connect((2, 1024)))
attempt("alg", lambda: socket.socket(38, socket.SOCK_SEQPACKET))
s = socket.socket(); s.settimeout(2)
attempt("outside", lambda: s.connect(("192.0.2.1", 80)))
print(len(open("/proc/net/dev").readlines()) - 2, "interfaces")
""",
    )
    lines = dict(line.split(b" ", 1) for line in out.splitlines())
    assert b"allowed" not in lines.values(), (lines, err)
    assert b"unreachable" in lines[b"outside"]
    assert lines[b"1"] == b"interfaces"


async def test_abstract_sockets_of_the_host_are_out_of_reach(shared: Node, box: str) -> None:
    """D-Bus, containerd and friends listen on names without files."""
    import socket

    name = f"\0kp-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        script = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name[1:]}')"
        _, err, code = await python(shared, box, script)
    assert code == 1
    assert b"refused" in err


async def test_root_inside_is_nobody_outside(shared: Node, box: str) -> None:
    """Even a process that got out would be a uid that owns nothing."""
    if shared.runtime.isolation.uids != "range":
        pytest.skip("single-id node: its root is the node's own user, and docs/isolation.md says so")
    slot = shared.runtime._maker.slots[shared.runtime._table.get(box).slot]
    status = Path(f"/proc/{slot.client.hello.pid}/status").read_text()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    assert all(int(uid) >= 0x4000_0000 for uid in uids)


async def test_capabilities_of_a_plain_user_are_none_and_cannot_grow(shared: Node, box: str) -> None:
    """No new privileges, whatever is executed."""
    result = await shared.runtime.run(box, Command(["cat", "/proc/self/status"], user="65534:65534"))
    if result.exit_code:
        pytest.skip("single-id node: there is no other user inside")
    fields = dict(line.split(":", 1) for line in result.stdout.decode().splitlines())
    assert int(fields["CapEff"], 16) == 0
    assert int(fields["CapPrm"], 16) == 0
    assert fields["NoNewPrivs"].strip() == "1"
    assert fields["Seccomp"].strip() == "2"


async def test_the_next_sandbox_finds_nothing_of_the_last_one(shared: Node) -> None:
    """Same cgroup, same uids one day; never the same files, processes or shared memory."""
    first = await shared.sandbox(Template())
    await shared.sh(
        first, "echo secret > /tmp/s; echo secret > /dev/shm/s; echo secret > /usr/local/s 2>/dev/null; sleep 100 &"
    )
    await shared.runtime.remove([first])
    second = await shared.sandbox(Template())
    result = await shared.sh(second, "cat /tmp/s /dev/shm/s /usr/local/s; ls -A /tmp /dev/shm")
    assert (await shared.sh(second, find("sleep 100"))).stdout == b""
    assert result.stdout.split() == [b"/dev/shm:", b"/tmp:"]
