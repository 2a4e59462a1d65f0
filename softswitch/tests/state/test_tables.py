# SPDX-License-Identifier: Apache-2.0
"""Tables of every match kind: which entry wins, what a miss does, and what the control plane is refused."""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softp4.errors import Code, ControlError
from softp4.state.entry import Count, Entry, Exact, Lpm, Match, Optional, Range, Ternary
from softp4.switch import Switch
from tests.programs import one, pack, program, unpack

EXACT, LPM, LPM6, ACL, MASKS, FIXED, SLICED = range(1, 8)
QUERY = (8, 48, 32, 128, 16, 4, 4)
NUMBER, WIDE, MISS, STOP = 1, 2, 3, 4


@dataclass(frozen=True)
class Answer:
    """Outcome of a lookup: hit as the program saw it, which action ran, its argument."""

    hit: int
    ran: int
    value: int
    wide: int = 0
    stopped: bool = False


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("matching")) as made:
        yield made


def ask(
    switch: Switch,
    table: int,
    *,
    mac: int = 0,
    ip: int = 0,
    ip6: int = 0,
    port: int = 0,
    low: int = 0,
    high: int = 0,
) -> Answer:
    query = pack(list(zip((table, mac, ip, ip6, port, low, high), QUERY, strict=True)))
    answer = one(switch, query)
    hit, ran, value, wide = unpack(answer[:22], (8, 8, 32, 128))
    assert answer[22:] in (b"", query)
    return Answer(hit, ran, value, wide, stopped=answer[22:] == query)


def number(key: tuple[Match, ...], value: int, priority: int = 0) -> Entry:
    return Entry(key, "In.number", (value,), priority)


# -- matching ------------------------------------------------------------------------------------------


def test_exact(switch: Switch) -> None:
    switch.table("In.exact_").insert(number((Exact(0xFFFFFFFFFFFF), Exact(3), Exact(1)), 5))
    switch.table("In.exact_").insert(Entry((Exact(1), Exact(3), Exact(1)), "In.wide", ((1 << 128) - 2,)))
    assert ask(switch, EXACT, mac=0xFFFFFFFFFFFF, low=3) == Answer(1, NUMBER, 5)
    assert ask(switch, EXACT, mac=1, low=3) == Answer(2, WIDE, 0, (1 << 128) - 2)
    assert ask(switch, EXACT, mac=1, low=4) == Answer(0, MISS, 0)


def test_exit_ends_the_pipeline(switch: Switch) -> None:
    switch.table("In.exact_").insert(Entry((Exact(9), Exact(0), Exact(1)), "In.stop"))
    assert ask(switch, EXACT, mac=9) == Answer(0, STOP, 0, stopped=True)


def test_the_longest_prefix_wins(switch: Switch) -> None:
    routes = [(0x0A000000, 8), (0x0A010000, 16), (0x0A010200, 24), (0x0A010203, 32), (0, 0)]
    for value, (prefix, length) in enumerate(routes, start=1):
        switch.table("In.routes").insert(number((Lpm(prefix, length), Exact(2)), value))
    for ip, value in [
        (0x0A010203, 4),
        (0x0A010204, 3),
        (0x0A01FF00, 2),
        (0x0AFF0000, 1),
        (0xC0000000, 5),
    ]:
        assert ask(switch, LPM, ip=ip, low=2) == Answer(1, NUMBER, value)
    assert ask(switch, LPM, ip=0x0A010203, low=3) == Answer(0, MISS, 0)


def test_ipv6_prefixes(switch: Switch) -> None:
    net = 0x20010DB8 << 96
    switch.table("In.routes6").insert(number((Lpm(net, 32),), 1))
    switch.table("In.routes6").insert(number((Lpm(net | 1 << 63, 65),), 2))
    switch.table("In.routes6").insert(Entry((Lpm(net | 5, 128),), "In.wide", (net,)))
    assert ask(switch, LPM6, ip6=net | 4) == Answer(1, NUMBER, 1)
    assert ask(switch, LPM6, ip6=net | 1 << 63 | 9) == Answer(1, NUMBER, 2)
    assert ask(switch, LPM6, ip6=net | 5) == Answer(1, WIDE, 0, net)
    assert ask(switch, LPM6, ip6=5) == Answer(0, 0, 0)


