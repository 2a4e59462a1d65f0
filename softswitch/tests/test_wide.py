# SPDX-License-Identifier: Apache-2.0
"""Values beyond 128 bits: every operator against Python's integers."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from softp4.program.loader import Program, load_program
from softp4.switch import Switch
from tests.programs import one, pack, raw, unpack
from tests.test_expressions import edges

PADDING = bytes(768)
OPERANDS = (256, 256, 200, 200, 128, 128, 16, 131, 5)
RESULTS = {
    **dict.fromkeys(("add", "sub", "mul", "and", "or", "xor", "not", "neg", "shl", "shr"), 256),
    **dict.fromkeys(("shl_c", "shr_c", "sadd", "ssub", "div", "mod"), 256),
    **dict.fromkeys(("lt", "ge", "eq", "zero"), 8),
    "mux": 256,
    "concat": 512,
    "slice": 144,
    "low_slice": 64,
    "widen": 256,
    "narrow": 48,
    "product": 256,
    "g_plus": 5,
    "f_minus": 131,
    "one_bit": 256,
    **dict.fromkeys(
        ("s_add", "s_div", "s_mod", "s_neg", "s_mul", "s_shr", "s_shr_c", "s_sadd", "s_ssub"), 200
    ),
    "s_lt": 8,
    "s_gt": 8,
    "s_widen": 256,
    "s_narrow": 56,
    "s_from_narrow": 200,
}
U256, U200, S200 = (1 << 256) - 1, (1 << 200) - 1, (1 << 199) - 1


def with_division() -> Program:
    """Return the program with / and %, which p4c evaluates itself but BMv2 knows."""
    text = json.dumps(raw("wide"))
    for field, op in [("div", "/"), ("mod", "%")]:
        for header in ("r", "s"):
            at = text.index(f'{{"type": "field", "value": ["{header}", "{field}"]}}')
            text = text[:at] + text[at:].replace('"op": "^"', f'"op": "{op}"', 1)
    return load_program(text.encode())


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(with_division()) as made:
        yield made


def divided(a: int, b: int) -> tuple[int, int]:
    """Towards zero; by zero, zero."""
    if b == 0:
        return 0, 0
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient, a - quotient * b


def expected(a: int, b: int, c: int, d: int, w: int, x: int, n: int, f: int, g: int) -> dict[str, int]:
    s, t = (value - (1 << 200) if value > S200 else value for value in (c, d))
    shift = n & 255
    return {
        "add": a + b & U256,
        "sub": a - b & U256,
        "mul": a * b & U256,
        "and": a & b,
        "or": a | b,
        "xor": a ^ b,
        "not": ~a & U256,
        "neg": -a & U256,
        "shl": a << shift & U256,
        "shr": a >> shift,
        "shl_c": a << 77 & U256,
        "shr_c": a >> 77,
        "sadd": min(a + b, U256),
        "ssub": max(a - b, 0),
        "div": divided(a, b)[0],
        "mod": divided(a, b)[1],
        "lt": int(a < b),
        "ge": int(a >= b),
        "eq": int(a == b),
        "zero": int(a == 0),
        "mux": max(a, b),
        "concat": a << 256 | b,
        "slice": a >> 57 & (1 << 144) - 1,
        "low_slice": a >> 7 & (1 << 64) - 1,
        "widen": w,
        "narrow": a & (1 << 48) - 1,
        "product": w * x,
        "f_minus": f - 1 & (1 << 131) - 1,
        "g_plus": g + 1 & 31,
        "one_bit": 1 << shift & U256,
        "s_add": s + t & U200,
        "s_div": divided(s, t)[0] & U200,
        "s_mod": divided(s, t)[1] & U200,
        "s_neg": -s & U200,
        "s_mul": s * t & U200,
        "s_shr": s >> shift & U200,
        "s_shr_c": s >> 77 & U200,
        "s_sadd": max(-S200 - 1, min(S200, s + t)) & U200,
        "s_ssub": max(-S200 - 1, min(S200, s - t)) & U200,
        "s_lt": int(s < t),
        "s_gt": int(s > -5),
        "s_widen": s & U256,
        "s_narrow": s & (1 << 56) - 1,
        "s_from_narrow": (n - 65536 if n >> 15 else n) & U200,
    }


SHIFTS = st.one_of(st.integers(0, 300), st.sampled_from([63, 64, 65, 128, 192, 255, 256, 257, 4096, 65535]))


@given(st.tuples(*(SHIFTS if bits == 16 else edges(bits) for bits in OPERANDS)))
@example((0, 0, 0, 0, 0, 0, 0, 0, 0))
@example(tuple((1 << bits) - 1 for bits in OPERANDS))
@example((5, 5, 1 << 199, 1 << 199, 1, 1, 64, 1 << 130, 31))
def test_operators(switch: Switch, operands: tuple[int, ...]) -> None:
    answer = one(switch, pack(list(zip(operands, OPERANDS, strict=True))) + PADDING)
    got = dict(zip(RESULTS, unpack(answer, list(RESULTS.values())), strict=True))
    assert got == expected(*operands)


def test_sign_in_few_words() -> None:
    """Check that a shift brings the sign in itself where values have no words to spare."""
    root = raw("wide")
    next(each for each in root["actions"] if each["name"] == "In.unsigned_results")["primitives"] = []
    with Switch(load_program(json.dumps(root).encode())) as switch:
        for c in (1 << 199, U200, 5 << 196, 1 << 198):
            for n in (1, 64, 100, 199, 200, 255):
                operands = (0, 0, c, 1, 0, 0, n, 0, 0)
                answer = one(switch, pack(list(zip(operands, OPERANDS, strict=True))) + PADDING)
                widths = [bits for name, bits in RESULTS.items() if name.startswith("s_")]
                got = dict(
                    zip(
                        [name for name in RESULTS if name.startswith("s_")],
                        unpack(answer, widths),
                        strict=True,
                    )
                )
                assert got["s_shr"] == expected(*operands)["s_shr"]
