"""From the words of a command line to the command: split, parsed, run, its errors told."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn, final

from kernpool.cli.commands import BY_WORDS, COMMANDS, FAILED, GROUP_WORDS, PASS_THROUGH_FAILED, USAGE, Command
from kernpool.cli.errors import UsageError
from kernpool.cli.terminal import Terminal
from kernpool.errors import InvalidError, KernpoolError

HELP_WORDS: Final = ("-h", "--help", "help")
WORDS_MAX: Final = 3
ELSEWHERE: Final = {
    "ps": "queue", "ls": "status", "run": "launch", "submit": "launch", "start": "api start", "stop": "api stop",
    "kill": "cancel", "rm": "sandbox rm", "cp": "sandbox cp", "doctor": "check",
}  # fmt: skip
"""Words by which other tools call what we have under another name."""


def run(words: Sequence[str]) -> int:
    """Run the command that the words name; gives its exit status."""
    terminal = Terminal()
    if not words or words[0] in HELP_WORDS:
        terminal.line(overview(""))
        return 0
    command, rest = find(words)
    if command is None:
        return _no_command(words, terminal)
    return _run(command, rest, terminal)


def find(words: Sequence[str]) -> tuple[Command | None, list[str]]:
    """Find the longest command at the beginning of the words, and the words behind it."""
    for length in range(min(WORDS_MAX, len(words)), 0, -1):
        command = BY_WORDS.get(" ".join(words[:length]))
        if command is not None:
            return command, list(words[length:])
    return None, list(words)


def _run(command: Command, words: list[str], terminal: Terminal) -> int:
    module = import_module(f"kernpool.cli.{command.module}")
    parser = make_parser(command, module)
    argv: list[str] | None = None
    if command.takes_command and "--" in words:
        cut = words.index("--")
        words, argv = words[:cut], words[cut + 1 :]
    try:
        arguments = parser.parse_args(words)
        if command.takes_command:
            arguments.argv = argv
        status: int = module.run(arguments, terminal)
    except UsageError as error:
        terminal.problem(f"kernpool {command.words}: {error}", f"See: kernpool {command.words} --help")
        return USAGE
    except InvalidError as error:
        terminal.error(error)
        return USAGE
    except KernpoolError as error:
        terminal.error(error)
        return PASS_THROUGH_FAILED if command.passes_status else FAILED
    return status


def make_parser(command: Command, module: Any) -> "Parser":
    """Make the parser of one command."""
    parser = Parser(
        prog=f"kernpool {command.words}",
        description=command.help[0].upper() + command.help[1:] + ".",
        epilog=getattr(module, "EPILOG", None),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.takes_command = command.takes_command
    module.add_arguments(parser)
    return parser


@final
class Parser(argparse.ArgumentParser):
    """argparse with our words, and a near match for a mistyped option."""

    takes_command = False
    """What follows `--` is a command for elsewhere."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        unknown = message.removeprefix("unrecognized arguments: ").split()
        if message.startswith("unrecognized arguments") and unknown[0].startswith("-"):
            option = unknown[0].split("=")[0]
            message = f"there is no option {option}{_near(option, list(self._option_string_actions))}"
        elif message.startswith("unrecognized arguments") and self.takes_command:
            message = "put -- before the command: `-- COMMAND ...`"
        raise UsageError(message)


def _no_command(words: Sequence[str], terminal: Terminal) -> int:
    """Explain words that are no command: a group's own help, or a near match."""
    for length in range(min(WORDS_MAX, len(words)), 0, -1):
        group = " ".join(words[:length])
        if group in GROUP_WORDS:
            rest = words[length:]
            if not rest or rest[0] in HELP_WORDS:
                terminal.line(overview(group))
                return 0 if rest else USAGE
            following = [c.words.split()[length] for c in COMMANDS if c.words.startswith(f"{group} ")]
            what = f"kernpool {group}: there is no command {rest[0]!r}{_near(rest[0], following)}"
            terminal.problem(what, f"See: kernpool {group} --help")
            return USAGE
    first = [command.words.split()[0] for command in COMMANDS]
    what = "option" if words[0].startswith("-") else "command"
    terminal.problem(f"kernpool: there is no {what} {words[0]!r}{_near(words[0], first)}", "See: kernpool --help")
    return USAGE


def _near(word: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, known, n=1)
    meant = near[0] if near else ELSEWHERE.get(word) if "launch" in known else None
    return f"; did you mean {meant!r}?" if meant else ""


def overview(group: str) -> str:
    """Write the help of everything, or of one group of commands."""
    shown = [command for command in COMMANDS if not group or command.words.startswith(f"{group} ")]
    width = max(len(command.words) for command in shown)
    lines = [f"Usage: kernpool {group or 'COMMAND'} ..." if not group else f"Usage: kernpool {group} COMMAND ..."]
    title = ""
    for command in shown:
        if command.group != title:
            title = command.group
            lines += ["", f"{title}:"]
        lines.append(f"  {command.words:<{width}}  {command.help}")
    if not group:
        lines += ["", "`kernpool COMMAND --help` tells more. `kernpool --version` tells the version.", _FIRST_STEPS]
    return "\n".join(lines)


_FIRST_STEPS: Final = "First steps: kernpool check; kernpool launch -- echo hello; kernpool sandbox create -- hostname"

assert sys.version_info >= (3, 11)
