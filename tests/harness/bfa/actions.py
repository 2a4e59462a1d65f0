# SPDX-License-Identifier: Apache-2.0
"""What a table does: an entry's data, the bus that carries them, and one instruction for each container."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.harness.bfa.assembly import Items, Section, Text, UnknownLineError, arguments, bounds
from tests.harness.bfa.containers import PART, Names, Slice, Values, sliced, width_of

_BUS: Final = 128  # bytes
_FIRST: Final = {1: 0, 2: 32, 4: 0}  # byte of the bus from which on an ALU of this many bytes has its slots
_LAST: Final = {1: 32, 2: 96, 4: 128}
_CODED: Final = re.compile(r"(\S+)\((-?\d+), (\d+)\)")
_CALL: Final = re.compile(r"(\S+)\((\w+), \$hash_dist\)")
_COUNT: Final = re.compile(r"(\S+)\((\$DIRECT|\$hash_dist)\)")

Word = tuple[str, int, int]
"""Bits of what is put on the bus: an action data field, ``immediate``, a stateful ALU's word, a hash unit."""


class Bus:
    """The action data bus of a stage: what each table that ran put where."""

    def __init__(self) -> None:
        self.bytes = bytearray(_BUS)
        self._owners: dict[int, str] = {}

    def put(self, owner: str, first: int, data: bytes) -> None:
        """Put bytes on the bus.

        Raises:
            UnknownLineError: another table put something else there.
        """
        for at, byte in enumerate(data, first):
            if self._owners.setdefault(at, owner) != owner:
                raise UnknownLineError(f"{owner} and {self._owners[at]} both use byte {at} of the bus")
            self.bytes[at] = byte


