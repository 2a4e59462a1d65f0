# SPDX-License-Identifier: Apache-2.0
"""Header unions, stacks of them, and stack elements chosen at run time."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.loader import load_program
from softp4.switch import Switch
from tests.programs import one, program, raw

PLAIN, CLEAR_SIZED, COPY, AGAIN = 0x00, 0x02, 0x03, 0x04
MANY, POP, PUSH, POP_ALL, MOVE, SWAP = 0x20, 0x21, 0x22, 0x25, 0x26, 0x27
ITEMS, SET, CLEAR, COPY_ITEM, PUSH_66, POP_3, COPY_X = 0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46
TWICE = 0x60
ANY, SIZED, LONG_1, SAME, SAME_SIZED = 1, 2, 4, 8, 16
TOO_SHORT, FULL, TOO_LONG, INVALID = 1 << 8, 3 << 8, 4 << 8, 6 << 8


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(program("unions")) as made:
        yield made


@dataclass(frozen=True)
class Answer:
    """Answer of the program: how the packet's length was counted, the report and the headers behind it."""

    grown: int
    report: int
    rest: bytes


def run(switch: Switch, op: int, *headers: bytes, arg: int = 0) -> Answer:
    answer = one(switch, bytes([op, arg, 0, 0]) + b"".join(headers))
    assert answer[0] == op
    grown = int.from_bytes(answer[1:2], "big", signed=True)
    report = int.from_bytes(answer[2:4], "big") & ~(SAME | SAME_SIZED)
    return Answer(grown, report, answer[4:])


def equal(switch: Switch, *headers: bytes) -> int:
    """Return what the report says about equality."""
    return int.from_bytes(one(switch, bytes([MANY, 0, 0, 0]) + b"".join(headers))[2:4], "big") & (
        SAME | SAME_SIZED
    )


def short(x: int = 1) -> bytes:
    return bytes([1, x])


def sized(data: bytes) -> bytes:
    return bytes([2, 8 * len(data)]) + data


def long(z: int = 0) -> bytes:
    return b"\3" + z.to_bytes(4, "big")


def items(count: int) -> bytes:
    """Return elements 0, 1, …, the last of another kind, which ends the stack."""
    return b"".join(bytes([1 if i < count - 1 else 7, i]) for i in range(count))


@pytest.mark.parametrize("header", [short(), sized(b""), sized(b"abc"), long(9)])
def test_each_member_is_extracted_and_emitted(switch: Switch, header: bytes) -> None:
    report = ANY | (SIZED if header[0] == 2 else 0)
    assert run(switch, PLAIN, header, b"rest") == Answer(0, report, header + b"rest")


def test_a_member_that_becomes_valid_makes_the_other_invalid(switch: Switch) -> None:
    assert run(switch, 0x01, long(5)) == Answer(2, ANY, bytes([0, 9]))
    assert run(switch, TWICE, short(), long(7)) == Answer(0, ANY, long(7))


def test_the_length_shrinks_only_where_a_header_is_removed(switch: Switch) -> None:
    assert run(switch, CLEAR_SIZED, sized(b"abcd")) == Answer(-6, ANY | SIZED, b"")
    assert run(switch, CLEAR_SIZED, short(4)) == Answer(0, ANY, short(4))


def test_a_union_is_copied_with_its_valid_member(switch: Switch) -> None:
    answer = run(switch, COPY, sized(b"ab"))
    assert answer.rest == bytes(5) + sized(b"ab")


def test_a_varbit_field_keeps_its_length_when_its_header_comes_again(switch: Switch) -> None:
    assert run(switch, AGAIN, sized(b"abc")) == Answer(0, ANY | SIZED, bytes([5, 0, 0, 0, 0]))


def test_a_stack_of_unions_fills_in_order_and_overflows(switch: Switch) -> None:
    mixed = [short(1), long(2), sized(b"x")]
    assert run(switch, MANY, *mixed, b"\0") == Answer(0, LONG_1, b"".join(mixed) + b"\0")
    assert run(switch, MANY, *mixed, short(9)).report == LONG_1 | FULL


