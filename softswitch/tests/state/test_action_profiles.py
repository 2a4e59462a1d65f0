# SPDX-License-Identifier: Apache-2.0
"""Action profiles and selectors: whose action runs, which member a hash chooses, and what is refused."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from softp4.errors import Code, ControlError
from softp4.state.action_profiles import ProfileLimits
from softp4.state.entry import (
    ActionSet,
    ByGroup,
    ByMember,
    Count,
    Entry,
    Exact,
    Group,
    GroupMember,
    Lpm,
    Member,
    Ternary,
    Via,
    Watch,
    WeightedAction,
)
from softp4.switch import Switch
from tests.programs import one, pack, program, unpack

FIRST, SECOND, SPREAD, CHOSEN = range(1, 5)
NOTHING, NUMBER, WIDE = 0, 1, 2
QUERY = (8, 32, 16, 4, 4, 64)


@pytest.fixture
def switch() -> Iterator[Switch]:
    with Switch(program("profiles")) as made:
        yield made


def frame(table: int, *, ip: int = 0, port: int = 0, low: int = 0, entropy: int = 0) -> bytes:
    return pack(list(zip((table, ip, port, low, 0, entropy), QUERY, strict=True)))


def ask(switch: Switch, table: int, **fields: int) -> tuple[int, int, int]:
    """Hit or which action as the program saw it, which action ran, its argument."""
    hit, ran, value, wide = unpack(one(switch, frame(table, **fields)), (8, 8, 32, 128))
    return hit, ran, value or wide


def values(switch: Switch, ip: int = 0) -> list[int]:
    """Return what the table `chosen`, whose hash is the port, answers to the ports 0 to 15."""
    return [ask(switch, CHOSEN, ip=ip, port=port)[2] for port in range(16)]


def refused(code: Code, match: str = "") -> AbstractContextManager[object]:
    return pytest.raises(ControlError, match=f"{code.name}.*{match}")


def number(member: int, value: int) -> Member:
    return Member(member, "In.number", (value,))


def group(identity: int, **weights: int) -> Group:
    """`m3=2` is member 3 with weight 2."""
    members = (GroupMember(int(name[1:]), weight) for name, weight in weights.items())
    return Group(identity, tuple(members))


def point(switch: Switch, via: Via, ip: int = 0) -> None:
    switch.table("In.chosen").insert(Entry((Exact(ip),), via=via))


# -- members -------------------------------------------------------------------------------------------------


def test_entries_of_two_tables_share_a_member(switch: Switch) -> None:
    switch.profile("In.shared").insert_member(number(1, 11))
    switch.profile("In.shared").insert_member(Member(2, "In.wide", (1 << 100,)))
    switch.profile("In.shared").insert_member(Member(3, "NoAction"))
    for ip in (1, 2, 3):
        switch.table("In.first").insert(Entry((Exact(ip),), via=ByMember(ip)))
    switch.table("In.second").insert(Entry((Ternary(0x80, 0x80),), priority=1, via=ByMember(1)))
    assert [ask(switch, FIRST, ip=ip) for ip in (1, 2, 3, 4)] == [
        (1, NUMBER, 11),
        (2, WIDE, 1 << 100),
        (0, NOTHING, 0),
        (0, NOTHING, 0),
    ]
    assert ask(switch, SECOND, port=0x81) == (1, NUMBER, 11)
    assert ask(switch, SECOND, port=1) == (0, NOTHING, 0)
    switch.profile("In.shared").modify_member(Member(1, "In.wide", (5,)))
    assert ask(switch, FIRST, ip=1) == (2, WIDE, 5)
    assert ask(switch, SECOND, port=0x80) == (1, WIDE, 5)
    switch.table("In.first").modify(Entry((Exact(1),), via=ByMember(3)))
    assert ask(switch, FIRST, ip=1) == (0, NOTHING, 0)
    assert switch.table("In.first").count((Exact(1),)) == Count(3, 3 * sum(QUERY) // 8)
    assert switch.profile("In.shared").members()[0] == Member(1, "In.wide", (5,))


def test_a_member_in_use_stays(switch: Switch) -> None:
    switch.profile("In.by_value").insert_member(number(1, 11))
    switch.profile("In.by_value").insert_member(number(2, 12))
    switch.profile("In.by_value").insert_group(group(1, m2=1))
    point(switch, ByMember(1), ip=1)
    point(switch, ByGroup(1), ip=2)
    for delete in (
        lambda: switch.profile("In.by_value").delete_member(1),
        lambda: switch.profile("In.by_value").delete_member(2),
        lambda: switch.profile("In.by_value").delete_group(1),
    ):
        with refused(Code.FAILED_PRECONDITION, "in use"):
            delete()
    switch.table("In.chosen").modify(Entry((Exact(2),), via=ByMember(1)))
    switch.profile("In.by_value").delete_group(1)
    switch.profile("In.by_value").delete_member(2)
    switch.table("In.chosen").delete((Exact(1),))
    with refused(Code.FAILED_PRECONDITION, "in use"):
        switch.profile("In.by_value").delete_member(1)
    switch.table("In.chosen").delete((Exact(2),))
    switch.profile("In.by_value").delete_member(1)
    assert switch.profile("In.by_value").members() == switch.profile("In.by_value").groups() == []


# -- groups --------------------------------------------------------------------------------------------------


def test_the_hash_counts_members_in_order_of_their_making(switch: Switch) -> None:
    for member in (5, 3, 9):
        switch.profile("In.by_value").insert_member(number(member, member))
    switch.profile("In.by_value").insert_group(group(1, m9=1, m5=1, m3=1))
    point(switch, ByGroup(1))
    assert values(switch) == [(5, 3, 9)[port % 3] for port in range(16)]
    switch.profile("In.by_value").modify_group(group(1, m9=1, m5=1))
    assert values(switch) == [(5, 9)[port % 2] for port in range(16)]
    switch.profile("In.by_value").modify_member(number(9, 90))
    assert values(switch) == [(5, 90)[port % 2] for port in range(16)]


def test_a_weight_is_so_many_members(switch: Switch) -> None:
    """Each of BMv2's copies has the lowest handle that is free, which is where the hash finds it."""
    for member in (1, 2, 3):
        switch.profile("In.by_value").insert_member(number(member, member))
    switch.profile("In.by_value").insert_group(group(1, m3=1, m2=3, m1=2))
    point(switch, ByGroup(1))
    order = [1, 2, 3, 1, 2, 2]  # handles 0, 1, 2; 3: 1's copy; 4 and 5: 2's
    assert values(switch) == [order[port % 6] for port in range(16)]
    switch.profile("In.by_value").modify_member(number(2, 20))
    assert values(switch).count(20) == 7
    switch.profile("In.by_value").modify_group(group(1, m3=2, m2=1))
    switch.profile("In.by_value").insert_member(
        number(4, 4)
    )  # in the hole that 1's copy left, so before 3's copy
    switch.profile("In.by_value").modify_group(group(1, m4=1, m3=2, m2=1))
    assert values(switch)[:4] == [20, 3, 4, 3]
    assert switch.profile("In.by_value").groups() == [group(1, m4=1, m3=2, m2=1)]


