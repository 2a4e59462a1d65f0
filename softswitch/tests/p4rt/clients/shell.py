# SPDX-License-Identifier: Apache-2.0
"""A session of p4runtime-shell with the program `control`, as its documentation has it."""

import p4runtime_sh.shell as sh
from lab import STATION, TIMEOUT, Lab, expect, frame


def tables() -> None:
    """Every match kind; insert, modify, delete; defaults."""
    for dst, port in (("02:00:00:00:00:01", "1"), ("02:00:00:00:00:02", "2"), ("02:00:00:00:00:03", "1")):
        entry = sh.TableEntry("stations")(action="forward")
        entry.match["dst"] = dst
        entry.action["port"] = port
        entry.insert()
    entry.action["port"] = "2"
    entry.modify()
    entry.match["dst"] = "02:00:00:00:00:02"
    entry.delete()
    entry = sh.TableEntry("prefixes")(action="drop")
    entry.match["src"] = "0x0a0000000000/8"
    entry.insert()
    entry = sh.TableEntry("filters")(action="drop", priority=7)
    entry.match["dst"] = "0x10&&&0xf0"
    entry.match["port"] = "5"
    entry.match["type"] = "100..200"
    entry.insert()
    entry = sh.TableEntry("stations")(is_default=True, action="forward")
    entry.action["port"] = "2"
    entry.modify()


def replication() -> None:
    """A multicast group and a clone session."""
    group = sh.MulticastGroupEntry(3)
    group.add(1, 1).add(2, 1)
    group.insert()
    session = sh.CloneSessionEntry(7)
    session.add(2, 1)
    session.insert()


def packets(lab: Lab) -> None:
    """Forwarding, packet-out and packet-in."""
    lab.send(2, frame(STATION))
    expect(lab.receive(1), frame(STATION))
    sh.PacketOut(payload=frame(9), egress_port="2", label="0").send()
    expect(lab.receive(2), frame(9))
    entry = sh.TableEntry("stations")(action="to_controller")
    entry.match["dst"] = "02:00:00:00:00:09"
    entry.action["reason"] = "0x15"
    entry.insert()
    arriving = sh.PacketIn()
    lab.send(1, frame(0x020000000009))
    packet = arriving.packet_in_queue.get(timeout=TIMEOUT).packet
    expect(packet.payload, frame(0x020000000009))
    expect({m.metadata_id: m.value for m in packet.metadata}, {1: b"\1", 2: b"\x15"})
    entry.action = sh.Action("flood")
    entry.action["group"] = "3"
    entry.modify()
    lab.send(1, frame(0x020000000009))
    for port in (1, 2):
        expect(lab.receive(port), frame(0x020000000009))


def counters() -> None:
    """What came through is counted; counters can be set."""
    cell = sh.CounterEntry("frames")
    counts = {each.index: each.packet_count for each in cell.read()}
    expect({index: count for index, count in counts.items() if count}, {1: 2, 2: 1, 510 & 15: 1})
    cell.index = 1
    cell.packet_count = 70
    cell.modify()
    expect([each.packet_count for each in cell.read()], [70])
    direct = sh.DirectCounterEntry("stations_hits")
    direct.table_entry.match["dst"] = "02:00:00:00:00:01"
    expect([each.packet_count for each in direct.read()], [1])


def final_state() -> None:
    """All that is in the switch at the end."""
    entries = []
    for table in ("stations", "prefixes", "filters"):
        for entry in sorted(sh.TableEntry(table).read(), key=lambda entry: str(entry.msg().match)):
            values = {m.field_id: m.WhichOneof("field_match_type") for m in entry.msg().match}
            action = entry.action
            entries.append((table, values, action.action_name.rpartition(".")[2], entry.priority))
    expect(
        entries,
        [
            ("stations", {1: "exact"}, "forward", 0),
            ("stations", {1: "exact"}, "forward", 0),
            ("stations", {1: "exact"}, "flood", 0),
            ("prefixes", {1: "lpm"}, "drop", 0),
            ("filters", {1: "ternary", 2: "optional", 3: "range"}, "drop", 7),
        ],
    )
    [default] = sh.TableEntry("stations")(is_default=True).read()
    expect((default.action.action_name, default.action["port"].value), ("ControlIngress.forward", b"\2"))
    [group] = sh.MulticastGroupEntry().read()
    expect([(r.egress_port, r.instance) for r in group.replicas], [(1, 1), (2, 1)])
    [session] = sh.CloneSessionEntry().read()
    expect((session.session_id, [r.egress_port for r in session.replicas]), (7, [2]))


def clean_up() -> None:
    """Everything goes away again."""
    for table in ("stations", "prefixes", "filters"):
        sh.TableEntry(table).read(lambda entry: entry.delete())
        expect(list(sh.TableEntry(table).read()), [])
    sh.MulticastGroupEntry(3).delete()
    sh.CloneSessionEntry(7).delete()
    expect(list(sh.MulticastGroupEntry().read()) + list(sh.CloneSessionEntry().read()), [])


lab = Lab()
config = sh.FwdPipeConfig(str(lab.p4info), str(lab.program))
sh.setup(device_id=1, grpc_addr=lab.address, election_id=(0, 1), config=config, verbose=False)
try:
    tables()
    replication()
    packets(lab)
    counters()
    final_state()
    clean_up()
finally:
    sh.teardown()
print("done")
