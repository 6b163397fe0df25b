"""`kernpool completion`: a script for the shell, made from the table of commands and their parsers."""

import argparse
from importlib import import_module
from typing import Final

from kernpool.cli.commands import COMMANDS, Command
from kernpool.cli.dispatch import make_parser
from kernpool.cli.terminal import Terminal

EPILOG = """\
bash:  kernpool completion bash > ~/.local/share/bash-completion/completions/kernpool
zsh:   kernpool completion zsh > "${fpath[1]}/_kernpool"
fish:  kernpool completion fish > ~/.config/fish/completions/kernpool.fish"""

NAMES: Final = {
    "logs": "queue -q", "cancel": "queue -s -q", "down": "status -q", "exec": "status -q", "queue": "status -q",
    "sandbox exec": "sandbox ls -q", "sandbox show": "sandbox ls -q", "sandbox rm": "sandbox ls -q",
    "sandbox extend": "sandbox ls -q", "node show": "node ls -q", "node rm": "node ls -q",
    "token rm": "token ls -q", "join-token rm": "join-token ls -q",
}  # fmt: skip
"""Which command lists the names that another one takes."""
FILES: Final = {"launch", "exec", "sandbox cp"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Write the script."""
    terminal.line({"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell]())
    return 0


def options_of(command: Command) -> list[str]:
    """List a command's options."""
    parser = make_parser(command, import_module(f"kernpool.cli.{command.module}"))
    return sorted(option for action in parser._actions for option in action.option_strings if option.startswith("--"))


def next_words(start: str) -> list[str]:
    """List the words that may follow words of a command."""
    length = len(start.split())
    beginnings = [command.words.split() for command in COMMANDS if f"{command.words} ".startswith(f"{start} ".lstrip())]
    return sorted({words[length] for words in beginnings if len(words) > length})


def _groups() -> list[str]:
    beginnings = {"": None}
    for command in COMMANDS:
        words = command.words.split()
        beginnings |= {" ".join(words[:length]): None for length in range(1, len(words))}
    return list(beginnings)


def bash() -> str:
    """Write it for bash."""
    lines = [
        "_kernpool() {",
        '    local current="${COMP_WORDS[COMP_CWORD]}" path="" word words=""',
        '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do',
        '        [[ $word == -* ]] && continue; [[ -n $(_kernpool_words "$path $word") ]] || break; path="$path $word"',
        "    done",
        '    path="${path# }"',
        '    words=$(_kernpool_words "$path")',
        '    if [[ $current != -* ]]; then words="$words $(_kernpool_names "$path")"; fi',
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")',
        '    if [[ ${#COMPREPLY[@]} -eq 0 ]]; then mapfile -t COMPREPLY < <(compgen -f -- "$current"); fi',
        "}",
        "_kernpool_words() {",
        '    case "${1# }" in',
        *(f"        '{group}') echo '{' '.join(next_words(group))}' ;;" for group in _groups()),
        *(f"        '{command.words}') echo '{' '.join(options_of(command))}' ;;" for command in COMMANDS),
        "    esac",
        "}",
        "_kernpool_names() {",
        '    case "$1" in',
        *(f"        '{words}') KERNPOOL_NO_START=1 kernpool {names} 2>/dev/null ;;" for words, names in NAMES.items()),
        "    esac",
        "}",
        "complete -F _kernpool kernpool",
    ]
    return "\n".join(lines)


def zsh() -> str:
    """Write it for zsh, which can run bash's."""
    return f"#compdef kernpool\nautoload -U +X bashcompinit && bashcompinit\n{bash()}"


def fish() -> str:
    """Write it for fish."""
    lines = ["complete -c kernpool -e", "complete -c kernpool -f"]
    for group in _groups():
        condition = f"__kernpool_at '{group}'"
        for word in next_words(group):
            told = next((c.help for c in COMMANDS if c.words == f"{group} {word}".strip()), "commands")
            lines.append(f"complete -c kernpool -n \"{condition}\" -a '{word}' -d '{_fish(told)}'")
    for command in COMMANDS:
        condition = f"__kernpool_in '{command.words}'"
        lines += [f'complete -c kernpool -n "{condition}" -l {option[2:]}' for option in options_of(command)]
        if names := NAMES.get(command.words):
            lines.append(
                f'complete -c kernpool -n "{condition}" -a "(KERNPOOL_NO_START=1 kernpool {names} 2>/dev/null)"'
            )
        if command.words in FILES:
            lines.append(f'complete -c kernpool -n "{condition}" -F')
    return "\n".join([_FISH_FUNCTIONS, *lines])


def _fish(text: str) -> str:
    return text.replace("'", "\\'")


_FISH_FUNCTIONS: Final = """\
function __kernpool_words
    set -l words (commandline -opc)
    string join ' ' (string match -v -- '-*' $words[2..-1])
end
function __kernpool_at
    test (__kernpool_words) = "$argv[1]"
end
function __kernpool_in
    string match -q -- "$argv[1] *" (__kernpool_words)' '
end"""
