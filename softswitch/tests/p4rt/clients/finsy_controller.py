# SPDX-License-Identifier: Apache-2.0
"""A controller written with finsy for the program `control`."""

import asyncio

import finsy as fy
from lab import STATION, TIMEOUT, Lab, expect, frame

RULES = [
    fy.P4TableEntry(
        "stations", match=fy.Match(dst=STATION), action=fy.Action("forward", port=1), metadata=b"first"
    ),
    fy.P4TableEntry(
        "stations",
        match=fy.Match(dst=9),
        action=fy.Action("to_controller", reason=3),
        counter_data=fy.P4CounterData(packet_count=5),
    ),
    fy.P4TableEntry("prefixes", match=fy.Match(src="0x0a0000000000/8"), action=fy.Action("drop")),
    fy.P4TableEntry(
        "filters",
        match=fy.Match(dst="0x10/&0xf0", port=5, type="100...200"),
        action=fy.Action("drop"),
        priority=7,
    ),
    fy.P4MulticastGroupEntry(3, replicas=[1, (2, 1)], metadata=b"flood"),
]


def _length(lab: Lab) -> int:
    return 0 if lab.bmv2 else 64  # BMv2 cuts no copies


async def program(sw: fy.Switch, lab: Lab) -> None:
    """Insert, modify and delete; what is refused is told."""
    await sw.delete_all()
    await sw.insert([*RULES, fy.P4CloneSessionEntry(7, replicas=[2], packet_length_bytes=_length(lab))])
    try:
        await sw.insert([RULES[0]])
    except fy.P4ClientError as error:
        expect(error.details[0].canonical_code, fy.GRPCStatusCode.ALREADY_EXISTS)
    else:
        raise SystemExit("an entry was inserted twice")
    await sw.modify(
        [fy.P4TableEntry("stations", is_default_action=True, action=fy.Action("forward", port=2))]
    )
    await sw.insert([fy.P4TableEntry("stations", match=fy.Match(dst=77), action=fy.Action("drop"))])
    await sw.delete([fy.P4TableEntry("stations", match=fy.Match(dst=77))])


async def packets(sw: fy.Switch, lab: Lab) -> None:
    """Forwarding, packet-out and packet-in."""
    lab.send(2, frame(STATION))
    expect(lab.receive(1), frame(STATION))
    await sw.write(fy.P4PacketOut(frame(8), egress_port=2, label=0))
    expect(lab.receive(2), frame(8))
    arriving = sw.read_packets()
    first = asyncio.ensure_future(anext(arriving))
    await asyncio.sleep(0)  # it listens
    lab.send(1, frame(9))
    packet = await asyncio.wait_for(first, TIMEOUT)
    expect((packet.payload, packet.metadata), (frame(9), {"ingress_port": 1, "reason": 3}))


async def final_state(sw: fy.Switch, lab: Lab) -> None:
    """All that is in the switch at the end."""
    found = [entry async for entry in sw.read([fy.P4TableEntry(counter_data=fy.P4CounterData())])]
    entries = {
        (entry.table_id, str(entry.match), entry.action.name, entry.priority, entry.metadata)
        for entry in found
        if entry.table_id != "fixed"
    }
    expect(
        entries,
        {
            ("stations", str(fy.Match(dst=STATION)), "forward", 0, b"first"),
            ("stations", str(fy.Match(dst=9)), "to_controller", 0, b""),
            ("prefixes", str(fy.Match(src=(0x0A0000000000, 8))), "drop", 0, b""),
            ("filters", str(fy.Match(dst=(0x10, 0xF0), port=5, type=(100, 200))), "drop", 7, b""),
        },
    )
    counts = {
        entry.match["dst"]: entry.counter_data.packet_count for entry in found if entry.table_id == "stations"
    }
    expect(counts, {STATION: 1, 9: 6})
    default = [e async for e in sw.read([fy.P4TableEntry("stations", is_default_action=True)])]
    expect([(e.action.name, e.action.args) for e in default], [("forward", {"port": 2})])
    groups = [group async for group in sw.read(fy.P4MulticastGroupEntry())]
    expect(
        [(g.multicast_group_id, len(g.replicas), g.metadata) for g in groups],
        [(3, 2, b"" if lab.bmv2 else b"flood")],
    )
    sessions = [session async for session in sw.read(fy.P4CloneSessionEntry())]
    expect([(s.session_id, s.packet_length_bytes) for s in sessions], [(7, _length(lab))])
    cells = [cell async for cell in sw.read(fy.P4CounterEntry("frames"))]
    expect({c.index: c.packet_count for c in cells if c.packet_count}, {1: 1, 2: 1, 510 & 15: 1})
    if not lab.bmv2:  # which has no access to registers over P4Runtime
        await sw.modify([fy.P4RegisterEntry("cells", index=3, data=0x1234)])
        registers = [cell async for cell in sw.read(fy.P4RegisterEntry("cells"))]
        expect([cell.data for cell in registers], [0x1234, 0, 0, 0x1234, 0, 0, 0, 0])
    await sw.delete([*groups, *sessions])
    await sw.delete_all()
    left = [
        entry
        async for entry in sw.read([fy.P4TableEntry(), fy.P4MulticastGroupEntry(), fy.P4CloneSessionEntry()])
    ]
    expect([entry for entry in left if getattr(entry, "table_id", "") != "fixed"], [])


async def take_over(lab: Lab, options: fy.SwitchOptions) -> None:
    """A second controller stands by, and follows when the first one goes."""
    first = fy.Switch("first", lab.address, options)
    async with first:
        expect(first.is_primary, True)
        await first.insert([RULES[0]])
        second = fy.Switch("second", lab.address, options(initial_election_id=5))
        following = asyncio.ensure_future(second.__aenter__())
        await asyncio.wait_for(following, TIMEOUT)
        expect(second.is_primary, False)
        promoted = second.ee.event_future(fy.SwitchEvent.BECOME_PRIMARY)
    await asyncio.wait_for(promoted, TIMEOUT)
    await second.delete([RULES[0]])
    await second.__aexit__(None, None, None)


async def main() -> None:
    """Everything, one after the other."""
    lab = Lab()
    options = fy.SwitchOptions(p4info=lab.p4info, p4blob=lab.program)
    async with fy.Switch("sw", lab.address, options) as sw:
        expect(sw.is_primary, True)
        if not lab.bmv2:
            expect(str(sw.p4runtime_version), "1.5.0")
        await program(sw, lab)
        await packets(sw, lab)
        await final_state(sw, lab)
    await take_over(lab, options)
    print("done")


asyncio.run(main())
