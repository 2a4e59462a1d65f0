# SPDX-License-Identifier: Apache-2.0
"""Entries that age: which are reported, when, and how often."""

import random
import tracemalloc
from collections.abc import Iterator

import pytest

from softp4.errors import Code, ControlError
from softp4.state.entry import Entry, Exact, Range, Ternary
from softp4.switch import Switch
from tests.programs import program
from tests.state.test_meters import order

MS = 10**6


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("meters")) as made:
        yield made


def flow(who: int, timeout: int = 0) -> Entry:
    return Entry((Exact(who),), "In.meet", timeout_ns=timeout)


def hit(switch: Switch, who: int, now: int) -> None:
    switch.process(5, order(0, who=who), now)


def expired(switch: Switch, now: int) -> list[int]:
    """Return which flows, by number."""
    found = switch.expired(now)
    assert all(name == "In.flows" for name, _ in found)
    return sorted(entry.key[0].value for _, entry in found if isinstance(entry.key[0], Exact))


def test_an_entry_is_reported_once_per_timeout(switch: Switch) -> None:
    switch.table("In.flows").insert(flow(1, 100 * MS))
    switch.table("In.flows").insert(flow(2))
    assert expired(switch, 1000 * MS) == [], "the time begins when the switch is told"
    assert expired(switch, 1100 * MS - 1) == []
    assert switch.expired(1100 * MS) == [("In.flows", flow(1, 100 * MS))]
    assert [expired(switch, now * MS) for now in (1100, 1150, 1199, 1200, 1201)] == [[], [], [], [1], []]


def test_a_packet_starts_the_time_again(switch: Switch) -> None:
    switch.table("In.flows").insert(flow(1, 100 * MS))
    for now in range(0, 1000, 99):
        hit(switch, 1, now * MS)
        assert expired(switch, now * MS) == []
    assert expired(switch, 1089 * MS) == []
    assert expired(switch, 1090 * MS) == [1]


def test_idle_time_is_that_since_the_last_packet(switch: Switch) -> None:
    key = (Exact(1),)
    switch.table("In.flows").insert(flow(1, 100 * MS))
    assert switch.table("In.flows").idle_time(key) == 0
    switch.expired(5 * MS)
    switch.expired(7 * MS)
    assert switch.table("In.flows").idle_time(key) == 2 * MS
    hit(switch, 1, 8 * MS)
    assert switch.table("In.flows").idle_time(key) == 0
    hit(switch, 2, 20 * MS)
    assert switch.table("In.flows").idle_time(key) == 12 * MS
    assert expired(switch, 300 * MS) == [1]
    assert switch.table("In.flows").idle_time(key) == 292 * MS, "a report is no packet"
    switch.table("In.flows").modify(flow(1))
    assert switch.table("In.flows").idle_time(key) == 292 * MS, "nor is a change"


def test_another_timeout_counts_from_the_last_packet(switch: Switch) -> None:
    switch.table("In.flows").insert(flow(1))
    hit(switch, 1, 0)
    assert expired(switch, 10**6 * MS) == []
    switch.table("In.flows").modify(flow(1, 100 * MS))
    assert expired(switch, 10**6 * MS) == [1]
    switch.table("In.flows").modify(flow(1, 50 * MS))
    assert expired(switch, (10**6 + 49) * MS) == []
    assert expired(switch, (10**6 + 50) * MS) == [1]
    switch.table("In.flows").modify(flow(1))
    assert expired(switch, 10**7 * MS) == []


def test_a_new_entry_begins_anew(switch: Switch) -> None:
    switch.table("In.flows").insert(flow(1, 100 * MS))
    switch.expired(0)
    switch.table("In.flows").delete((Exact(1),))
    assert expired(switch, 99 * MS) == []
    switch.table("In.flows").insert(flow(1, 100 * MS))
    assert expired(switch, 150 * MS) == []
    assert expired(switch, 249 * MS) == []
    assert expired(switch, 250 * MS) == [1]


def test_the_longest_timeout_never_ends(switch: Switch) -> None:
    switch.table("In.flows").insert(flow(1, (1 << 63) - 1))
    hit(switch, 1, (1 << 63) + 5)
    assert expired(switch, (1 << 63) + 6) == []
    assert expired(switch, (1 << 64) - 2) == []


def test_entries_of_other_kinds_of_table_age_too(switch: Switch) -> None:
    entry = Entry((Ternary(0x10, 0xF0), Range(1, 9)), "In.touch", (), 7, timeout_ns=10 * MS)
    switch.table("In.ranges").insert(entry)
    switch.expired(0)
    switch.process(5, order(0, index=5, who=0x13), 9 * MS)
    switch.process(5, order(0, index=10, who=0x13), 15 * MS)
    assert switch.expired(18 * MS) == []
    assert switch.expired(19 * MS) == [("In.ranges", entry)]
    assert switch.table("In.ranges").idle_time(entry.key, 7) == 10 * MS


def test_many_entries_against_a_model(switch: Switch) -> None:
    """A thousand timers, hit at random: reported exactly as a list of times says."""
    rng = random.Random(5)
    timeouts = {who: rng.choice((0, 20, 50, 300)) for who in range(1024)}
    for who, timeout in timeouts.items():
        switch.table("In.flows").insert(flow(who, timeout * MS))
    since = dict.fromkeys(timeouts, 0)
    switch.expired(0)
    for now in range(1, 400, 3):
        for who in rng.sample(range(1024), 5):
            hit(switch, who, now * MS)
            since[who] = now
        due = sorted(who for who, timeout in timeouts.items() if timeout and now - since[who] >= timeout)
        assert expired(switch, now * MS) == due
        since.update(dict.fromkeys(due, now))


def test_changes_leave_nothing_behind(switch: Switch) -> None:
    """However often timeouts are changed, an entry has one timer."""
    switch.table("In.flows").insert(flow(1, 1000 * MS))
    for now in range(500):
        switch.table("In.flows").modify(flow(1, (1000 + now) * MS))
        assert expired(switch, now) == []
    tracemalloc.start()
    for now in range(500, 3000):
        switch.table("In.flows").modify(flow(1, (1000 + now) * MS))
        switch.expired(now)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 50_000
    assert expired(switch, 3999 * MS) == [1]


def test_timeouts_are_refused_where_nothing_ages(switch: Switch) -> None:
    switch.table("In.flows").insert(flow(1))
    ageless = Entry((Exact(1),), "NoAction", timeout_ns=1)
    for call, code in [
        (lambda: switch.table("Out.leaving").insert(ageless), Code.INVALID_ARGUMENT),
        (lambda: switch.table("Out.leaving").idle_time((Exact(1),)), Code.FAILED_PRECONDITION),
        (lambda: switch.table("In.flows").idle_time((Exact(2),)), Code.NOT_FOUND),
        (lambda: switch.table("In.flows").modify(flow(1, -1)), Code.INVALID_ARGUMENT),
    ]:
        with pytest.raises(ControlError) as caught:
            call()
        assert caught.value.code is code
    assert switch.table("In.flows").entries() == [flow(1)]
