"""What a node says it can isolate, and the sentences that say why not."""

import os
from pathlib import Path

import pytest

from kernpool_mesh.messages import Limits, Template
from kernpool_sandbox.cgroup_detect import CgroupFacts
from kernpool_sandbox.config import RuntimeConfig
from kernpool_sandbox.errors import IsolationError, TemplateError
from kernpool_sandbox.hostimage import HostImage, HostTree
from kernpool_sandbox.isolation import HostFacts, NodeIsolation, ask_kernel, host_facts, judge
from kernpool_sandbox.kpinit.plan import Bind, Overlay, Proc, Staging, Tmpfs
from kernpool_sandbox.template import RootfsImage, check, image_digest, plan_template

WORKS = dict.fromkeys(("userns", "mounts", "overlay", "proc", "netns", "idmap"), "")
ROOT = HostFacts(0, True, (6, 1), False, 1, 10_000, (), False)
USER = HostFacts(1000, False, (6, 1), False, 1, 10_000, (), False)
V1 = CgroupFacts("v1", {"memory": Path("/sys/fs/cgroup/memory")})
NONE = CgroupFacts("none", {}, ("cgroups need root here",))


def test_a_root_node_has_everything() -> None:
    """A VM of one's own."""
    isolation = judge(WORKS, ROOT, V1)
    assert isolation == NodeIsolation(("namespace",), (), "v1", "cgroup", "range", True, True, True, True)


def test_an_ordinary_user_is_told_what_is_less() -> None:
    """A Slurm node: rlimits, one id, read-only /usr."""
    isolation = judge(WORKS | {"idmap": "Operation not permitted"}, USER, NONE)
    assert isolation.works
    assert (isolation.limits, isolation.uids, isolation.idmap) == ("rlimit", "single", False)
    assert "Limits are those of single processes" in isolation.problems[0]
    assert "install as root for ranges of ids" in isolation.problems[1]
    assert len(isolation.problems) == 2


@pytest.mark.parametrize(
    ("answers", "facts", "sentence"),
    [
        (
            {"mounts": "Permission denied"},
            HostFacts(1000, False, (6, 8), True, 1, 1, (), False),
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            {"userns": "Operation not permitted"},
            HostFacts(1000, False, (4, 19), False, 0, 1, (), False),
            "sysctl kernel.unprivileged_userns_clone=1",
        ),
        (
            {"userns": "No space left on device"},
            HostFacts(0, True, (5, 14), False, 1, 0, (), False),
            "sysctl user.max_user_namespaces=15000",
        ),
        (
            {"proc": "mounting proc: Operation not permitted"},
            HostFacts(0, True, (6, 1), False, 1, 1, ("/proc/keys", "/proc/kcore"), True),
            r"/proc/keys, /proc/kcore, ...\), as in a default container.*systempaths=unconfined",
        ),
        (
            {"userns": "Operation not permitted"},
            HostFacts(0, True, (6, 1), False, 1, 1, (), True),
            "allow unshare and mount in its seccomp profile",
        ),
        ({"netns": "No space left on device"}, ROOT, "Network namespaces cannot be made here: No space left"),
    ],
)
def test_each_obstacle_has_one_sentence_with_what_to_do(
    answers: dict[str, str], facts: HostFacts, sentence: str
) -> None:
    """Ubuntu 24.04, an old Debian, RHEL, a default docker container, a strict profile, an exhausted node."""
    isolation = judge(WORKS | answers, facts, V1)
    assert not isolation.works
    assert len(isolation.problems) == 1
    with pytest.raises(IsolationError, match=sentence):
        isolation.require()


async def test_the_kernel_of_this_machine_is_asked_by_trying(tmp_path: Path) -> None:
    """What is said here is what the stories below find."""
    answers = await ask_kernel(tmp_path)
    assert answers.keys() == WORKS.keys()
    assert list(tmp_path.iterdir()) == []
    facts = host_facts()
    assert facts.euid == os.geteuid()
    assert facts.kernel >= (4, 0)


async def test_a_probe_that_cannot_run_says_why(tmp_path: Path) -> None:
    """The state directory is on a disk that is gone."""
    with pytest.raises(IsolationError, match="No such file or directory"):
        await ask_kernel(tmp_path / "none")


# --- plans ---

FULL = judge(WORKS, ROOT, V1)
ROOTLESS = judge(WORKS | {"idmap": "no"}, USER, NONE)
OLD_ROOT = judge(WORKS | {"idmap": "no", "overlay": "no"}, ROOT, V1)
LIMITS = Limits(1000, 256, 64, 100)


@pytest.fixture
def host(tmp_path: Path) -> HostImage:
    root = tmp_path / "root"
    (root / "etc/many").mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (root / "etc/big").write_text("x" * 10_000)
    (root / "bin").symlink_to("usr/bin")
    for number in range(60):
        (root / f"etc/many/{number}").write_text("")
    return HostImage("d1", str(root), (HostTree("/usr", "/hide/usr"),), has_local=True)