def test_an_empty_group_does_nothing(switch: Switch) -> None:
    switch.profile("In.by_value").insert_member(number(1, 1))
    switch.profile("In.by_value").insert_group(Group(1))
    with refused(Code.FAILED_PRECONDITION, "empty"):
        point(switch, ByGroup(1))
    switch.profile("In.by_value").modify_group(group(1, m1=1))
    point(switch, ByGroup(1))
    switch.profile("In.by_value").modify_group(Group(1))
    assert ask(switch, CHOSEN)[1] == NOTHING
    switch.profile("In.by_value").delete_member(1)


def test_the_hash_is_of_the_fields_the_program_names(switch: Switch) -> None:
    """CRC-16 over entropy and two halves of a byte; the header that is not there is left out."""
    for member in range(7):
        switch.profile("In.by_crc16").insert_member(number(member + 1, member))
    members = tuple(GroupMember(member + 1) for member in range(7))
    switch.profile("In.by_crc16").insert_group(Group(1, members))
    switch.table("In.spread").insert(Entry((Lpm(0x0A000000, 8),), via=ByGroup(1)))

    def crc16(data: bytes) -> int:
        crc = 0
        for byte in data:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
        return crc

    for entropy in range(50):
        hashed = crc16(pack([(entropy, 64), (entropy % 16, 4), (0, 4)]))
        answer = ask(switch, SPREAD, ip=0x0A010101, low=entropy % 16, entropy=entropy)
        assert answer == (1, NUMBER, hashed % 7)


