# SPDX-License-Identifier: Apache-2.0
"""Random frames that a program's parser takes apart: a walk through its states, then damage to some."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.differential.vocabulary import FieldName, Vocabulary

_MOST_STATES: Final = 40  # of one walk: parsers may loop
_LONGEST: Final = 1900  # bytes


class FrameMaker:
    """Frames for one program, from its BMv2 JSON.

    A walk extracts what each state extracts, takes one of the state's transitions at random and gives the
    fields or looked-at bits of its key the values that lead there, as far as they come from the packet.
    """

    def __init__(self, program: Any, vocabulary: Vocabulary, rng: random.Random) -> None:
        self._rng = rng
        self._vocabulary = vocabulary
        [parser] = program["parsers"]
        self._init = parser["init_state"]
        self._states = {state["name"]: state for state in parser["parse_states"]}
        types = {each["name"]: each for each in program["header_types"]}
        self._headers = {each["name"]: types.get(each["header_type"]) for each in program["headers"]}
        self._stacks = {each["name"]: types[each["header_type"]] for each in program.get("header_stacks", [])}
        unions = {each["name"]: each for each in program.get("header_union_types", [])}
        self._unions = {
            each["name"]: {name: types[kind] for name, kind in unions[each["union_type"]]["headers"]}
            for each in program.get("header_union_stacks", [])
        }

    def frame(self) -> bytes:
        """Return a frame, of one byte at least."""
        return self.arrival()[1]

    def arrival(self) -> tuple[int | None, bytes]:
        """Return a frame with the port that it should come in by, if the parser asks for one."""
        walk = _Walk(self._rng)
        state = self._init
        for _ in range(_MOST_STATES):
            if state is None or walk.length > 8 * _LONGEST:
                break
            node = self._states[state]
            for op in node["parser_ops"]:
                self._do(op, walk)
            state = self._leave(node, walk)
        return walk.port, self._damaged(walk.bytes())

    def _damaged(self, frame: bytes) -> bytes:
        rng = self._rng
        chance = rng.random()
        if chance < 0.08:
            frame = frame[: rng.randrange(len(frame) + 1)]
        elif chance < 0.12:
            spoilt = bytearray(frame or b"\0")
            for _ in range(rng.randrange(1, 4)):
                spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            frame = bytes(spoilt)
        elif chance < 0.14:
            frame = rng.randbytes(rng.randrange(1, 100))
        elif chance < 0.5:
            frame += rng.randbytes(rng.choice((1, 2, 3, 4, 7, 8, 20, 46, 60)))
        return frame[:_LONGEST] or b"\0"

    def _do(self, op: Any, walk: "_Walk") -> None:
        parameters = op["parameters"]
        match op["op"]:
            case "extract":
                walk.extract(*self._target(parameters[0]), self._vocabulary)
            case "extract_VL":
                names, kind = self._target(parameters[0])
                bits = walk.evaluate(parameters[1])
                walk.extract(names, kind, self._vocabulary, 0 if bits is None else bits)
            case "shift" | "advance":
                bits = walk.evaluate(parameters[0])
                shift = 8 * bits if op["op"] == "shift" and bits else bits or 0
                walk.append(self._rng.getrandbits(min(shift, 512)) if shift else 0, min(shift, 512))
            case "set":
                destination, source = parameters
                if destination["type"] == "field":
                    walk.assign(tuple(destination["value"]), source)

    def _target(self, parameter: Any) -> tuple[str, Any]:
        value = parameter["value"]
        match parameter["type"]:
            case "stack":
                return value, self._stacks[value]
            case "union_stack":
                stack, member = value
                return f"{stack}.{member}", self._unions[stack][member]
        return value, self._headers[value]

    def _leave(self, node: Any, walk: "_Walk") -> str | None:
        """Choose a transition, and make the key lead there."""
        transitions = node["transitions"]
        if not transitions:
            return None
        key = node["transition_key"]
        chosen = self._rng.choice(transitions)
        for _ in range(2):  # most states go on by values, and stop by default
            if chosen["type"] == "default":
                chosen = self._rng.choice(transitions)
        if not all(map(walk.place, key)) and self._rng.random() < 0.9:
            chosen = transitions[-1]  # not for the packet to decide
        elif [part["value"] for part in key] == [["standard_metadata", "ingress_port"]]:
            walk.port = None if chosen["type"] == "default" else int(chosen["value"], 16)
        if chosen["type"] == "hexstr":
            value = int(chosen["value"], 16)
            mask = None if chosen.get("mask") is None else int(chosen["mask"], 16)
            # Each part of the key stands in whole bytes; the last one is the least significant.
            for part in reversed(node["transition_key"]):
                place = walk.place(part)
                bits = place[1] if place else 0
                if place:
                    walk.force(*place, value, (1 << bits) - 1 if mask is None else mask)
                whole = (bits + 7) // 8 * 8
                value >>= whole
                mask = None if mask is None else mask >> whole
                if not place:
                    break  # its width is not known
        following: str | None = chosen["next_state"]
        return following


class _Walk:
    """The bits of a frame as they come together, and where the fields are among them."""

    def __init__(self, rng: random.Random) -> None:
        self.length = 0
        self.port: int | None = None
        self._rng = rng
        self._value = 0
        self._places: dict[FieldName, tuple[int, int]] = {}
        self._waiting: list[tuple[int, int, int, int]] = []

    def bytes(self) -> bytes:
        """Return the frame, with what was looked ahead at."""
        for position, bits, *_ in self._waiting:
            missing = position + bits - self.length
            if missing > 0:
                self.append(self._rng.getrandbits(missing), missing)
        if self.length % 8:
            self.append(0, 8 - self.length % 8)
        return self._value.to_bytes(self.length // 8, "big")

    def append(self, value: int, bits: int) -> None:
        """Append bits at the end."""
        self._value = self._value << bits | value
        self.length += bits
        for position, width, want, mask in list(self._waiting):
            if position + width <= self.length:
                self._write(position, width, want, mask)
                self._waiting.remove((position, width, want, mask))

    def extract(self, name: str, kind: Any, vocabulary: Vocabulary, variable: int = 0) -> None:
        """Extract a header of random values; its varbit field as long as it is given."""
        for field, bits, *_ in kind["fields"]:
            if bits == "*":
                length = min(max(variable, 0), 8 * 300) // 8 * 8
                self.append(self._rng.getrandbits(length) if length else 0, length)
            else:
                self._places[name, field] = (self.length, bits)
                self.append(vocabulary.value(bits, (name, field)), bits)

    def assign(self, field: FieldName, source: Any) -> None:
        """Make a field of metadata a copy of what is in the packet."""
        place = self.place(source)
        if place:
            self._places[field] = place
        else:
            self._places.pop(field, None)

    def place(self, part: Any) -> tuple[int, int] | None:
        """Return position and width of what an expression reads from the packet as it is."""
        value = part.get("value")
        match part["type"]:
            case "field" | "stack_field":
                return self._places.get(tuple(value))
            case "union_stack_field":
                stack, member, field = value
                return self._places.get((f"{stack}.{member}", field))
            case "lookahead":
                offset, bits = value
                return self.length + offset, bits
            case "expression":
                if isinstance(value, Mapping) and value.get("op") == "&":
                    return self.place(value["left"])  # p4c cuts what is assigned to its width
                if isinstance(value, Mapping) and "op" not in value:
                    return self.place(value)
        return None

    def force(self, position: int, bits: int, value: int, mask: int) -> None:
        """Give bits a value, now or when they are there."""
        full = (1 << bits) - 1
        if position + bits <= self.length:
            self._write(position, bits, value & full, mask & full)
        else:
            self._waiting.append((position, bits, value & full, mask & full))

    def _write(self, position: int, bits: int, value: int, mask: int) -> None:
        shift = self.length - position - bits
        self._value = self._value & ~(mask << shift) | (value & mask) << shift

    def evaluate(self, node: Any) -> int | None:
        """Return what an expression comes to; None where that is not known."""
        value = node.get("value")
        match node["type"]:
            case "hexstr":
                return int(value, 16)
            case "field" | "stack_field":
                place = self._places.get(tuple(value))
                if place is None:
                    return None
                position, bits = place
                behind = self.length - position - bits
                return self._value >> behind & (1 << bits) - 1 if behind >= 0 else None
            case "expression" if "op" not in value:
                return self.evaluate(value)
            case "expression":
                operands = [self.evaluate(value[side]) for side in ("left", "right") if value.get(side)]
                known = [operand for operand in operands if operand is not None]
                return _operate(value["op"], known) if len(known) == len(operands) else None
        return None


def _operate(op: str, operands: Sequence[int]) -> int | None:
    match op, operands:
        case "+", [left, right]:
            return left + right
        case "-", [left, right]:
            return left - right
        case "*", [left, right]:
            return left * right
        case "&", [left, right]:
            return left & right
        case "<<", [left, right]:
            return left << min(right, 64)
        case ">>", [left, right]:
            return left >> right
    return None