def test_shifting_a_stack_of_unions_goes_round_as_in_bmv2(switch: Switch) -> None:
    a, b, c = short(1), long(2), sized(b"x")
    assert run(switch, POP, a, b, c, b"\0").rest == b + c + a + b"\0"
    assert run(switch, PUSH, a, b, c, b"\0").rest == c + a + b + b"\0"
    assert run(switch, PUSH, a, b, b"\0").rest == a + b + b"\0"
    assert run(switch, POP_ALL, a, b, c, b"\0").rest == a + b + c + b"\0"


def test_elements_of_a_stack_of_unions_are_unions(switch: Switch) -> None:
    moved = run(switch, MOVE, short(1), sized(b"ab"), b"\0")
    assert moved.rest == sized(b"ab") + short(1) + b"\0\0\0\0\7" + b"\0"


def test_equality_needs_the_same_valid_member_and_value(switch: Switch) -> None:
    assert equal(switch) == SAME | SAME_SIZED, "what is not valid on both sides is equal"
    assert equal(switch, sized(b"a")) == SAME
    assert equal(switch, sized(b"a"), sized(b"a")) == SAME_SIZED
    assert equal(switch, sized(b"a"), sized(b"b")) == 0
    assert equal(switch, sized(b"a"), sized(b"\0a")) == 0, "their sizes differ"
    assert equal(switch, short(), long()) == SAME_SIZED


def test_varbit_fields_are_assigned_with_their_length(switch: Switch) -> None:
    swapped = run(switch, SWAP, sized(b"abcd"), sized(b""), b"\0")
    assert swapped.rest == bytes([2, 32]) + bytes([2, 0]) + b"abcd" + b"\0"


def test_lengths_that_cannot_be(switch: Switch) -> None:
    assert run(switch, PLAIN, bytes([2, 3, 0, 0])).report == INVALID
    assert run(switch, PLAIN, sized(bytes(9))).report == TOO_LONG
    assert run(switch, PLAIN, sized(bytes(8))[:-1]).report == TOO_SHORT


@pytest.mark.parametrize("at", [0, 1, 40, 63, 64, 69])
def test_elements_chosen_at_run_time(switch: Switch, at: int) -> None:
    whole = items(70)
    assert run(switch, ITEMS, whole) == Answer(0, 0, whole)
    without = whole[: 2 * at] + whole[2 * at + 2 :]
    assert run(switch, CLEAR, whole, arg=at) == Answer(-2, 0, without)
    copied = bytearray(whole)
    copied[2:4] = whole[2 * at : 2 * at + 2]
    assert run(switch, COPY_ITEM, whole, arg=at).rest == copied
    alone = run(switch, SET, items(1), arg=at)
    assert alone == (Answer(0, 0, b"\7\6") if at == 0 else Answer(2, 0, items(1) + b"\0\6"))


def test_elements_outside_their_stack_are_invalid_and_stay_so(switch: Switch) -> None:
    whole = items(70)
    for at in (70, 255):
        assert run(switch, SET, whole, arg=at) == Answer(0, 0, whole)
        assert run(switch, CLEAR, whole, arg=at) == Answer(0, 0, whole)
        assert run(switch, COPY_ITEM, whole, arg=at).rest == whole[:2] + whole[4:]
    assert run(switch, COPY_X, whole, arg=0).rest == b"\1\0" + whole[2:]


def test_shifting_more_than_a_word_of_elements(switch: Switch) -> None:
    assert run(switch, PUSH_66, items(70)).rest == items(70)[:8]
    assert run(switch, POP_3, items(70)).rest == items(70)[6:]


def test_a_71st_element_is_an_error(switch: Switch) -> None:
    assert run(switch, ITEMS, items(71)).report == FULL


# -- what p4c writes and BMv2 does not read, or the other way round ------------------------------------

_ITEM_ARG = {
    "op": "dereference_header_stack",
    "left": {"type": "header_stack", "value": "items"},
    "right": {"type": "field", "value": ["top", "arg"]},
}


def changed(old: dict[str, Any], new: Any) -> Switch:
    """Return the program with every occurrence of an operand replaced."""

    def replace(node: Any) -> Any:
        if node == old:
            return new
        if isinstance(node, dict):
            return {key: replace(value) for key, value in node.items()}
        return [replace(each) for each in node] if isinstance(node, list) else node

    return Switch(load_program(json.dumps(replace(raw("unions"))).encode()))


