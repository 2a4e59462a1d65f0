# SPDX-License-Identifier: Apache-2.0
"""Meters, direct and indirect, against RFC 2698 written down plainly."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softp4.errors import Code, ControlError
from softp4.program.loader import load_program
from softp4.runtime.queueing import Queueing
from softp4.state.entry import Count, Entry, Exact, Marked, MeterConfig
from softp4.switch import Switch
from tests.harness.effort import examples
from tests.programs import one, pack, program, raw, unpack

PACKETS, BYTES, FLOOD = 1, 2, 16
GREEN, YELLOW, RED = 0, 1, 2
UNTOUCHED = 7  # what the order says of a meter that was not asked
SECOND = 10**9
_WIDTHS = (8, 16, 48, 8, 3, 5, 8)
SIZE = sum(_WIDTHS) // 8
SLOW = MeterConfig(1, 2, 1, 5)


@dataclass(frozen=True)
class Colours:
    """Answer of the program."""

    by_packets: int = UNTOUCHED
    by_bytes: int = UNTOUCHED
    by_flow: int = 31
    at_egress: int = 255


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("meters")) as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[Switch]:
    """For tests that configure what they use."""
    with Switch(program("meters")) as made:
        yield made


def order(what: int, index: int = 0, who: int = 0, size: int = SIZE) -> bytes:
    fields = (what, index, who, UNTOUCHED, UNTOUCHED, 31, 255)
    return pack(list(zip(fields, _WIDTHS, strict=True))) + bytes(size - SIZE)


def colours(frame: bytes) -> Colours:
    return Colours(*unpack(frame[:SIZE], _WIDTHS)[3:])


def ask(switch: Switch, what: int, index: int = 0, who: int = 0, size: int = SIZE, now: int = 0) -> Colours:
    return colours(one(switch, order(what, index, who, size), now=now))


class Rfc2698:
    """The marker of RFC 2698, section 3, colour-blind.

    Both token counts begin full. "The token count Tp is incremented by one PIR times per second up to PBS",
    Tc likewise; here they are looked at in whole microseconds.
    """

    def __init__(self, config: MeterConfig) -> None:
        self._config = config
        self._peak, self._committed = config.pburst, config.cburst
        self._time = 0

    def mark(self, now: int, size: int) -> int:
        before, self._time = self._time, now // 1000
        config = self._config

        def ticks(rate: int) -> int:
            return self._time * rate // 10**6 - before * rate // 10**6

        self._peak = min(config.pburst, self._peak + ticks(config.pir))
        self._committed = min(config.cburst, self._committed + ticks(config.cir))
        if self._peak < size:
            return RED
        self._peak -= size
        if self._committed < size:
            return YELLOW
        self._committed -= size
        return GREEN


# -- indirect ------------------------------------------------------------------------------------------


def test_a_new_meter_finds_everything_green(switch: Switch) -> None:
    assert [ask(switch, PACKETS | BYTES, 3) for _ in range(5)] == [Colours(GREEN, GREEN)] * 5
    assert switch.meter("In.packet_meters").config(3) is None


def test_bursts_then_yellow_then_red(switch: Switch) -> None:
    switch.meter("In.packet_meters").configure(SLOW, 3)
    found = [ask(switch, PACKETS, 3).by_packets for _ in range(7)]
    assert found == [GREEN, GREEN, YELLOW, YELLOW, YELLOW, RED, RED]
    assert ask(switch, PACKETS, 4).by_packets == GREEN, "another meter of the array"
    assert ask(switch, PACKETS, 3, now=SECOND - 1).by_packets == RED
    assert ask(switch, PACKETS, 3, now=SECOND).by_packets == GREEN
    assert ask(switch, PACKETS, 3, now=SECOND).by_packets == RED


def test_bytes_are_those_of_the_frame_as_it_came(switch: Switch) -> None:
    switch.meter("In.byte_meters").configure(MeterConfig(1000, 100, 2000, 200), 1)
    assert [ask(switch, BYTES, 1, size=n).by_bytes for n in (60, 40, 40, 200, 60, 1 + SIZE)] == [
        GREEN,
        GREEN,
        YELLOW,
        RED,
        YELLOW,
        RED,
    ]
    assert switch.meter("In.byte_meters").marked(1) == Marked(
        Count(2, 100), Count(2, 100), Count(2, 200 + SIZE + 1)
    )
    switch.meter("In.byte_meters").clear_marked(1)
    assert switch.meter("In.byte_meters").marked(1) == Marked(Count(0, 0), Count(0, 0), Count(0, 0))


def test_configuring_again_fills_the_buckets(switch: Switch) -> None:
    none = MeterConfig(0, 0, 0, 0)
    switch.meter("In.packet_meters").configure(none)
    assert [ask(switch, PACKETS, i).by_packets for i in range(8)] == [RED] * 8
    switch.meter("In.packet_meters").configure(SLOW, 1)
    assert [ask(switch, PACKETS, i).by_packets for i in range(3)] == [RED, GREEN, RED]
    assert switch.meter("In.packet_meters").config(1) == SLOW
    switch.meter("In.packet_meters").configure(None)
    assert [ask(switch, PACKETS, i).by_packets for i in range(8)] == [GREEN] * 8
    assert [switch.meter("In.packet_meters").config(i) for i in range(8)] == [None] * 8


@pytest.mark.parametrize("index", [8, 9, 0xFFFF])
def test_out_of_range_nothing_happens(switch: Switch, index: int) -> None:
    switch.meter("In.packet_meters").configure(MeterConfig(0, 0, 0, 0))
    assert ask(switch, PACKETS, index) == Colours()


rates = st.sampled_from((0, 1, 3, 7, 999_999, 10**6, 10**6 + 1, 123_456_789, 2**63 - 1))
bursts = st.sampled_from((0, 1, 2, SIZE, 100, 1500, 10**6, 2**63 - 1))
steps = st.lists(
    st.tuples(
        st.one_of(st.sampled_from((0, 1, 999, 1000)), st.integers(0, 3 * SECOND)), st.integers(SIZE, 200)
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=examples(200), deadline=None)
@given(rates, bursts, rates, bursts, steps, st.booleans())
def test_colours_are_those_of_rfc_2698(
    shared: Switch, cir: int, cburst: int, pir: int, pburst: int, steps: list[tuple[int, int]], whole: bool
) -> None:
    config = MeterConfig(min(cir, pir), cburst, max(cir, pir), pburst)
    name, bit = ("In.packet_meters", PACKETS) if whole else ("In.byte_meters", BYTES)
    shared.meter(name).configure(config, 0)
    model, now = Rfc2698(config), 0
    for pause, size in steps:
        now += pause
        found = ask(shared, bit, 0, size=size, now=now)
        expected = model.mark(now, 1 if whole else size)
        assert (found.by_packets if whole else found.by_bytes) == expected


def test_no_token_is_lost_to_rounding(switch: Switch) -> None:
    """Three packets a second, asked every 100 microseconds for 100 seconds."""
    switch.meter("In.packet_meters").configure(MeterConfig(3, 1, 3, 1), 0)
    for now in range(0, 100 * SECOND, 10**8):
        ask(switch, PACKETS, now=now)
    assert switch.meter("In.packet_meters").marked(0).green.packets == 1 + 299


def test_time_that_goes_back_takes_nothing_away(switch: Switch) -> None:
    switch.meter("In.packet_meters").configure(MeterConfig(1, 1, 1, 1), 0)
    assert ask(switch, PACKETS, now=5 * SECOND).by_packets == GREEN
    assert ask(switch, PACKETS, now=0).by_packets == RED
    assert ask(switch, PACKETS, now=6 * SECOND).by_packets == GREEN


def test_wrong_configurations_are_refused(switch: Switch) -> None:
    for config in (SLOW, None):
        switch.meter("In.packet_meters").configure(config, 0)
        for call, code in [
            (lambda: switch.meter("In.nothing").configure(SLOW), Code.NOT_FOUND),
            (lambda: switch.meter("In.flow_meters").configure(SLOW), Code.NOT_FOUND),
            (lambda: switch.meter("In.packet_meters").configure(SLOW, 8), Code.OUT_OF_RANGE),
            (lambda: switch.meter("In.packet_meters").config(-1), Code.OUT_OF_RANGE),
            (
                lambda: switch.meter("In.packet_meters").configure(MeterConfig(2, 1, 1, 1)),
                Code.INVALID_ARGUMENT,
            ),
            (
                lambda: switch.meter("In.packet_meters").configure(MeterConfig(1, -1, 1, 1)),
                Code.INVALID_ARGUMENT,
            ),
            (
                lambda: switch.meter("In.packet_meters").configure(MeterConfig(1, 1, 1 << 63, 1)),
                Code.INVALID_ARGUMENT,
            ),
        ]:
            with pytest.raises(ControlError) as caught:
                call()
            assert caught.value.code is code
        assert switch.meter("In.packet_meters").config(0) == config


# -- direct --------------------------------------------------------------------------------------------


def flow(who: int, meter: MeterConfig | None = None) -> Entry:
    return Entry((Exact(who),), "In.meet", meter=meter)


def test_an_entry_has_a_meter_of_its_own(switch: Switch) -> None:
    switch.table("In.flows").insert(flow(1, SLOW))
    switch.table("In.flows").insert(flow(2))
    switch.table("In.flows").insert(Entry((Exact(3),), "In.greet", (16,), meter=SLOW))
    assert [ask(switch, 0, who=1).by_flow for _ in range(6)] == [GREEN, GREEN, YELLOW, YELLOW, YELLOW, RED]
    assert [ask(switch, 0, who=2).by_flow for _ in range(6)] == [GREEN] * 6
    assert [ask(switch, 0, who=3).by_flow for _ in range(3)] == [16, 16, 17], "the action sees the colour"
    assert ask(switch, 0, who=4).by_flow == 31, "no entry, no meter"
    assert switch.table("In.flows").marked((Exact(1),)) == Marked(
        Count(2, 2 * SIZE), Count(3, 3 * SIZE), Count(1, SIZE)
    )
    switch.table("In.flows").clear_marked((Exact(1),))
    assert switch.table("In.flows").marked((Exact(1),)).yellow == Count(0, 0)
    assert switch.table("In.flows").count((Exact(1),)) == Count(6, 6 * SIZE)


def test_a_meter_goes_with_its_entry(switch: Switch) -> None:
    key = (Exact(1),)
    switch.table("In.flows").insert(flow(1, SLOW))
    assert [ask(switch, 0, who=1).by_flow for _ in range(3)] == [GREEN, GREEN, YELLOW]
    switch.table("In.flows").modify(flow(1, SLOW))
    assert ask(switch, 0, who=1).by_flow == GREEN, "filled again"
    switch.table("In.flows").modify(flow(1))
    assert [ask(switch, 0, who=1).by_flow for _ in range(9)] == [GREEN] * 9
    switch.table("In.flows").set_meter(key, SLOW)
    assert switch.table("In.flows").entries() == [flow(1, SLOW)]
    assert [ask(switch, 0, who=1).by_flow for _ in range(3)] == [GREEN, GREEN, YELLOW]
    switch.table("In.flows").delete(key)
    switch.table("In.flows").insert(flow(1))
    assert switch.table("In.flows").marked(key) == Marked(Count(0, 0), Count(0, 0), Count(0, 0))
    assert [ask(switch, 0, who=1).by_flow for _ in range(9)] == [GREEN] * 9


def test_at_egress_each_copy_meets_its_own_meter(switch: Switch) -> None:
    """The colour goes straight into a header, which no other copy must see."""
    none = MeterConfig(0, 0, 0, 0)
    switch.multicast_groups.set(1, [(1, 0), (2, 0), (3, 0), (4, 0)])
    switch.table("Out.leaving").insert(Entry((Exact(1),), "Out.mark", meter=none))
    switch.table("Out.leaving").insert(Entry((Exact(3),), "NoAction", meter=none))
    switch.table("Out.leaving").insert(Entry((Exact(4),), "Out.mark"))
    sent = switch.process(5, order(FLOOD), 0)
    assert {port: colours(frame).at_egress for port, frame in sent} == {1: RED, 2: 255, 3: RED, 4: GREEN}


def test_at_egress_of_a_limited_port_the_time_is_that_of_departure(switch: Switch) -> None:
    switch.queues(1).set(Queueing(rate_pps=1))
    meter = MeterConfig(SIZE // 2, SIZE, SIZE // 2, SIZE)
    switch.table("Out.leaving").insert(Entry((Exact(1),), "Out.mark", meter=meter))
    for _ in range(4):
        switch.process(5, order(0), 0)
    sent = switch.step(10 * SECOND)
    assert [colours(frame).at_egress for _, frame in sent] == [RED, GREEN, RED]


def test_a_colour_that_nobody_looks_at_is_counted_all_the_same() -> None:
    root = raw("meters")
    for action in root["actions"]:
        if action["name"] in ("In.meet", "In.greet"):
            action["primitives"] = []
    with Switch(load_program(json.dumps(root).encode())) as switch:
        switch.table("In.flows").insert(flow(1, SLOW))
        assert [ask(switch, 0, who=1).by_flow for _ in range(6)] == [31] * 6
        assert switch.table("In.flows").marked((Exact(1),)).yellow == Count(3, 3 * SIZE)


def test_meters_are_refused_where_there_are_none(switch: Switch) -> None:
    switch.table("In.flows").insert(flow(1))
    wrong = replace(flow(2), meter=MeterConfig(2, 1, 1, 1))
    for call, code in [
        (lambda: switch.table("In.flows").insert(wrong), Code.INVALID_ARGUMENT),
        (lambda: switch.table("In.flows").set_meter((Exact(1),), wrong.meter), Code.INVALID_ARGUMENT),
        (lambda: switch.table("In.flows").set_meter((Exact(2),), SLOW), Code.NOT_FOUND),
        (lambda: switch.table("In.ranges").marked((), 1), Code.FAILED_PRECONDITION),
    ]:
        with pytest.raises(ControlError) as caught:
            call()
        assert caught.value.code is code
    assert switch.table("In.flows").entries() == [flow(1)]
