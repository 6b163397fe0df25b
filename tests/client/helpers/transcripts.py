"""Transcripts in the docs, run for real: every ```console block is typed in a shell and its output compared."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HOUSE = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(console|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARYING = (
    (r"sb-[a-z2-7]{16}", "sb-ID"),
    (r"n-[a-z2-7]{12}", "n-ID"),
    (r"kpj1\.\S+", "kpj1.TOKEN"),
    (r"\bt-[a-z2-7]{12}\b", "t-ID"),
    (r"^[a-z2-7]{16}\b", "ID"),
    (r": cancell(ing|ed)$", ": CANCELLED"),
    (r"[\d.]+ of [\d.]+( GiB)?", "FREE"),
    (r"kpt_\S+", "kpt_TOKEN"),
    (r"https?://127\.0\.0\.1:\d{2,}", "URL"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "MOMENT"),
    (r"batch=[0-9a-f]{8}", "batch=B"),
    (r"\b[0-9a-f]{8}\b", "HEX"),
    (r"all parked|all cold|\d+ parked$", "SOME PARKED"),
    (r"Python \d\.\d+\.\d+", "Python X"),
    (r"\d+(\.\d+)? ?(ms|s|m|h|d)\b( \d+[smh]\b)?", "TIME"),
    (r"\d+\.\d+", "N"),
    (r"\d+( \(\+\d+ parked\))? +TIME ago$", "M  TIME ago"),
    (r" {2,}", "  "),
)


@dataclass
class Step:
    """One command and what it should print."""

    line: int
    command: str
    expected: list[str]


def steps_of(page: Path) -> tuple[list[Step], dict[str, str]]:
    """Give the commands of a page in order, and the files that its YAML blocks name in their first line."""
    text = page.read_text(encoding="utf-8")
    steps: list[Step] = []
    files: dict[str, str] = {}
    for match in BLOCK.finditer(text):
        if match[1] == "yaml":
            first = match[2].split("\n", 1)[0]
            if first.startswith("# ") and first.endswith(".yaml"):
                files[first[2:]] = match[2]
            continue
        number = text[: match.start()].count("\n") + 1
        for offset, line in enumerate(match[2].splitlines(), 1):
            if line.startswith("$ "):
                steps.append(Step(number + offset, line[2:], []))
            else:
                steps[-1].expected.append(line)
    return steps, files


def play(steps: list[Step], files: dict[str, str], directory: Path, env: dict[str, str]) -> list[str]:
    """Type all commands in one shell; gives a complaint for each whose output is another."""
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    (directory / "bin").mkdir()
    tool = directory / "bin" / "kernpool"
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m kernpool "$@"\n')
    tool.chmod(0o755)
    script = "\n".join(
        f"{step.command}\nstatus=$?; echo; echo __END_{number}__; (exit $status)" for number, step in enumerate(steps)
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=directory, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, timeout=50, check=False,
    )  # fmt: skip
    output = done.stdout.decode("utf-8", "replace")
    complaints = []
    for number, step in enumerate(steps):
        shown, _, output = output.partition(f"\n__END_{number}__\n")
        if not matches(normal(step.expected), normal(shown.splitlines())):
            complaints.append(
                f"line {step.line}: $ {step.command}\n--- in the page\n"
                + "\n".join(step.expected)
                + f"\n--- now\n{shown}"
            )
    return complaints


def environment(directory: Path, **given: str) -> dict[str, str]:
    """Give the environment of a person's shell."""
    rooms = os.pathsep.join(str(HOUSE / room) for room in ("agent", "client", "coordinator", "mesh", "sandbox", "tls"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNPOOL_")}
    path = f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": rooms, "TERM": "dumb", **given}


def normal(lines: list[str]) -> list[str]:
    """Replace what differs from run to run."""
    result = []
    for line in lines:
        text = line.rstrip()
        for pattern, word in VARYING:
            text = re.sub(pattern, word, text)
        result.append(text)
    while result and not result[-1]:
        result.pop()
    return result


def matches(expected: list[str], shown: list[str]) -> bool:
    """Compare; a line `...` stands for any lines, also none."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in expected)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in shown)) is not None