class BusMap:
    """The ``action_bus`` of a table: which bytes carry which words."""

    def __init__(self, *sections: Section | None) -> None:
        self._lanes: list[tuple[int, int, Word]] = []
        for section in sections:
            if section is None:
                continue
            for match, _, node in section.each(Text, "a word was expected", r"(\d+(?:\.\.\d+)?)"):
                first, last = bounds(match[1])
                self._lanes.append((first, last, _word(node.value, 8 * (last - first + 1))))
            section.done()

    def fill(self, bus: Bus, owner: str, words: Mapping[str, int]) -> None:
        """Put on the bus what there is of the words."""
        for first, last, (name, low, high) in self._lanes:
            if name in words:
                value = words[name] >> low & (1 << high - low + 1) - 1
                bus.put(owner, first, value.to_bytes(last - first + 1, "little"))

    def find(self, text: Text, word: Word, size: int) -> tuple[int, int]:
        """Return the first byte of the slot, of `size` bytes, that a word is in, and the word's bit in it."""
        name, low, _ = word
        lanes = (
            (first, begin)
            for first, _, (held, begin, end) in self._lanes
            if held == name and begin <= low <= end
        )
        seen = ((first + (low - begin) // 8, (low - begin) % 8) for first, begin in lanes)
        found = next(((byte, bit) for byte, bit in seen if _FIRST[size] <= byte < _LAST[size]), None)
        if found is None:
            text.refuse(f"{name} from bit {low} on is not where an ALU of {size} bytes sees it")
        byte, bit = found
        return byte - byte % size, 8 * (byte % size) + bit


def _word(text: str, width: int) -> Word:
    """Return which bits of what ``immediate(0..7)``, ``hash_dist(3, lo)`` or a name alone are."""
    # "lo": the unit's bits are the lower half of a word, of which the upper is another unit's.
    if match := re.fullmatch(r"hash_dist\((\d+)(?:, (\d+\.\.\d+))?(?:, lo)?\)", text):
        low, high = bounds(match[2] or "0..15")
        return (f"hash_dist {match[1]}", low, high)
    name, part = sliced(text)
    return (name, *(part or (0, width - 1)))


class Data:
    """How an action's parameters and constants are laid into its entry's words."""

    def __init__(self, section: Section | None, params: dict[str, int]) -> None:
        self._params = params
        self._aliases: dict[str, list[Text]] = {}
        self._constants: list[tuple[str, int, int]] = []  # alias, value, line
        if section is not None:
            for _, key, node in section.each(Text, "a word or a constant was expected"):
                if re.fullmatch(r"\d+", node.value):
                    self._constants.append((key.value, int(node.value), node.line))
                else:
                    self._aliases.setdefault(key.value, []).append(node)
        self.used: dict[str, int] = {}  # which bits of which word
        of_params = (alias for alias in self._aliases if self._param(alias)[0] in params)
        for alias in (*of_params, *(alias for alias, _, _ in self._constants)):
            self._lay(self.used, alias, -1)
        placed = dict.fromkeys(params, 0)
        for alias in self._aliases:
            name, low, high = self._param(alias)
            if name in placed:
                placed[name] |= (1 << min(high, params[name] - 1) + 1) - (1 << low)
        for name, width in params.items():
            if placed[name] != (1 << width) - 1 and section is not None:
                raise UnknownLineError(f"line {section.line}: not all of parameter {name} has a place")

    def _param(self, alias: str) -> tuple[str, int, int]:
        if alias in self._params:
            return alias, 0, self._params[alias] - 1
        match = PART.fullmatch(alias)
        return (match[1], int(match[2]), int(match[3])) if match else (alias, 0, -1)

    def resolve(self, text: str) -> list[Word]:
        """Return where an operand's bits are; more than one word if they are in several."""
        name, part = sliced(text)
        if name not in self._aliases:
            return [_word(text, 32)]
        found = []
        for target in self._aliases[name]:
            for held, low, high in self.resolve(target.value):
                first, last = part or (0, high - low)
                if low + last > high:
                    # "$rot_data0(16)" names the bit that comes first, of a word that is turned.
                    last = high - low
                found.append((held, low + first, low + last))
        return found

    def words(self, values: Mapping[str, int]) -> dict[str, int]:
        """Return an entry's words for parameters' values."""
        if values.keys() != self._params.keys():
            raise UnknownLineError(f"parameters {sorted(values)} where {sorted(self._params)} are wanted")
        words: dict[str, int] = {}
        for alias in self._aliases:
            name, low, high = self._param(alias)
            if name in self._params:
                if values[name] >> self._params[name]:
                    raise UnknownLineError(f"{name} does not hold {values[name]:#x}")
                self._lay(words, alias, values[name] >> low & (1 << high - low + 1) - 1)
        for alias, value, _ in self._constants:
            self._lay(words, alias, value)
        return words

    def _lay(self, words: dict[str, int], alias: str, value: int) -> None:
        for name, low, high in self.resolve(alias):
            mask = (1 << high - low + 1) - 1
            words[name] = words.get(name, 0) & ~(mask << low) | (value & mask) << low


Operation = Callable[[Values, bytearray], int]
"""Of the containers as the stage found them, and the bus: what a container is to hold."""


@dataclass
class Action:
    """One of a table's actions."""

    name: str
    code: int
    handle: int
    data: Data
    next: str | None = None
    next_miss: str | None = None
    hit_allowed: bool = True
    operations: dict[str, Operation] = field(default_factory=dict)
    program: tuple[str, str] | None = None  # the register whose ALU it runs, and by which program
    counter: str | None = None


class ActionReader:
    """Reads the actions of one table."""

    def __init__(self, names: Names, stage: int, bus: BusMap) -> None:
        self._names, self._stage, self._bus = names, stage, bus

    def read(self, key: Text, node: object, hit: list[str]) -> Action:
        """Return the action; ``hit`` are the tables that its number of the next one chooses from."""
        match = _CODED.fullmatch(key.value)
        if match is None or not isinstance(node, Items):
            key.refuse("an action was expected")
        told: dict[str, object] = {}
        layout: Section | None = None
        instructions: list[Text] = []
        for item in node.values:
            if isinstance(item, Text):
                instructions.append(item)
            elif isinstance(item, Section):
                pairs = list(item.take())
                if len(pairs) == 1 and pairs[0][1].value in _TOLD:
                    told[pairs[0][1].value] = pairs[0][2]
                elif pairs:
                    layout = Section([(name, value) for _, name, value in pairs], item.line)
            else:
                raise UnknownLineError(f"line {item.line}: unknown in an action")
        action = Action(match[1], int(match[2]), _number(told.get("handle")), Data(layout, _params(told)))
        if isinstance(chosen := told.get("next_table"), Text) and hit:
            if not chosen.value.isdigit() or int(chosen.value) >= len(hit):
                chosen.refuse("not among the tables that may be next")
            action.next = hit[int(chosen.value)]
        if isinstance(chosen := told.get("next_table_miss"), Text):
            action.next_miss = chosen.value
        if isinstance(allowed := told.get("hit_allowed"), Section):
            action.hit_allowed = allowed.text("allowed").value == "true"
        for text in instructions:
            self._instruction(action, text)
        return action

    def _instruction(self, action: Action, text: Text) -> None:
        if match := _CALL.fullmatch(text.value):
            if action.program is not None:
                text.refuse("a second register in one action")
            action.program = (match[1], match[2])
            return
        if match := _COUNT.fullmatch(text.value):
            action.counter = match[1]
            return
        name, _, rest = text.value.partition(" ")
        operands = [Text(operand, text.line) for operand in arguments(rest)]
        if name not in _ARITY or len(operands) != _ARITY[name]:
            text.refuse("unknown instruction")
        dest = self._names.slice(operands[0], self._stage + 1)  # where it is once it is written
        if dest.container in action.operations:
            text.refuse(f"a second instruction for {dest.container}")
        if dest.container.startswith("T"):
            text.refuse("no ALU writes a container of the tagalong")
        action.operations[dest.container] = getattr(self, f"_{name.replace('-', '_')}")(
            action, dest, *operands[1:]
        )

    def _set(self, action: Action, dest: Slice, source: Text) -> Operation:
        width = width_of(dest.container)
        read, bit = self._operand(action, source, dest)
        kept = (1 << width) - 1 ^ ((1 << dest.width) - 1) << dest.lo
        return _deposit(dest, width, read, bit, lambda values: values.get(dest.container, 0) & kept)

    def _deposit_field(self, action: Action, dest: Slice, source: Text, behind: Text) -> Operation:
        width = width_of(dest.container)
        read, bit = self._operand(action, source, dest)
        background = self._whole(behind, width)
        kept = (1 << width) - 1 ^ ((1 << dest.width) - 1) << dest.lo
        return _deposit(dest, width, read, bit, lambda values: values.get(background, 0) & kept)

    def _bitmasked_set(self, action: Action, dest: Slice, source: Text, behind: Text) -> Operation:
        """The mask is in the slot behind that of the data."""
        width = width_of(dest.container)
        size = width // 8
        background = self._whole(behind, width)
        slot, _ = self._bus.find(source, action.data.resolve(source.value)[0], size)
        if slot // size % 2:
            source.refuse("a mask follows data in an even slot")

        def operate(values: Values, bus: bytearray) -> int:
            data = int.from_bytes(bus[slot : slot + size], "little")
            mask = int.from_bytes(bus[slot + size : slot + 2 * size], "little")
            return data & mask | values.get(background, 0) & ~mask

        return operate

    def _and(self, action: Action, dest: Slice, one: Text, other: Text) -> Operation:
        return self._both(action, dest, one, other, lambda a, b: a & b)

    def _or(self, action: Action, dest: Slice, one: Text, other: Text) -> Operation:
        return self._both(action, dest, one, other, lambda a, b: a | b)

    def _ssubu(self, action: Action, dest: Slice, one: Text, other: Text) -> Operation:
        return self._both(action, dest, one, other, lambda a, b: max(0, a - b))

    def _both(
        self, action: Action, dest: Slice, one: Text, other: Text, operation: Callable[[int, int], int]
    ) -> Operation:
        """An operation of whole containers or slots, whatever else lies in them."""
        if not dest.whole:
            one.refuse(f"arithmetic writes all of {dest.container}")
        (first, bit), (second, other_bit) = (self._operand(action, text, dest) for text in (one, other))
        if bit or other_bit:
            one.refuse("operands begin at bit 0")
        return lambda values, bus: operation(first(values, bus), second(values, bus))

    def _whole(self, text: Text, width: int) -> str:
        place = self._names.slice(text, self._stage)
        if not place.whole or place.width != width:
            text.refuse(f"a whole container of {width} bits was expected")
        return place.container

    def _operand(self, action: Action, text: Text, dest: Slice) -> tuple[Operation, int]:
        """Return what reads the container or the slot that an operand is in, and the operand's first bit."""
        width = width_of(dest.container)
        if re.fullmatch(r"-?\d+", text.value):
            constant = int(text.value) & (1 << width) - 1
            return lambda values, bus: constant, 0
        place = self._names.find(text.value, self._stage)
        if place is not None:
            if width_of(place.container) != width:
                text.refuse(f"{dest.container} takes only containers of its own size")
            container = place.container
            if container.startswith("T"):
                text.refuse("no ALU reads a container of the tagalong")
            return lambda values, bus: values.get(container, 0), place.lo
        size = width // 8
        slot, bit = self._bus.find(text, action.data.resolve(text.value)[0], size)
        return lambda values, bus: int.from_bytes(bus[slot : slot + size], "little"), bit


_ARITY: Final = {"set": 2, "deposit-field": 3, "bitmasked-set": 3, "and": 3, "or": 3, "ssubu": 3}
_TOLD: Final = (
    *("p4_param_order", "hit_allowed", "default_action", "default_only_action", "handle"),
    *("next_table", "next_table_miss"),
)


def _deposit(
    dest: Slice, width: int, read: Operation, bit: int, background: Callable[[Values], int]
) -> Operation:
    """Turn the source so that its bit comes to the first of the destination."""
    turn = (bit - dest.lo) % width
    whole, taken = (1 << width) - 1, ((1 << dest.width) - 1) << dest.lo

    def operate(values: Values, bus: bytearray) -> int:
        word = read(values, bus)
        turned = (word >> turn | word << width - turn) & whole
        return turned & taken | background(values)

    return operate


def _params(told: dict[str, object]) -> dict[str, int]:
    section = told.get("p4_param_order")
    if not isinstance(section, Section):
        return {}
    sizes = section.each(Text, "a parameter's size was expected")
    return {key.value: int(node.value) for _, key, node in sizes}


def _number(node: object) -> int:
    if not isinstance(node, Text):
        raise UnknownLineError("an action needs a handle")
    return int(node.value, 16)