def test_a_root_nodes_host_image_is_overlaid_and_mapped(host: HostImage) -> None:
    """Writable everywhere, and the layer of whiteouts lies above the host's files."""
    planned = plan_template(Template(), LIMITS, host, FULL)
    assert planned.ops[0] == Staging(64 << 20)
    assert planned.ops[1] == Overlay("/", (host.skeleton,), idmap=True)
    assert planned.ops[2] == Overlay("/usr", ("/hide/usr", "/usr"), idmap=True)
    assert Proc() in planned.ops
    plan = planned.plan(0x4000_0000, ("/cg",))
    assert (plan.uid_map_start, plan.uid_map_count, plan.cgroups, plan.netns, plan.seccomp) == (
        0x4000_0000,
        65536,
        ("/cg",),
        True,
        True,
    )
    assert all(op.nosuid and op.nodev for op in planned.ops if isinstance(op, Overlay | Bind))


def test_a_rootless_nodes_host_image_is_bound_read_only_with_a_fresh_usr_local(host: HostImage) -> None:
    """The skeleton is the user's own, so it can be overlaid; /usr is root's, so it cannot."""
    planned = plan_template(Template(), LIMITS, host, ROOTLESS)
    assert planned.ops[1] == Overlay("/", (host.skeleton,), idmap=False)
    assert Bind("/usr", "/usr", read_only=True) in planned.ops
    assert Tmpfs("/usr/local", 64 << 20) in planned.ops
    assert planned.plan(-1, ()).uid_map_count == 0
    resources = {limit.resource for limit in planned.rlimits}
    import resource

    assert {resource.RLIMIT_AS, resource.RLIMIT_NPROC} <= resources


def test_an_old_kernels_host_image_is_made_of_single_operations(host: HostImage) -> None:
    """Debian 11's kernel 5.10 has neither overlay in user namespaces nor idmapped mounts."""
    planned = plan_template(Template(), LIMITS, host, OLD_ROOT)
    kinds = {type(op).__name__ for op in planned.ops}
    assert "Overlay" not in kinds
    targets = {op.target: op for op in planned.ops if not isinstance(op, Staging)}
    assert type(targets["/etc/passwd"]).__name__ == "File"
    assert type(targets["/etc/big"]).__name__ == "Bind"
    assert type(targets["/etc/many"]).__name__ == "Bind"
    assert type(targets["/bin"]).__name__ == "Symlink"


def test_an_image_by_path_needs_what_can_hold_it() -> None:
    """A root node on overlayfs (in a container) cannot map layers: it says so before anything is made."""
    image = RootfsImage("t1", "/images/t1/root", frozenset({"bin", "tmp", "proc", "dev", "run"}))
    planned = plan_template(Template(image="/t.tar"), LIMITS, image, FULL)
    assert planned.ops[1] == Overlay("/", ("/images/t1/root",), idmap=True, nosuid=True)
    assert image_digest(planned.key) == "t1"
    allowed = plan_template(Template(image="/t.tar", allow_setuid=True), LIMITS, image, FULL)
    assert allowed.ops[1] == Overlay("/", ("/images/t1/root",), idmap=True, nosuid=False)
    assert allowed.key != planned.key
    with pytest.raises(TemplateError, match="needs idmapped mounts"):
        plan_template(Template(image="/t.tar"), LIMITS, image, judge(WORKS | {"idmap": "no"}, ROOT, V1))
    with pytest.raises(TemplateError, match="needs an overlay"):
        plan_template(Template(image="/t.tar"), LIMITS, image, OLD_ROOT)


def test_templates_that_differ_only_in_user_cwd_or_env_share_a_pool(host: HostImage) -> None:
    """A thousand tasks with a variable each must not make a thousand pools."""
    one = plan_template(Template(user="user", cwd="/tmp", env={"A": "1"}), LIMITS, host, FULL)
    two = plan_template(Template(), LIMITS, host, FULL)
    assert one.key == two.key
    assert plan_template(Template(), Limits(1000, 128, 64, 100), host, FULL).key != two.key


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (Template(limits=Limits(memory_mib=1)), "memory of 1 MiB is too little"),
        (Template(limits=Limits(pids=1)), "1 processes are too few"),
        (Template(limits=Limits(cpu_millis=-1)), "cannot be negative"),
        (Template(network="internet"), "only `none`"),
        (Template(allow_setuid=True), "needs an image of its own"),
    ],
)
def test_a_template_that_cannot_be_is_refused_with_the_reason(template: Template, message: str) -> None:
    """Before anything is made."""
    with pytest.raises(TemplateError, match=message):
        check(template, FULL)


def test_the_nodes_defaults_fill_what_a_template_leaves_open(tmp_path: Path) -> None:
    """Everything has a limit."""
    config = RuntimeConfig(tmp_path)
    assert config.with_defaults(Limits(memory_mib=7)) == Limits(0, 7, 1024, 1024)