def test_the_highest_priority_wins(switch: Switch) -> None:
    anything = (Ternary(0, 0), Range(0, 0xFFFF), Optional(None))
    switch.table("In.acl").insert(number(anything, 1, priority=1))
    switch.table("In.acl").insert(number((Ternary(0x0A000000, 0xFF000000), *anything[1:]), 2, priority=5))
    switch.table("In.acl").insert(number((Ternary(0, 0), Range(80, 90), Optional(None)), 3, priority=9))
    switch.table("In.acl").insert(number((Ternary(0, 0), Range(0, 85), Optional(7)), 4, priority=10))
    assert ask(switch, ACL, ip=0x0B000000) == Answer(0, NUMBER, 1)
    assert ask(switch, ACL, ip=0x0A000001) == Answer(0, NUMBER, 2)
    assert ask(switch, ACL, ip=0x0A000001, port=90) == Answer(0, NUMBER, 3)
    assert ask(switch, ACL, ip=0x0A000001, port=91) == Answer(0, NUMBER, 2)
    assert ask(switch, ACL, port=85, mac=7) == Answer(0, NUMBER, 4)
    assert ask(switch, ACL, port=86, mac=7) == Answer(0, NUMBER, 3)


def test_a_miss_runs_the_default_action(switch: Switch) -> None:
    assert ask(switch, ACL) == Answer(0, NUMBER, 7)
    switch.table("In.acl").set_default("In.number", (8,))
    assert ask(switch, ACL) == Answer(0, NUMBER, 8)
    assert switch.table("In.acl").default() == ("In.number", (8,))
    switch.table("In.acl").set_default("In.miss")
    assert ask(switch, ACL) == Answer(0, MISS, 0)
    switch.table("In.acl").reset_default()
    assert ask(switch, ACL) == Answer(0, NUMBER, 7)
    assert ask(switch, MASKS) == Answer(0, 0, 0)  # the compiler's NoAction


def test_constant_entries(switch: Switch) -> None:
    """The program lists them best first."""
    assert ask(switch, FIXED, low=1, high=9) == Answer(0, NUMBER, 11)
    assert ask(switch, FIXED, low=1, high=7) == Answer(0, NUMBER, 12)
    assert ask(switch, FIXED, low=2, high=3) == Answer(0, NUMBER, 13)
    assert ask(switch, FIXED, low=2, high=4) == Answer(0, MISS, 0)
    entries = switch.table("In.fixed").entries()
    assert [entry.args for entry in entries] == [(11,), (12,), (13,)]
    assert entries[0].priority > entries[1].priority > entries[2].priority
    with pytest.raises(ControlError, match="the program's") as caught:
        switch.table("In.fixed").delete(entries[0].key, entries[0].priority)
    assert caught.value.code is Code.PERMISSION_DENIED


def test_keys_that_are_slices_and_masks(switch: Switch) -> None:
    switch.table("In.sliced").insert(number((Exact(0x12), Exact(0x3400)), 6))
    assert ask(switch, SLICED, mac=0xFF12FF, ip=0xFF34FF) == Answer(0, NUMBER, 6)
    assert ask(switch, SLICED, mac=0x13FF, ip=0xFF34FF) == Answer(0, 0, 0)


def test_bits_outside_a_masked_key_do_not_count_in_entries_either(switch: Switch) -> None:
    """As on BMv2: two entries that differ only there are the same."""
    switch.table("In.sliced").insert(number((Exact(0x12), Exact(0xFF3456)), 6))
    assert switch.table("In.sliced").entries()[0].key == (Exact(0x12), Exact(0x3400))
    with pytest.raises(ControlError) as caught:
        switch.table("In.sliced").insert(number((Exact(0x12), Exact(0x3400)), 7))
    assert caught.value.code is Code.ALREADY_EXISTS
    switch.table("In.sliced").delete((Exact(0x12), Exact(0x34FF)))
    assert not switch.table("In.sliced").entries()