def test_members_whose_port_is_down_are_not_chosen(switch: Switch) -> None:
    for member in (1, 2, 3):
        switch.profile("In.by_value").insert_member(number(member, member))
    members = (GroupMember(1, 1, Watch(1)), GroupMember(2, 2, Watch(2)), GroupMember(3))
    switch.set_port_up(2, False)
    switch.profile("In.by_value").insert_group(Group(1, members))
    point(switch, ByGroup(1))
    assert set(values(switch)) == {1, 3}
    switch.set_port_up(1, False)
    assert set(values(switch)) == {3}
    switch.profile("In.by_value").modify_group(Group(1, members[:2]))
    assert ask(switch, CHOSEN)[1] == NOTHING
    switch.set_port_up(2, True)
    assert set(values(switch)) == {2}


# -- one-shot groups ---------------------------------------------------------------------------------------


def test_one_shot_groups_live_with_their_entries(switch: Switch) -> None:
    actions = ActionSet(
        (
            WeightedAction("In.number", (1,), weight=2),
            WeightedAction("In.number", (2,), watch=Watch(7)),
            WeightedAction("In.wide", (3,)),
        )
    )
    point(switch, actions)
    assert values(switch) == [(1, 1, 2, 3)[port % 4] for port in range(16)]
    assert switch.table("In.chosen").entries() == [Entry((Exact(0),), via=actions)]
    assert switch.profile("In.by_value").members() == switch.profile("In.by_value").groups() == []
    switch.set_port_up(7, False)
    assert values(switch) == [(1, 1, 3)[port % 3] for port in range(16)]
    switch.table("In.chosen").modify(Entry((Exact(0),), via=ActionSet((WeightedAction("In.number", (8,)),))))
    assert values(switch) == [8] * 16
    with refused(Code.INVALID_ARGUMENT, "one-shot"):
        switch.profile("In.by_value").insert_member(number(1, 1))
    switch.table("In.chosen").delete((Exact(0),))
    switch.profile("In.by_value").insert_member(number(1, 1))
    with refused(Code.INVALID_ARGUMENT, "one-shot"):
        point(switch, actions)


# -- what is refused ---------------------------------------------------------------------------------------


def test_wrong_members_and_groups_are_refused_and_change_nothing(switch: Switch) -> None:
    for member in (1, 2):
        switch.profile("In.by_value").insert_member(number(member, member))
    switch.profile("In.by_value").insert_group(Group(1, (GroupMember(1),), max_size=3))
    before = switch.profile("In.by_value").members(), switch.profile("In.by_value").groups()
    with refused(Code.NOT_FOUND):
        switch.profile("In.nothing").insert_member(number(1, 1))
    with refused(Code.ALREADY_EXISTS):
        switch.profile("In.by_value").insert_member(number(1, 7))
    with refused(Code.INVALID_ARGUMENT, "no action"):
        switch.profile("In.by_value").insert_member(Member(3, "In.nothing"))
    with refused(Code.INVALID_ARGUMENT, "takes 1"):
        switch.profile("In.by_value").insert_member(Member(3, "In.number"))
    with refused(Code.OUT_OF_RANGE):
        switch.profile("In.by_value").modify_member(number(1, 1 << 32))
    with refused(Code.NOT_FOUND):
        switch.profile("In.by_value").modify_member(number(3, 1))
    with refused(Code.NOT_FOUND):
        switch.profile("In.by_value").delete_member(3)
    with refused(Code.INVALID_ARGUMENT, "selector"):
        switch.profile("In.shared").insert_group(Group(1))
    with refused(Code.ALREADY_EXISTS):
        switch.profile("In.by_value").insert_group(Group(1))
    with refused(Code.NOT_FOUND, "no member 3"):
        switch.profile("In.by_value").insert_group(group(2, m3=1))
    with refused(Code.INVALID_ARGUMENT, "positive"):
        switch.profile("In.by_value").insert_group(group(2, m1=0))
    with refused(Code.INVALID_ARGUMENT, "twice"):
        switch.profile("In.by_value").insert_group(Group(2, (GroupMember(1), GroupMember(1))))
    with refused(Code.RESOURCE_EXHAUSTED, "above 3"):
        switch.profile("In.by_value").modify_group(group(1, m1=2, m2=2))
    with refused(Code.INVALID_ARGUMENT, "max_size"):
        switch.profile("In.by_value").modify_group(Group(1, (), max_size=4))
    with refused(Code.RESOURCE_EXHAUSTED, "64"):
        switch.profile("In.by_value").insert_group(group(2, m1=32, m2=32))
    with refused(Code.NOT_FOUND):
        switch.profile("In.by_value").delete_group(2)
    assert (switch.profile("In.by_value").members(), switch.profile("In.by_value").groups()) == before