def test_an_element_chosen_at_run_time_is_assigned() -> None:
    with changed({"type": "header", "value": "items[1]"}, {"type": "expression", "value": _ITEM_ARG}) as made:
        assert run(made, COPY_ITEM, items(3), arg=2).rest == items(3)
    old = {"type": "expression", "value": {"type": "expression", "value": _ITEM_ARG}}
    with changed(old, {"type": "header", "value": "items[0]"}) as made:
        assert run(made, COPY_ITEM, items(3), arg=2).rest == bytes([1, 0, 1, 0, 7, 2])


def test_a_union_of_a_stack_is_chosen_at_run_time() -> None:
    element = {
        "op": "dereference_union_stack",
        "left": {"type": "header_union_stack", "value": "many"},
        "right": {"type": "field", "value": ["top", "arg"]},
    }
    header = {"op": "access_union_header", "left": {"type": "expression", "value": element}, "right": 2}
    with changed({"type": "header", "value": "many[1].c"}, {"type": "expression", "value": header}) as made:
        answer = run(made, MOVE, short(1), short(2), short(3), b"\0", arg=2)
        assert answer.rest == short(2) + short(1) + short(2) + bytes(5) + b"\0"
    with changed({"type": "header_union", "value": "one"}, {"type": "expression", "value": element}) as made:
        assert run(made, MANY, short(), arg=0).report & ANY
        assert not run(made, MANY, short(), arg=1).report & ANY
        assert not run(made, MANY, short(), arg=3).report & ANY


def header_type(root: Any, name: str) -> Any:
    return next(each for each in root["header_types"] if each["name"] == name)


def test_contradicting_unions_are_named() -> None:
    for spoil, message in (
        (lambda r: r["header_unions"][0]["header_ids"].reverse(), "its members differ from its type's"),
        (lambda r: r["header_union_stacks"][0].update(header_union_ids=[0, 99]), "unknown union type"),
        (lambda r: header_type(r, "sized_t").update(max_length=2), "leave no room"),
    ):
        root = raw("unions")
        spoil(root)
        with pytest.raises(ProgramError, match=message):
            load_program(json.dumps(root).encode())


@pytest.mark.parametrize("chosen", [0, 1])
def test_assigning_a_union_chosen_at_run_time_is_refused_by_name(chosen: int) -> None:
    index = {"type": "field", "value": ["top", "arg"]}
    many = {"type": "header_union_stack", "value": "many"}
    element = {"op": "dereference_union_stack", "left": many, "right": index}
    parameters: list[Any] = [{"type": "header_union", "value": "one"}] * 2
    parameters[chosen] = {"type": "expression", "value": element}
    root = raw("unions")
    root["actions"][0]["primitives"].append({"op": "assign_union", "parameters": parameters})
    with pytest.raises(UnsupportedConstruct, match="a header union chosen at run time"):
        load_program(json.dumps(root).encode())


# -- frames for comparing with BMv2 --------------------------------------------------------------------


def frames(count: int, seed: int = 1) -> list[bytes]:
    """Return frames of all kinds. Elements outside their stack are not chosen: BMv2 ends there."""
    rng = random.Random(seed)
    return [_frame(rng) for _ in range(count)]


def _frame(rng: random.Random) -> bytes:
    group = rng.randrange(4)
    top = bytes([32 * group + rng.randrange(9), rng.choice((1, 1, 2, 3, 5, 60, 63, 64, 65, 68, 69)), 0, 0])
    if group == 2:
        return top + items(rng.choice((1, 2, 3, 4, 5, 62, 66, 69, 70, 71))) + b"\7\7"
    return top + b"".join(_member(rng) for _ in range(rng.randrange(6)))


def _member(rng: random.Random) -> bytes:
    kind = rng.choice((1, 1, 2, 2, 2, 3, 3, 9))
    if kind == 1:
        return short(rng.randrange(256))
    if kind == 2:
        data = rng.choice((b"", b"a", b"\0a", b"ab", rng.randbytes(8), rng.randbytes(9)))
        return sized(data) if rng.random() < 0.95 else bytes([2, rng.randrange(256)]) + data
    return long(rng.choice((0, 5, rng.randrange(1 << 32)))) if kind == 3 else b"\x09"
