"""One job and 240 sandboxes on this machine, from nothing; what `make demo` runs.

Everything lives in a temporary KERNPOOL_HOME and is ended at the end, also by Ctrl-C, unless KEEP=1.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SANDBOXES = 240
PARKING_S_MAX = 15.0
HERE = Path(__file__).parent
KERNPOOL = [sys.executable, "-m", "kernpool"]


def main() -> int:
    """Run the demo; 0 also where this machine allows no sandboxes and the reason was shown."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    keep = os.environ.get("KEEP") == "1"
    home = own_home()
    try:
        return demonstrate()
    except KeyboardInterrupt:
        print("\nInterrupted.")
        return 130
    finally:
        if keep:
            print("\n== Still running (KEEP=1)")
            print(f"export KERNPOOL_HOME={home}; alias kernpool='{KERNPOOL[0]} -m kernpool'")
            print("kernpool status              # use it")
            print("kernpool api stop --yes; rm -r $KERNPOOL_HOME; unset KERNPOOL_HOME   # stop it")
        else:
            stop(home)


def own_home() -> Path:
    """Make a home for this demo alone: it ends all that runs there, so it must never be the one a person works with."""
    for name in [name for name in os.environ if name.startswith("KERNPOOL_")]:
        del os.environ[name]
    home = Path(tempfile.mkdtemp(prefix="kernpool-"))
    os.environ["KERNPOOL_HOME"] = str(home)
    return home


def demonstrate() -> int:
    """Show the job, then the sandboxes."""
    say("A coordinator and this machine's agent")
    run("api", "start")
    run("node", "ls")
    say("A job: examples/hello.yaml")
    code = run("launch", str(HERE / "hello.yaml"))
    if code:
        return code
    problems = sandbox_problems()
    if problems:
        say("No sandboxes on this machine")
        print("\n".join(f"- {problem}" for problem in problems))
        return 0
    say(f"{SANDBOXES} sandboxes at once, each running a command")
    return spawn()


def sandbox_problems() -> list[str]:
    """Say why this node offers no sandboxes; empty when it does."""
    from kernpool.sdk import Client

    (node,) = Client().nodes()
    return [] if node.isolation else list(node.isolation_problems) or ["the node does not say why"]


def spawn() -> int:
    """Create them twice: with an empty pool, then from the pool that the first round left parked."""
    import kernpool

    rows = []
    for round_number in range(2):
        if round_number:
            await_parked()
        began = time.monotonic()
        with kernpool.sandboxes.create(count=SANDBOXES, command=["sh", "-c", "echo $$ on $(hostname)"]) as batch:
            wall_s = time.monotonic() - began
            good = [item for item in batch if item.result is not None and item.result.exit_code == 0]
            bad = [item for item in batch if item.error is not None]
        first_ms = sorted(item.result.first_output_ms or 0.0 for item in good if item.result is not None)
        parked = len([item for item in good if item.sandbox is not None and item.sandbox.parked])
        rows.append((len(good), parked, first_ms, wall_s))
        if len(good) != SANDBOXES:
            print(f"{SANDBOXES - len(good)} of {SANDBOXES} did not do their work: {bad[0] if bad else 'see above'}")
            return 1
    print_table(rows)
    return 0


def await_parked() -> None:
    """Give the pool its quiet moment: it parks as many as lately lived at once."""
    from kernpool.sdk import Client

    deadline_s = time.monotonic() + PARKING_S_MAX
    with Client() as client:
        while time.monotonic() < deadline_s and sum(node.sandboxes_parked for node in client.nodes()) < SANDBOXES:
            time.sleep(0.1)


def print_table(rows: list[tuple[int, int, list[float], float]]) -> None:
    """Print how many, how fast, and where they came from."""
    print(f"{'sandboxes':>9}  {'parked':>6}  {'cold':>4}  {'first output p50':>16}  {'p99':>8}  {'wall':>7}")
    for count, parked, first_ms, wall_s in rows:
        p50, p99 = first_ms[len(first_ms) // 2], first_ms[int(len(first_ms) * 0.99)]
        print(f"{count:>9}  {parked:>6}  {count - parked:>4}  {p50:>13.1f} ms  {p99:>5.1f} ms  {wall_s:>5.2f} s")
    print(f"on {os.cpu_count()} cores; each is its own user, process, mount and network namespace on this kernel")


def say(title: str) -> None:
    """Print a heading."""
    print(f"\n== {title}", flush=True)


def run(*arguments: str) -> int:
    """Type a kernpool command, shown as a person would type it."""
    print(f"$ kernpool {' '.join(arguments)}", flush=True)
    return subprocess.run([*KERNPOOL, *arguments], check=False).returncode


def stop(home: Path) -> None:
    """End all that was started and remove its files; a second Ctrl-C must not leave things half stopped."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    say("Stopping")
    stopped = run("api", "stop", "--yes")
    if stopped == 0:
        shutil.rmtree(home)


if __name__ == "__main__":
    sys.exit(main())
