# SPDX-License-Identifier: Apache-2.0
"""The text of a ``.bfa`` as a tree in which every line must be taken by somebody."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

import yaml

# What YAML takes for something else: a pattern of stars alone, maps and commas within arguments.
_STARS: Final = re.compile(r"^( +)\*:", re.MULTILINE)
_UNIT: Final = re.compile(r" : (hash_dist\([^)]*\))")
_HASH: Final = re.compile(r"^( +\d+\.\.\d+): (\w+\(.*\{.*)$", re.MULTILINE)


_Kind = TypeVar("_Kind", "Text", "Items", "Section")


class UnknownLineError(Exception):
    """A line that the executor does not know, or that contradicts another."""


@dataclass(frozen=True)
class Text:
    """A word or an expression."""

    value: str
    line: int

    def refuse(self, why: str) -> NoReturn:
        """Say that this is not known."""
        raise UnknownLineError(f"line {self.line}: {why}: {self.value}")


@dataclass(frozen=True)
class Items:
    """A list."""

    values: tuple["Node", ...]
    line: int

    def texts(self) -> list[Text]:
        """Return items that are all texts."""
        for value in self.values:
            if not isinstance(value, Text):
                raise UnknownLineError(f"line {value.line}: a word was expected")
        return [value for value in self.values if isinstance(value, Text)]


class Section:
    """Keys with what they say, in their order; a key may come more than once."""

    def __init__(self, pairs: list[tuple[Text, "Node"]], line: int) -> None:
        self.line = line
        self._pairs = pairs
        self._taken = [False] * len(pairs)

    def __contains__(self, key: str) -> bool:
        return any(name.value == key for name, _ in self._pairs)

    def take(self, pattern: str = ".*") -> Iterator[tuple[re.Match[str], Text, "Node"]]:
        """Yield what nobody has taken yet and whose whole key matches."""
        for number, (key, value) in enumerate(self._pairs):
            if not self._taken[number] and (match := re.fullmatch(pattern, key.value)):
                self._taken[number] = True
                yield match, key, value

    def each(
        self, kind: type[_Kind], wanted: str, pattern: str = ".*"
    ) -> Iterator[tuple[re.Match[str], Text, _Kind]]:
        """Yield the same where all of it is of one kind; say what was wanted of anything else."""
        for match, key, value in self.take(pattern):
            if not isinstance(value, kind):
                key.refuse(wanted)
            yield match, key, value

    def get(self, key: str) -> "Node | None":
        """Return what stands under a key, or None."""
        found = list(self.take(re.escape(key)))
        if len(found) > 1:
            found[1][1].refuse("a second time")
        return found[0][2] if found else None

    def text(self, key: str) -> Text:
        """Return the word under a key that must be there."""
        value = self.get(key)
        if not isinstance(value, Text):
            raise UnknownLineError(f"line {self.line}: needs {key}, a word")
        return value

    def section(self, key: str) -> "Section | None":
        """Return the section under a key, or None."""
        value = self.get(key)
        if value is not None and not isinstance(value, Section):
            raise UnknownLineError(f"line {value.line}: {key} needs keys")
        return value

    def items(self, key: str) -> Items:
        """Return the list under a key; empty if it is not there."""
        value = self.get(key)
        if value is None:
            return Items((), self.line)
        if not isinstance(value, Items):
            raise UnknownLineError(f"line {value.line}: {key} needs a list")
        return value

    def not_modelled(self, *keys: str) -> None:
        """Take keys that say nothing about what a packet meets: places, sizes, names."""
        for key in keys:
            for _ in self.take(re.escape(key)):
                pass

    def look(self, key: str) -> "Node | None":
        """Return what stands under a key, or None; it is still to be taken."""
        return next((value for name, value in self._pairs if name.value == key), None)

    def words(self) -> tuple[object, ...]:
        """Return all that is said, without line numbers; taken or not."""
        return tuple((key.value, words(value)) for key, value in self._pairs)

    def done(self) -> None:
        """Refuse what nobody took."""
        for _, key, _ in self.take():
            key.refuse("unknown")


Node = Text | Items | Section


def words(node: Node | None) -> object:
    """Return all that is said, without line numbers; taken or not."""
    if isinstance(node, Items):
        return tuple(words(value) for value in node.values)
    if isinstance(node, Section):
        return node.words()
    return node and node.value


def read(text: str) -> Section:
    """Return the whole file.

    Raises:
        UnknownLineError: it is no assembly.
    """
    text = _STARS.sub(r"\1'*':", text)
    text = _UNIT.sub(r' : "\1"', text)
    text = _HASH.sub(r'\1: "\2"', text)
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise UnknownLineError(f"not an assembly: {error}") from error
    node = _node(root)
    if not isinstance(node, Section):
        raise UnknownLineError("not an assembly")
    return node


def _node(node: yaml.Node | None) -> Node:
    if node is None:
        raise UnknownLineError("not an assembly: it is empty")
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        return Section([(_text(key), _node(value)) for key, value in node.value], line)
    if isinstance(node, yaml.SequenceNode):
        return Items(tuple(_node(value) for value in node.value), line)
    return _text(node)


def _text(node: yaml.Node) -> Text:
    if not isinstance(node, yaml.ScalarNode):
        raise UnknownLineError(f"line {node.start_mark.line + 1}: a word was expected")
    return Text(node.value, node.start_mark.line + 1)


def arguments(text: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, "{": 1, ")": -1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def bounds(text: str) -> tuple[int, int]:
    """Return the first and the last number of ``3..7``, or of ``3``."""
    low, _, high = text.partition("..")
    return int(low), int(high or low)


def pattern(text: Text) -> tuple[int, int, int]:
    """Return value, mask and bits of ``0b10*1`` or ``0x0*``; in numbers without stars all bits count."""
    value = mask = width = 0
    match = re.fullmatch(r"0([bx])([0-9a-f*]+)", text.value)
    if text.value == "*":
        return 0, 0, 0
    if match is None:
        text.refuse("a pattern was expected")
    step = 1 if match[1] == "b" else 4
    for digit in match[2]:
        value, mask, width = value << step, mask << step, width + step
        if digit != "*":
            value |= int(digit, 16)
            mask |= (1 << step) - 1
    return value, mask, width