@given(st.integers(0, 2**32))
def test_lookups_agree_with_a_list(seed: int) -> None:
    """Random ternary entries with few masks and many ties, inserted, changed and deleted."""
    rng = random.Random(seed)
    masks = [rng.getrandbits(32) & rng.getrandbits(32) for _ in range(3)] + [0, 0xFFFFFFFF]
    model: dict[tuple[tuple[Match, ...], int], int] = {}
    with Switch(program("matching")) as switch:
        for step in range(60):
            mask, mask6 = rng.choice(masks), rng.choice((0, 1, 1 << 127 | 1))
            key = (
                Ternary(rng.randrange(4) * 0x01010101 & mask, mask),
                Ternary(rng.choice((0, 1)) & mask6, mask6),
            )
            priority = rng.randrange(1, 6)
            if (key, priority) not in model:
                switch.table("In.masks").insert(number(key, step, priority))
                model[key, priority] = step
            elif rng.random() < 0.5:
                switch.table("In.masks").modify(number(key, step + 1000, priority))
                model[key, priority] = step + 1000
            else:
                switch.table("In.masks").delete(key, priority)
                del model[key, priority]
            ip, ip6 = rng.randrange(4) * 0x01010101, rng.choice((0, 1, 1 << 127))
            matching = [
                (priority, value)
                for (each, priority), value in model.items()
                if ip & each[0].mask == each[0].value and ip6 & each[1].mask == each[1].value
            ]
            best = max((priority for priority, _ in matching), default=None)
            answer = ask(switch, MASKS, ip=ip, ip6=ip6)
            if best is None:
                assert answer.ran == 0
            else:
                first = next(value for priority, value in matching if priority == best)
                assert answer == Answer(0, NUMBER, first), "the first of equal priority, as in BMv2"
        assert {(e.key, e.priority): e.args[0] for e in switch.table("In.masks").entries()} == model


@given(st.integers(0, 2**32))
def test_longest_prefixes_agree_with_a_list(seed: int) -> None:
    """Random prefixes, most within one another, come and go: 32 bits beside an exact field, and 128 bits."""
    rng = random.Random(seed)
    trunk = {32: rng.getrandbits(32), 128: rng.getrandbits(128)}
    model: dict[tuple[str, tuple[Match, ...]], int] = {}

    def near(bits: int) -> int:
        return trunk[bits] ^ 1 << rng.randrange(bits)

    with Switch(program("matching")) as switch:
        for step in range(80):
            bits = rng.choice((32, 128))
            length = rng.choice((0, bits, 64 if bits == 128 else 6, rng.randrange(bits + 1)))
            prefix = Lpm(near(bits) >> (bits - length) << (bits - length), length)
            low = rng.randrange(2)
            table = "In.routes" if bits == 32 else "In.routes6"
            key: tuple[Match, ...] = (prefix, Exact(low)) if bits == 32 else (prefix,)
            if (table, key) in model:
                switch.table(table).delete(key)
                del model[table, key]
            else:
                switch.table(table).insert(number(key, step))
                model[table, key] = step
            address = near(bits)
            found = [
                (each[0].prefix_len, value)
                for (name, each), value in model.items()
                if name == table
                and isinstance(each[0], Lpm)
                and each[0].value == address >> (bits - each[0].prefix_len) << (bits - each[0].prefix_len)
                and each[1:] in ((), (Exact(low),))
            ]
            answer = ask(switch, LPM, ip=address, low=low) if bits == 32 else ask(switch, LPM6, ip6=address)
            if found:
                assert answer == Answer(1, NUMBER, max(found)[1])
            else:
                assert answer.hit == 0
        for table, key in model:
            switch.table(table).delete(key)
        assert ask(switch, LPM, ip=trunk[32]).hit == ask(switch, LPM6, ip6=trunk[128]).hit == 0


