"""The options of `launch` and `exec` that say what to run, and the task document they make."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from kernpool.cli.common import CPUS, NATURAL, SIZE_MIB, environment, environment_file
from kernpool.cli.errors import UsageError
from kernpool.cli.terminal import Terminal

STDIN_BYTES_MAX = 1 << 20


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="task file (YAML); `-` reads it from stdin")
    parser.add_argument("-d", "--detach", action="store_true", help="submit, print the job's id, and leave")
    parser.add_argument("-n", "--name", help="name of the job")
    parser.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="KEY[=VALUE]",
        help="variable; KEY alone takes its value from here",
    )
    parser.add_argument("--env-file", action="append", default=[], metavar="FILE", help="file of KEY=VALUE lines")
    parser.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="KEY",
        help="secret variable, its value taken from here; never shown",
    )
    parser.add_argument("--secret-file", action="append", default=[], metavar="FILE", help="file of KEY=VALUE lines")
    parser.add_argument("--num-nodes", type=NATURAL, metavar="N", help="nodes at the same time")
    parser.add_argument("--cpus", metavar="N[+]", help="CPUs of each node: 4, or 4+ for at least 4")
    parser.add_argument("--memory", metavar="SIZE[+]", help="memory of each node: 2g, 512m, or GiB as in task files")
    parser.add_argument("--gpus", metavar="KIND[:N]", help="GPUs of each node: H100, H100:8")
    parser.add_argument("--json", action="store_true", help="print the job as JSON (its log goes to stderr)")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing about the job, only its log (or id)")


def task_from(arguments: argparse.Namespace, terminal: Terminal) -> dict[str, Any]:
    """Make the task document. Raises UsageError, TaskFileError."""
    envs, secrets = _environment(arguments, terminal)
    resources = _resources(arguments)
    if arguments.argv is not None:
        return _from_command(arguments, envs, secrets, resources)
    if arguments.file is None:
        raise UsageError("say what to run: a task file, or a command after --")
    return _from_file(arguments, envs, secrets, resources)


def _environment(arguments: argparse.Namespace, terminal: Terminal) -> tuple[dict[str, str], dict[str, str]]:
    envs: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for path in arguments.env_file:
        envs |= environment_file(path, "--env-file")
    for path in arguments.secret_file:
        secrets |= environment_file(path, "--secret-file")
    envs |= environment(arguments.env, "--env")
    secrets |= environment(arguments.secret, "--secret")
    for item in arguments.secret:
        if "=" in item:
            name = item.partition("=")[0]
            terminal.note(
                f"Everybody here could see the value of {name}: `--secret {name}` takes it from your variables."
            )
    return envs, secrets


def _resources(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read the options into the words of a task file. Raises UsageError."""
    resources: dict[str, Any] = {}
    if arguments.cpus is not None:
        _checked("--cpus", CPUS, arguments.cpus.removesuffix("+"))
        resources["cpus"] = arguments.cpus
    if arguments.memory is not None:
        plain = arguments.memory.removesuffix("+")
        gib = plain if plain.replace(".", "", 1).isdigit() else f"{_checked('--memory', SIZE_MIB, plain) / 1024:g}"
        resources["memory"] = gib + ("+" if arguments.memory.endswith("+") else "")
    if arguments.gpus is not None:
        resources["accelerators"] = arguments.gpus
    return resources


def _checked(option: str, read: Any, text: str) -> Any:
    try:
        return read(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{option}: {error}") from None


def _from_command(
    arguments: argparse.Namespace, envs: dict[str, str], secrets: dict[str, str], resources: dict[str, Any]
) -> dict[str, Any]:
    """Make a task of a command: one word is shell text as it stands, several keep their borders."""
    argv: list[str] = arguments.argv
    if arguments.file is not None:
        raise UsageError(f"give a task file or a command after --, not both ({arguments.file!r} stands before --)")
    if not argv or not argv[0].strip():
        raise UsageError("there is no command after --")
    run = argv[0] if len(argv) == 1 else shlex.join(argv)
    first_word = argv[0].split()[0]
    document: dict[str, Any] = {"name": arguments.name or _name(first_word), "run": run}
    if arguments.num_nodes:
        document["num_nodes"] = arguments.num_nodes
    given = {"envs": envs, "secrets": secrets, "resources": resources}
    return document | {key: value for key, value in given.items() if value}


def _name(word: str) -> str:
    """Make a job's name of a program's path."""
    base = Path(word).name
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in base)
    return kept.strip("-._")[:63] or "job"


def _from_file(
    arguments: argparse.Namespace, envs: dict[str, str], secrets: dict[str, str], resources: dict[str, Any]
) -> dict[str, Any]:
    """Read the file, every problem at its line, and lay the options over it. Raises UsageError, TaskFileError."""
    from kernpool.cli.task_file import read_task, with_options

    task = read_task(_bytes(arguments.file), arguments.file)
    own = task.to_document()
    fields: dict[str, Any] = {}
    if arguments.name:
        fields["name"] = arguments.name
    elif task.name is None and arguments.file != "-":
        fields["name"] = _name(Path(arguments.file).stem)
    if arguments.num_nodes:
        fields["num_nodes"] = arguments.num_nodes
    if envs:
        fields["envs"] = (own.get("envs") or {}) | envs
    if secrets:
        fields["secrets"] = (own.get("secrets") or {}) | secrets
    if resources:
        kept = dict(own.get("resources") or {})
        if "accelerators" in resources:
            kept.pop("gpus", None)
        fields["resources"] = kept | resources
    return with_options(task, fields, arguments.file)


def _bytes(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(STDIN_BYTES_MAX)
    path = Path(file)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        hint = "" if path.suffix in (".yaml", ".yml") else f"; to run a command, put -- before it: -- {file} ..."
        raise UsageError(f"there is no file {file}{hint}") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
