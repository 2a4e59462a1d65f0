# SPDX-License-Identifier: Apache-2.0
"""A controller written with finsy for the program `meters`: stations are learned, metered, and age."""

import asyncio

import finsy as fy
from lab import TIMEOUT, Lab, expect

LEARN = 4
RATES = fy.P4MeterConfig(cir=1000, cburst=100, pir=2000, pburst=200)


def order(what: int, who: int) -> bytes:
    """Return a packet of the program."""
    return bytes([what, 0, 0]) + who.to_bytes(6, "big") + bytes(3) + b"payload"


async def learn(sw: fy.Switch, lab: Lab) -> None:
    """Each station that a digest tells of gets a metered entry that ages."""
    await sw.insert([fy.P4DigestEntry("learned_t", max_list_size=1, ack_timeout_ns=10**9)])
    lists = sw.read_digests("learned_t")
    for who in (0xA, 0xB):
        arriving = asyncio.ensure_future(anext(lists))
        await asyncio.sleep(0)  # it listens
        lab.send(1, order(LEARN, who))
        found = await asyncio.wait_for(arriving, TIMEOUT)
        expect(list(found), [{"who": who, "port": 1, "mark": 0}])
        await sw.write([found.ack()])
        entry = fy.P4TableEntry(
            "flows",
            match=fy.Match({"hdr.order.who": who}),
            action=fy.Action("meet"),
            meter_config=RATES,
            idle_timeout_ns=20_000_000,
        )
        await sw.insert([entry])


async def age(sw: fy.Switch) -> None:
    """Both are reported as idle, and deleted."""
    notices = sw.read_idle_timeouts()
    left = {0xA, 0xB}
    while left:
        notice = await asyncio.wait_for(anext(notices), TIMEOUT)
        for entry in notice.table_entry:
            expect(entry.idle_timeout_ns, 20_000_000)
            left.discard(entry.match["who"])
    await sw.modify(
        [fy.P4TableEntry("flows", match=fy.Match({"hdr.order.who": 0xB}), action=fy.Action("meet"))]
    )
    await sw.delete([fy.P4TableEntry("flows", match=fy.Match({"hdr.order.who": 0xA}))])


async def final_state(sw: fy.Switch) -> None:
    """All that is in the switch at the end."""
    question = fy.P4TableEntry(meter_config=RATES, counter_data=fy.P4CounterData())
    [entry] = [entry async for entry in sw.read([question])]
    expect((entry.match["who"], entry.meter_config, entry.idle_timeout_ns), (0xB, None, 0))
    await sw.modify([fy.P4MeterEntry("packet_meters", index=3, config=RATES)])
    cells = [cell async for cell in sw.read(fy.P4MeterEntry("packet_meters"))]
    expect([cell.index for cell in cells if cell.config == RATES], [3])
    [digest] = [digest async for digest in sw.read([fy.P4DigestEntry("learned_t")])]
    expect((digest.max_list_size, digest.ack_timeout_ns), (1, 10**9))


async def main() -> None:
    """Everything, one after the other."""
    lab = Lab()
    options = fy.SwitchOptions(p4info=lab.p4info, p4blob=lab.program)
    async with fy.Switch("sw", lab.address, options) as sw:
        await sw.delete_all()
        await learn(sw, lab)
        await age(sw)
        await final_state(sw)
    print("done")


asyncio.run(main())
