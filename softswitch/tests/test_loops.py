# SPDX-License-Identifier: Apache-2.0
"""Unrolled code against the same steps one by one, in range and over the registers' end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softp4.codegen.module import generate
from softp4.switch import Switch
from tests.harness.effort import examples
from tests.programs import one, pack, program, unpack

ADD, MAX, WALK, DOWN, STRIDE, CHAIN, SCAN, SHIFT, SMEAR, SATURATE, WIDE = range(1, 12)
LANES = 16
STORE, STORE64 = 64, 16
M32, M64 = 2**32 - 1, 2**64 - 1
WIDES = 9  # fields of each width, more than machine words hold
BYTES = (8,) * WIDES + (16,) * WIDES + (64,) * WIDES


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    with Switch(program("loops")) as made:
        yield made


@dataclass
class Model:
    """The program's state and one packet, worked on as BMv2 does: statement by statement."""

    base: int
    keep: int
    lanes: list[int]
    store: list[int]
    store64: list[int]
    bytes: list[int] = field(default_factory=list)
    at: int = 0

    def read(self, index: int, otherwise: int = 0) -> int:
        index &= M32
        return self.store[index] if index < STORE else otherwise

    def write(self, index: int, value: int) -> None:
        if index & M32 < STORE:
            self.store[index & M32] = value & M32


def add(m: Model) -> None:
    for i in range(LANES):
        m.lanes[i] = (m.read(m.base + i) & m.keep) + m.lanes[i] & M32
        m.write(m.base + i, m.lanes[i])


def maximum(m: Model) -> None:
    for i in range(LANES):
        m.lanes[i] = max(m.read(m.base + i) & m.keep, m.lanes[i])
        m.write(m.base + i, m.lanes[i])


def walk(m: Model) -> None:
    old = 0
    for i in range(LANES):
        old = m.read(m.at, otherwise=old)
        m.lanes[i] ^= old
        m.write(m.at, m.lanes[i])
        m.at = m.at + 1 & M32


def down(m: Model) -> None:
    for i in range(LANES):
        m.lanes[i] = m.read(m.base - i, otherwise=m.lanes[i])


def stride(m: Model) -> None:
    for i in range(LANES):
        m.write(m.base << 2 | i & 3, m.lanes[i] + i)


def chain(m: Model) -> None:
    old = 0
    for i in range(LANES):
        old = m.read(m.base + i, otherwise=old)
        m.write(m.base + i + 1, old + m.lanes[i])


def scan(m: Model) -> None:
    total = 0
    for i in range(LANES):
        total = total + m.lanes[i] & M32
        m.lanes[i] = total


def shift(m: Model) -> None:
    m.lanes[:8] = m.lanes[1:9]


def smear(m: Model) -> None:
    m.lanes[1:7] = [m.lanes[0]] * 6


def saturate(m: Model) -> None:
    old = 0
    for i in range(LANES):
        old = m.read(m.base + i, otherwise=old)
        m.lanes[i] = max(m.lanes[i] - old, 0)
        m.write(m.base + i, min(old + m.lanes[i], M32))


def wide(m: Model) -> None:
    old = 0
    for i in range(WIDES):
        index = m.base + i & M32
        old = m.store64[index] if index < STORE64 else old
        m.bytes[2 * WIDES + i] = m.bytes[2 * WIDES + i] + old & M64
        if index < STORE64:
            m.store64[index] = m.bytes[2 * WIDES + i]
        m.bytes[i] = m.bytes[i] + 1 & 0xFF
        m.bytes[WIDES + i] = m.bytes[WIDES + i] << 1 & 0xFFFF


STEPS: dict[int, Callable[[Model], None]] = {
    ADD: add,
    MAX: maximum,
    WALK: walk,
    DOWN: down,
    STRIDE: stride,
    CHAIN: chain,
    SCAN: scan,
    SHIFT: shift,
    SMEAR: smear,
    SATURATE: saturate,
    WIDE: wide,
}

# Around both ends of the registers, and far outside.
BASES = st.one_of(st.integers(0, 70), st.sampled_from([M32, M32 - 3, M32 - 15, M32 - 20, 1 << 30, 1 << 31]))
VALUES = st.one_of(st.integers(0, M32), st.sampled_from([0, 1, M32, 1 << 31]))


@pytest.mark.parametrize("what", sorted(STEPS))
@settings(max_examples=examples(40))
@given(
    base=BASES,
    keep=st.sampled_from([0, M32, 0xFF00FF]),
    lanes=st.lists(VALUES, min_size=LANES, max_size=LANES),
    cells=st.lists(VALUES, min_size=STORE, max_size=STORE),
    more=st.integers(0, (1 << sum(BYTES)) - 1),
)
def test_unrolled_code(
    switch: Switch, what: int, base: int, keep: int, lanes: list[int], cells: list[int], more: int
) -> None:
    data = unpack(more.to_bytes(sum(BYTES) // 8, "big"), BYTES) if what == WIDE else []
    model = Model(
        base, keep, list(lanes), list(cells), [v * 0x100000001 & M64 for v in cells[:STORE64]], data
    )
    for index, value in enumerate(model.store):
        switch.register("In.store").write(index, value)
    for index, value in enumerate(model.store64):
        switch.register("In.store64").write(index, value)
    head = [(what, 8), (int(what == WIDE), 8), (base, 32), (keep, 32)]
    tail = more.to_bytes(sum(BYTES) // 8, "big") if what == WIDE else b""
    answer = one(switch, pack([*head, *((lane, 32) for lane in lanes)]) + tail)

    model.at = base
    STEPS[what](model)
    got = unpack(answer[: 10 + 4 * LANES], (8, 8, 32, 32, *(32,) * LANES))
    assert got[2] == model.at
    assert got[4:] == model.lanes
    assert unpack(answer[10 + 4 * LANES :], BYTES if data else ()) == model.bytes
    assert [switch.register("In.store").read(i) for i in range(STORE)] == model.store
    assert [switch.register("In.store64").read(i) for i in range(STORE64)] == model.store64


@pytest.mark.parametrize("action", ["add", "maximum", "walk", "chain", "saturate", "wide"])
def test_the_runs_become_loops_with_one_bounds_check(action: str) -> None:
    """Check what the speed of such programs rests on."""
    code = generate(program("loops"))
    body = code.split(f"// In.{action}()", 1)[1].split("\n}\n", 1)[0]
    assert body.count("for (size_t i") == 2, "the fast loop, and the one that checks every index"
    assert body.count("} else {") == 1