@given(st.integers(0, 2**32))
def test_rules_with_ranges_agree_with_a_list(seed: int) -> None:
    """Enough prefixes, ranges and optional values that groups of entries are merged, filled and emptied."""
    rng = random.Random(seed)
    model: dict[tuple[tuple[Match, ...], int], int] = {}
    with Switch(program("matching")) as switch:
        for step in range(150):
            length, low = rng.randrange(33), rng.randrange(100)
            mask = (1 << 32) - (1 << 32 - length)
            ports = rng.choice(((low, low), (low, low + rng.randrange(40)), (0, 0xFFFF)))
            key = (Ternary(0x0A0B0C0D & mask, mask), Range(*ports), Optional(rng.choice((None, 0, 7))))
            priority = rng.randrange(1, 20)
            if rng.random() < 0.4 and model:
                gone = rng.choice(list(model))
                switch.table("In.acl").delete(*gone)
                del model[gone]
            elif (key, priority) not in model:
                switch.table("In.acl").insert(number(key, step, priority))
                model[key, priority] = step
            ip, port, mac = 0x0A0B0C0D ^ (1 << rng.randrange(32)), rng.randrange(120), rng.choice((0, 7))
            matching = [
                (priority, value)
                for ((at, ports_, of), priority), value in model.items()
                if isinstance(at, Ternary) and isinstance(ports_, Range) and isinstance(of, Optional)
                if ip & at.mask == at.value
                and ports_.low <= port <= ports_.high
                and (of.value is None or of.value == mac)
            ]
            best = max((priority for priority, _ in matching), default=0)
            first = next((value for priority, value in matching if priority == best), 7)  # 7: the default
            assert ask(switch, ACL, ip=ip, port=port, mac=mac) == Answer(0, NUMBER, first)


def test_many_exact_entries_come_and_go(switch: Switch) -> None:
    rng = random.Random(7)
    keys = rng.sample(range(1 << 48), 64)
    for mac in keys:
        switch.table("In.exact_").insert(number((Exact(mac), Exact(0), Exact(1)), mac & 0xFFFFFFFF))
    rng.shuffle(keys)
    for count, mac in enumerate(keys):
        switch.table("In.exact_").delete((Exact(mac), Exact(0), Exact(1)))
        for other in keys:
            gone = keys.index(other) <= count
            answer = ask(switch, EXACT, mac=other)
            assert answer == (Answer(0, MISS, 0) if gone else Answer(1, NUMBER, other & 0xFFFFFFFF))


# -- direct counters -------------------------------------------------------------------------------------


def test_direct_counters_count_hits(switch: Switch) -> None:
    key = (Exact(1), Exact(0), Exact(1))
    switch.table("In.exact_").insert(number(key, 1))
    for mac in (1, 1, 2):
        ask(switch, EXACT, mac=mac)
    size = sum(QUERY) // 8
    assert switch.table("In.exact_").count(key) == Count(2, 2 * size)
    switch.table("In.exact_").modify(number(key, 2))
    assert switch.table("In.exact_").count(key) == Count(2, 2 * size)
    switch.table("In.exact_").set_count(key, Count(10, 20))
    ask(switch, EXACT, mac=1)
    assert switch.table("In.exact_").count(key) == Count(11, 20 + size)


# -- what is refused -------------------------------------------------------------------------------------

GOOD = (Exact(1), Exact(2), Exact(1))


@pytest.mark.parametrize(
    ("table", "entry", "code"),
    [
        ("In.nothing", number(GOOD, 1), Code.NOT_FOUND),
        ("In.exact_", Entry(GOOD, "In.nothing"), Code.INVALID_ARGUMENT),
        ("In.exact_", Entry(GOOD, "In.number", ()), Code.INVALID_ARGUMENT),
        ("In.exact_", Entry(GOOD, "In.number", (1 << 32,)), Code.OUT_OF_RANGE),
        ("In.exact_", number(GOOD[:2], 1), Code.INVALID_ARGUMENT),
        ("In.exact_", number((Exact(1 << 48), Exact(2), Exact(1)), 1), Code.OUT_OF_RANGE),
        ("In.exact_", number((Exact(-1), Exact(2), Exact(1)), 1), Code.OUT_OF_RANGE),
        ("In.exact_", number((Lpm(1, 4), Exact(2), Exact(1)), 1), Code.INVALID_ARGUMENT),
        ("In.exact_", number(GOOD, 1, priority=3), Code.INVALID_ARGUMENT),
        ("In.routes", number((Lpm(0, 33), Exact(1)), 1), Code.OUT_OF_RANGE),
        ("In.acl", number((Ternary(0, 0), Range(5, 4), Optional(None)), 1, 1), Code.INVALID_ARGUMENT),
        ("In.fixed", number((Exact(1), Ternary(0, 0)), 1, 1), Code.PERMISSION_DENIED),
    ],
)
def test_bad_entries_are_refused_and_change_nothing(
    switch: Switch, table: str, entry: Entry, code: Code
) -> None:
    before = {name: switch.table(name).entries() for name in switch.program.tables}
    with pytest.raises(ControlError) as caught:
        switch.table(table).insert(entry)
    assert caught.value.code is code, caught.value
    assert {name: switch.table(name).entries() for name in switch.program.tables} == before


