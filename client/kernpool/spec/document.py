"""A YAML text as plain data that still knows where each key stood.

PyYAML's own loader keeps the last of two equal keys, says nothing of places once the data is built, and expands
aliases without a bound. So we compose the node tree and build the data ourselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, final

import yaml

from kernpool.spec.errors import SpecError, SpecProblem

TEXT_BYTES_MAX = 1 << 20
VALUES_MAX = 100_000
"""Values of one document after aliases are expanded; ten nested aliases could else make billions."""
DEPTH_MAX = 64

Path = tuple[str | int, ...]


@final
@dataclass(slots=True)
class Document:
    """One YAML document."""

    data: Any
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    """Line and column, from 1, of each key's own text (of the item, in a list)."""

    def place(self, path: Path) -> tuple[int, int]:
        """Find the place of the longest known beginning of a path."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return (1, 1)


def read_documents(raw: bytes | str) -> list[Document]:
    """Build every document of a YAML text. Raises SpecError with line and column."""
    text = _decode(raw) if isinstance(raw, bytes) else raw
    if len(text) > TEXT_BYTES_MAX:
        raise SpecError([SpecProblem(f"the file has more than {TEXT_BYTES_MAX} bytes", line=1, column=1)])
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        raise SpecError([_syntax_problem(error)]) from None
    except yaml.reader.ReaderError as error:
        raise SpecError([_character_problem(text, error)]) from None
    except RecursionError:
        raise SpecError([SpecProblem("the file is nested too deeply", line=1, column=1)]) from None
    documents = [_Builder().build(node) for node in nodes if node is not None]
    if not documents:
        raise SpecError([SpecProblem("the file is empty: expected at least `run: COMMAND`", line=1, column=1)])
    return documents


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rsplit(b"\n", 1)[-1].decode("utf-8", "replace")) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8: save the file as UTF-8"
        raise SpecError([SpecProblem(message, line=line, column=column)]) from None


def _syntax_problem(error: yaml.MarkedYAMLError) -> SpecProblem:
    mark = error.problem_mark or error.context_mark
    where = (mark.line + 1, mark.column + 1) if mark else (1, 1)
    message = " ".join(part for part in (error.context, error.problem) if part)
    if "'\\t' that cannot start any token" in message:
        message = "a tab in the indentation: YAML wants spaces"
    return SpecProblem(f"not valid YAML: {message}", line=where[0], column=where[1])


def _character_problem(text: str, error: yaml.reader.ReaderError) -> SpecProblem:
    before = text[: error.position]
    column = len(before) - (before.rfind("\n") + 1) + 1
    message = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
    return SpecProblem(message, line=before.count("\n") + 1, column=column)


class _Builder:
    """Builds the data of one document, with places, duplicates refused and bounds kept."""

    def __init__(self) -> None:
        self.scalars = yaml.SafeLoader("")
        self.places: dict[Path, tuple[int, int]] = {}
        self.problems: list[SpecProblem] = []
        self.values_left = VALUES_MAX

    def build(self, node: yaml.Node) -> Document:
        self.places[()] = (node.start_mark.line + 1, node.start_mark.column + 1)
        data = self._value(node, ())
        if self.problems:
            raise SpecError(self.problems)
        return Document(data, self.places)

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self.values_left -= 1
        if self.values_left < 0 or len(path) > DEPTH_MAX:
            raise SpecError([self._problem(node, path, "too many or too deeply nested values")])
        match node:
            case yaml.MappingNode():
                return self._mapping(node, path)
            case yaml.SequenceNode():
                return [self._item(child, (*path, index)) for index, child in enumerate(node.value)]
            case _:
                return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: Path) -> Any:
        self.places[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        return self._value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in self._pairs(node, path):
            key = self._key(key_node, path)
            here = (*path, key)
            if key in lines:
                self.problems.append(self._problem(key_node, here, f"this key stands already in line {lines[key]}"))
            lines[key] = key_node.start_mark.line + 1
            self.places[here] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            result[key] = self._value(value_node, here)
        return result

    def _pairs(self, node: yaml.MappingNode, path: Path) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Give the pairs of a mapping; those of merged ones (`<<`) first unless overridden, as YAML 1.1 says."""
        own = [pair for pair in node.value if pair[0].tag != "tag:yaml.org,2002:merge"]
        seen = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
        for merge_key, value in node.value:
            if merge_key.tag != "tag:yaml.org,2002:merge":
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode):
                    self.problems.append(self._problem(merge_key, path, "`<<` takes a mapping"))
                    continue
                if len(path) > DEPTH_MAX or source is node:
                    raise SpecError([self._problem(merge_key, path, "`<<` refers to itself")])
                yield from self._merged(source, path, seen)
        yield from own

    def _merged(self, source: yaml.MappingNode, path: Path, seen: set[str]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        self.values_left -= len(source.value)
        for key, value in source.value:
            if isinstance(key, yaml.ScalarNode) and key.value not in seen:
                seen.add(key.value)
                yield key, value

    def _key(self, node: yaml.Node, path: Path) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise SpecError([self._problem(node, path, "a key must be plain text")])
        return str(node.value)

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        try:
            value = self.scalars.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            raise SpecError([self._problem(node, path, f"cannot be read: {reason}")]) from None
        # A date written bare (2026-11-30) is text for every field that we have.
        return value if isinstance(value, str | int | float | bool | None) else str(node.value)

    def _problem(self, node: yaml.Node, path: Path, message: str) -> SpecProblem:
        return SpecProblem(message, dotted(path), node.start_mark.line + 1, node.start_mark.column + 1)


def dotted(path: Path) -> str:
    """Write a path as people do: `resources.any_of[0].cpus`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text if len(text) <= 80 else f"{text[:77]}..."
