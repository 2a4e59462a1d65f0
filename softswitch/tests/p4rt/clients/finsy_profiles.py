# SPDX-License-Identifier: Apache-2.0
"""A controller written with finsy for the program `profiles`: members, groups and one-shots."""

import asyncio

import finsy as fy
from lab import Lab, expect

OUT = 3  # the port where answers leave


def query(table: int, address: int, port: int = 0) -> bytes:
    """Return a packet of the program."""
    return bytes([table]) + address.to_bytes(4, "big") + port.to_bytes(2, "big") + bytes(9)


def number(answer: bytes) -> int:
    """Return what the action carried; 0 when none ran."""
    return int.from_bytes(answer[2:6], "big")


def ask(lab: Lab, table: int, address: int, port: int = 0) -> int:
    """Return what a packet is answered."""
    lab.send(1, query(table, address, port))
    return number(lab.receive(OUT))


def member(profile: str, identity: int, value: int) -> fy.P4ActionProfileMember:
    """Return a member that answers with a number."""
    action = fy.Action("number", value=value)
    return fy.P4ActionProfileMember(profile, member_id=identity, action=action)


async def program(sw: fy.Switch, lab: Lab) -> None:
    """Members and groups first, then the entries that refer to them; a member changes under its entries."""
    await sw.insert([member("shared", 1, 11), *(member("by_value", each, 100 + each) for each in (1, 2))])
    members = [fy.P4Member(1, weight=1), fy.P4Member(2, weight=1)]
    await sw.insert([fy.P4ActionProfileGroup("by_value", group_id=9, max_size=4, members=members)])
    one_shot = fy.IndirectAction([2 * fy.Action("number", value=7), 1 * fy.Action("number", value=8)])
    await sw.insert(
        [
            fy.P4TableEntry(
                "first", match=fy.Match({"hdr.query.ip": 1}), action=fy.IndirectAction(member_id=1)
            ),
            fy.P4TableEntry(
                "chosen", match=fy.Match({"hdr.query.ip": 2}), action=fy.IndirectAction(group_id=9)
            ),
            fy.P4TableEntry("spread", match=fy.Match({"hdr.query.ip": "10.0.0.0/8"}), action=one_shot),
        ]
    )
    expect(ask(lab, 1, 1), 11)
    expect({ask(lab, 4, 2, port) for port in range(8)}, {101, 102})
    expect({ask(lab, 3, 0x0A000000 + each) for each in range(3)} <= {7, 8}, True)
    await sw.modify([member("shared", 1, 12)])
    await sw.modify([fy.P4ActionProfileGroup("by_value", group_id=9, max_size=4, members=members[1:])])
    expect(ask(lab, 1, 1), 12)
    expect({ask(lab, 4, 2, port) for port in range(8)}, {102})
    try:
        await sw.delete([member("by_value", 2, 102)])
    except fy.P4ClientError as error:
        expect(error.details[0].canonical_code, fy.GRPCStatusCode.FAILED_PRECONDITION)
    else:
        raise SystemExit("a member that a group needs was deleted")


async def final_state(sw: fy.Switch) -> None:
    """All that is in the switch at the end, and nothing once all is deleted."""
    members = [each async for each in sw.read([fy.P4ActionProfileMember()])]
    found = {(each.action_profile_id, each.member_id, each.action.args["value"]) for each in members}
    expect(found, {("shared", 1, 12), ("by_value", 1, 101), ("by_value", 2, 102)})
    [group] = [each async for each in sw.read([fy.P4ActionProfileGroup()])]
    expect((group.group_id, group.max_size, [each.member_id for each in group.members]), (9, 4, [2]))
    actions = {entry.table_id: entry.action async for entry in sw.read([fy.P4TableEntry()])}
    expect((actions["first"].member_id, actions["chosen"].group_id), (1, 9))
    expect(sorted(weight for weight, _ in actions["spread"].action_set), [1, 2])
    await sw.delete_all()
    left = [each async for each in sw.read([fy.P4TableEntry(), fy.P4ActionProfileMember()])]
    expect(left, [])


async def main() -> None:
    """Everything, one after the other."""
    lab = Lab()
    options = fy.SwitchOptions(p4info=lab.p4info, p4blob=lab.program)
    async with fy.Switch("sw", lab.address, options) as sw:
        await sw.delete_all()
        await program(sw, lab)
        await final_state(sw)
    print("done")


asyncio.run(main())