def test_duplicates_absences_and_full_tables(switch: Switch) -> None:
    def refused(code: Code) -> AbstractContextManager[object]:
        return pytest.raises(ControlError, match=code.name)

    switch.table("In.exact_").insert(number(GOOD, 1))
    with refused(Code.ALREADY_EXISTS):
        switch.table("In.exact_").insert(number(GOOD, 2))
    for mac in range(2, 65):
        switch.table("In.exact_").insert(number((Exact(mac), *GOOD[1:]), mac))
    with refused(Code.RESOURCE_EXHAUSTED):
        switch.table("In.exact_").insert(number((Exact(65), *GOOD[1:]), 1))
    with refused(Code.NOT_FOUND):
        switch.table("In.exact_").modify(number((Exact(66), *GOOD[1:]), 1))
    with refused(Code.NOT_FOUND):
        switch.table("In.exact_").delete((Exact(66), *GOOD[1:]))
    with refused(Code.NOT_FOUND):
        switch.table("In.exact_").count((Exact(66), *GOOD[1:]))
    with refused(Code.FAILED_PRECONDITION):
        switch.table("In.routes").count((Lpm(0, 0), Exact(1)))
    with refused(Code.PERMISSION_DENIED):
        switch.table("In.fixed").set_default("In.number", (1,))
    with refused(Code.INVALID_ARGUMENT):
        switch.table("In.acl").set_default("In.wide", (1,))


def test_prefixes_and_masked_bits_are_canonical(switch: Switch) -> None:
    switch.table("In.routes").insert(number((Lpm(0x0A0102FF, 24), Exact(1)), 1))
    assert switch.table("In.routes").entries()[0].key == (Lpm(0x0A010200, 24), Exact(1))
    with pytest.raises(ControlError, match="ALREADY_EXISTS"):
        switch.table("In.routes").insert(number((Lpm(0x0A010203, 24), Exact(1)), 1))


# -- tables of a program's own entries, and small ones -----------------------------------------------------


def test_constant_entries_of_every_kind() -> None:
    """Check that they cannot be changed; what they match is compared with BMv2 (differential)."""
    with Switch(program("kinds")) as fixed:
        for table, entries in (("In.fixed_exact", 2), ("In.fixed_lpm", 4), ("In.fixed_range", 4)):
            present = fixed.table(table).entries()
            assert len(present) == entries
            with pytest.raises(ControlError, match="PERMISSION_DENIED"):
                fixed.table(table).delete(present[0].key, present[0].priority)
            with pytest.raises(ControlError, match="PERMISSION_DENIED"):
                fixed.table(table).insert(present[0])


def test_a_table_with_room_for_one() -> None:
    with Switch(program("kinds")) as small:
        small.table("In.single").insert(Entry((Exact(1),), "In.set", (1,)))
        with pytest.raises(ControlError, match="ALREADY_EXISTS"):
            small.table("In.single").insert(Entry((Exact(1),), "In.add", (1,)))
        with pytest.raises(ControlError, match="RESOURCE_EXHAUSTED"):
            small.table("In.single").insert(Entry((Exact(2),), "In.add", (1,)))
        small.table("In.single").delete((Exact(1),))
        small.table("In.single").insert(Entry((Exact(2),), "In.add", (1,)))


def test_prefix_lengths_beside_a_ternary_field_decide_nothing() -> None:
    with Switch(program("kinds")) as mixed:
        longer = (Lpm(0x0A010000, 16), Ternary(0, 0), Exact(1))
        shorter = (Lpm(0x0A000000, 8), Ternary(7, 0xFF), Exact(1))
        mixed.table("In.mixed").insert(Entry(longer, "In.set", (1,), 1))
        mixed.table("In.mixed").insert(Entry(shorter, "In.set", (2,), 2))
        answers = [
            one(mixed, pack([(0, 8), (src, 32), (dst, 32), (0, 16), (1, 8)]))[12:]
            for src, dst in ((0x0A010203, 7), (0x0A010203, 8), (0x0A990203, 7), (0x0A990203, 8))
        ]
        assert answers == [b"\1\0\2", b"\1\0\1", b"\1\0\2", b"\0\0\0"]