def test_a_full_profile(switch: Switch) -> None:
    for member in range(1, 5):
        switch.profile("In.shared").insert_member(number(member, member))
    with refused(Code.RESOURCE_EXHAUSTED, "4 members"):
        switch.profile("In.shared").insert_member(number(5, 5))


def test_limits_by_members(switch: Switch) -> None:
    limits = ProfileLimits(size=2, by_members=True, group_size=2, member_weight=50)
    switch.profile("In.by_value").limit(limits)
    for member in (1, 2):
        switch.profile("In.by_value").insert_member(number(member, member))
    with refused(Code.INVALID_ARGUMENT, "above 50"):
        switch.profile("In.by_value").insert_group(group(1, m1=51))
    with refused(Code.INVALID_ARGUMENT, "max_size"):
        switch.profile("In.by_value").insert_group(Group(1, (), max_size=3))
    switch.profile("In.by_value").insert_group(group(1, m1=50, m2=50))
    with refused(Code.RESOURCE_EXHAUSTED, "2"):
        switch.profile("In.by_value").insert_group(group(2, m1=1))


@pytest.mark.parametrize(
    ("table", "entry", "code"),
    [
        ("In.chosen", Entry((Exact(1),), "In.number", (1,)), Code.INVALID_ARGUMENT),
        ("In.chosen", Entry((Exact(1),), via=ByMember(1)), Code.INVALID_ARGUMENT),
        ("In.chosen", Entry((Exact(1),), via=ByGroup(1)), Code.INVALID_ARGUMENT),
        ("In.chosen", Entry((Exact(1),), via=ActionSet(())), Code.UNIMPLEMENTED),
        (
            "In.chosen",
            Entry((Exact(1),), via=ActionSet((WeightedAction("In.number", (1,), 0),))),
            Code.INVALID_ARGUMENT,
        ),
        (
            "In.chosen",
            Entry((Exact(1),), via=ActionSet((WeightedAction("In.number", (1,), 65),))),
            Code.RESOURCE_EXHAUSTED,
        ),
        ("In.first", Entry((Exact(1),), via=ByGroup(1)), Code.INVALID_ARGUMENT),
    ],
)
def test_wrong_references_are_refused(switch: Switch, table: str, entry: Entry, code: Code) -> None:
    with refused(code):
        switch.table(table).insert(entry)
    assert switch.table(table).entries() == []
    switch.profile("In.by_value").insert_member(number(1, 1))  # no one-shot group was left behind


def test_the_default_of_a_table_with_a_profile_is_nothing(switch: Switch) -> None:
    """p4c leaves out what the program says, and P4Runtime has no way to set one."""
    assert switch.table("In.chosen").default() is None
    assert ask(switch, CHOSEN) == (0, NOTHING, 0)
    with refused(Code.INVALID_ARGUMENT, "default"):
        switch.table("In.chosen").set_default("In.number", (1,))
