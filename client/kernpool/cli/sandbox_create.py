"""`kernpool sandbox create`."""

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

from kernpool.cli.commands import FAILED, PASS_THROUGH_FAILED
from kernpool.cli.common import DURATION, NATURAL, POSITIVE_DURATION, connect, environment, pairs
from kernpool.cli.errors import UsageError
from kernpool.cli.run_command import run_command
from kernpool.cli.summary import summary
from kernpool.cli.template_options import add_template_arguments, template_options
from kernpool.cli.terminal import Terminal
from kernpool.errors import KernpoolError
from kernpool.options import CommandOptions, CreateOptions
from kernpool.results import Created
from kernpool.sdk.client import Client
from kernpool.sdk.sandbox import Sandbox
from kernpool.units import show_duration

EPILOG = """\
examples:
  kernpool sandbox create                                  make one, print its id
  kernpool sandbox create --rm -- python3 -c 'print(42)'   run a command in a new one, leave nothing
  kernpool sandbox create --count 240 --rm -- hostname     240 at once, a result each

With one sandbox the output comes as it is written and the exit status is that of the command. With many, each line is
preceded by the sandbox's id, and the exit status is 1 when a command failed, 125 when a sandbox could not be made.
A sandbox shares the kernel of its node (isolation `namespace`)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--count", type=NATURAL, default=1, metavar="N", help="how many (1)")
    add_template_arguments(parser)
    parser.add_argument(
        "--ttl", type=POSITIVE_DURATION, default=600.0, metavar="TIME", help="time to live: 90s, 10m, 2h (10m)"
    )
    parser.add_argument(
        "--idle", type=DURATION, default=0.0, metavar="TIME", help="end it when unused for so long (never)"
    )
    parser.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="variable; KEY alone takes its value from here",
    )
    parser.add_argument(
        "-l", "--label", action="append", default=[], metavar="KEY=VALUE", help="label, to find it again"
    )
    parser.add_argument("--node", metavar="NODE", help="on this node alone")
    parser.add_argument("--rm", action="store_true", help="remove each when its command has ended")
    parser.add_argument("--timeout", type=DURATION, default=0.0, metavar="TIME", help="kill the command then (never)")
    parser.add_argument("-i", "--stdin", action="store_true", help="pass our stdin to the command (one sandbox)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as NDJSON: one line a sandbox, as they come")
    how.add_argument("-q", "--quiet", action="store_true", help="ids alone, or the command's output alone")


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make sandboxes and run a command in each."""
    _check(arguments)
    options: CreateOptions = {
        **template_options(arguments),
        "ttl": arguments.ttl,
        "idle": arguments.idle,
        "env": environment(arguments.env, "--env"),
        "labels": pairs(arguments.label, "--label"),
    }
    if arguments.node:
        options["node"] = arguments.node
    with connect(terminal, start=True) as client:
        if arguments.count == 1 and not arguments.json:
            return _one(client, options, arguments, terminal)
        return _many(client, options, arguments, terminal)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.argv == []:
        raise UsageError("there is no command after --")
    if arguments.argv is None:
        for option, value in (("--rm", arguments.rm), ("--timeout", arguments.timeout), ("-i", arguments.stdin)):
            if value:
                raise UsageError(f"{option} is about a command: give one after --")
    if arguments.stdin and (arguments.count > 1 or arguments.json):
        raise UsageError("-i passes stdin to one sandbox: leave out --count and --json")


def _one(client: Client, options: CreateOptions, arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Make one; its command's output is ours as it comes."""
    sandbox = client.sandboxes.create_one(**options)
    if arguments.argv is None:
        terminal.line(sandbox.id)
        return 0
    own: CommandOptions = {"timeout_s": arguments.timeout}
    try:
        return run_command(sandbox, arguments.argv, own, terminal, pass_stdin=arguments.stdin)
    finally:
        if arguments.rm:
            sandbox.remove()
        elif not arguments.quiet:
            left = show_duration(arguments.ttl)
            terminal.note(f"{sandbox.id} stays for {left}. Remove it: kernpool sandbox rm {sandbox.id}")


def _many(client: Client, options: CreateOptions, arguments: argparse.Namespace, terminal: Terminal) -> int:
    batch = os.urandom(4).hex()
    if arguments.count > 1:
        options["labels"] = {"batch": batch, **options.get("labels", {})}
    if arguments.argv is not None:
        options["command"] = arguments.argv
        options["remove_after"] = arguments.rm
        options["timeout_s"] = arguments.timeout
    started_s = time.monotonic()
    items: list[Created[Sandbox]] = []
    try:
        for item in client.sandboxes.stream(arguments.count, **options):
            items.append(item)
            _write(item, arguments, terminal)
            terminal.status(f"{len(items)} of {arguments.count} sandboxes {_bar(len(items), arguments.count)}")
    except KeyboardInterrupt:
        terminal.note("")
        terminal.note("Interrupted: removing what was made ...")
        client.sandboxes.remove(labels={"batch": batch})
        raise
    except KernpoolError:
        if items:
            terminal.note(
                f"{len(items)} of {arguments.count} came. Remove them: kernpool sandbox rm --label batch={batch}"
            )
        raise
    if not arguments.quiet and not arguments.json:
        terminal.note(summary(items, time.monotonic() - started_s))
        if not arguments.rm and arguments.count > 1:
            left = show_duration(arguments.ttl)
            terminal.note(f"They stay for {left}. Remove them: kernpool sandbox rm --label batch={batch}")
    return _status(items)


def _status(items: list[Created[Sandbox]]) -> int:
    if any(item.error is not None for item in items):
        return PASS_THROUGH_FAILED
    return 0 if all(item.ok for item in items) else FAILED


def _write(item: Created[Sandbox], arguments: argparse.Namespace, terminal: Terminal) -> None:
    """Write what came of one."""
    if arguments.json:
        terminal.document_line(document(item))
        terminal.flush()
    elif item.error is not None:
        terminal.problem(f"{item.id}: {item.error.message}")
    elif item.result is None or arguments.quiet:
        terminal.line(item.id)
    else:
        prefix = f"{item.id}: ".encode()
        terminal.write(b"".join(_prefixed(item.result.stdout, prefix)))
        terminal.write_error(b"".join(_prefixed(item.result.stderr, prefix)))
        if not item.result.ok:
            how = item.result.detail or item.result.reason
            ended = f"exited with {item.result.exit_code}" if item.result.reason == "exited" else how
            terminal.note(f"{item.id}: {ended}")


def _prefixed(output: bytes, prefix: bytes) -> Iterator[bytes]:
    for line in output.splitlines():
        yield prefix + line + b"\n"


def document(item: Created[Sandbox]) -> dict[str, Any]:
    """Give the JSON of one item, output as text."""
    result = item.result
    return {
        "id": item.id,
        "sandbox": item.info.raw if item.info else None,
        "result": None
        if result is None
        else {
            "reason": result.reason,
            "exit_code": result.exit_code,
            "stdout": result.stdout_text,
            "stderr": result.stderr_text,
            "stdout_bytes_dropped": result.stdout_bytes_dropped,
            "stderr_bytes_dropped": result.stderr_bytes_dropped,
            "detail": result.detail,
            "first_output_ms": result.first_output_ms,
        },
        "error": None
        if item.error is None
        else {"code": item.error.code, "message": item.error.message, "hint": item.error.hint},
        "ready_ms": item.ready_ms,
    }


def _bar(done: int, total: int) -> str:
    filled = 24 * done // total
    return f"[{'#' * filled}{'.' * (24 - filled)}]"
