# SPDX-License-Identifier: Apache-2.0
"""Every operator against Python's integers."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from softp4.switch import Switch
from tests.programs import one, pack, program, unpack

OPERANDS = (32, 32, 8, 8, 48, 128, 7, 1)
RESULTS = {
    **dict.fromkeys(
        ("add", "sub", "mul", "and", "or", "xor", "not", "neg", "shl", "shr", "shl_c", "sadd", "ssub"), 32
    ),
    **dict.fromkeys(("sadd8", "ssub8", "lt", "slt", "eq", "logic"), 8),
    "mux": 32,
    "concat": 64,
    "slice": 16,
    "widen": 32,
    "swiden": 32,
    **dict.fromkeys(("sshr", "isadd", "issub"), 8),
    "e_plus": 48,
    "w_plus": 128,
    "w_shift": 128,
    "w_slice": 32,
    "f_minus": 7,
    "flag_not": 1,
    "nested": 32,
}
M32 = 0xFFFFFFFF


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(program("expressions")) as made:
        yield made


def expected(a: int, b: int, c: int, d: int, e: int, w: int, f: int, flag: int) -> dict[str, int]:
    s, t = (x - 256 if x > 127 else x for x in (c, d))
    return {
        "add": a + b & M32,
        "sub": a - b & M32,
        "mul": a * b & M32,
        "and": a & b,
        "or": a | b,
        "xor": a ^ b,
        "not": ~a & M32,
        "neg": -a & M32,
        "shl": a << c & M32,
        "shr": a >> c,
        "shl_c": a << 5 & M32,
        "sadd": min(a + b, M32),
        "ssub": max(a - b, 0),
        "sadd8": min(c + d, 255),
        "ssub8": max(c - d, 0),
        "lt": int(a < b),
        "slt": int(s < t),
        "eq": int(c == d),
        "logic": int((a > b and c != d) or not c <= d),
        "mux": a if c > d else b,
        "concat": a << 32 | b,
        "slice": a >> 8 & 0xFFFF,
        "widen": c,
        "swiden": s & M32,
        "sshr": s >> 2 & 255,
        "isadd": max(-128, min(127, s + t)) & 255,
        "issub": max(-128, min(127, s - t)) & 255,
        "e_plus": e + a & (1 << 48) - 1,
        "w_plus": w + a & (1 << 128) - 1,
        "w_shift": w >> 40,
        "w_slice": w >> 69 & M32,
        "f_minus": f - 1 & 127,
        "flag_not": 1 - flag,
        "nested": (a & 0xFFFF00FF | c << 8) if flag else ((a ^ b) + d << 1) & M32,
    }


def edges(bits: int) -> st.SearchStrategy[int]:
    """Return integers of a width, often near its ends."""
    top = 1 << bits
    return st.one_of(
        st.integers(0, top - 1),
        st.sampled_from(sorted({0, 1, top - 1, top >> 1, (top >> 1) - 1, max(top - 2, 0), min(33, top - 1)})),
    )


@given(st.tuples(*(edges(bits) for bits in OPERANDS)))
@example((0, 0, 0, 0, 0, 0, 0, 0))
@example(tuple((1 << bits) - 1 for bits in OPERANDS))
def test_operators(switch: Switch, operands: tuple[int, ...]) -> None:
    answer = one(switch, pack(list(zip(operands, OPERANDS, strict=True))))
    got = dict(zip(RESULTS, unpack(answer, list(RESULTS.values())), strict=True))
    assert got == expected(*operands)
