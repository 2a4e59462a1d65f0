# SPDX-License-Identifier: Apache-2.0
"""Traces: what they say of a packet, that they say it by P4's names, and that they change nothing."""

import dataclasses
import io
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from scapy.utils import wrpcap

from softp4.codegen.module import generate
from softp4.program.loader import load_program
from softp4.runtime.queueing import Queueing
from softp4.state.entry import ByGroup, ByMember, Entry, Exact, Lpm, Member, Optional, Range, Ternary
from softp4.switch import Switch
from softp4.tracing.events import Applied, Event, Executed, FrameIn, FrameOut, Turn
from softp4.tracing.printing import TraceText, print_trace
from tests.dataplane.test_queueing import MULTICAST, PORT, SECOND, order
from tests.programs import FOLDER, pack, program, raw
from tests.state.test_action_profiles import CHOSEN, FIRST, group, number, point
from tests.state.test_action_profiles import frame as profiled
from tests.test_cli import run
from tests.test_fuzz import CORPUS


def text(switch: Switch, events: Sequence[Event], *, full: bool = False) -> str:
    out = io.StringIO()
    print_trace(TraceText(switch.program, full=full), events, out)
    return out.getvalue()


def trace(switch: Switch, frame: bytes, port: int = 5) -> str:
    return text(switch, switch.trace(port, frame, 0)[1])


@pytest.fixture(scope="module")
def traffic() -> Iterator[Switch]:
    with Switch(program("traffic")) as switch:
        switch.multicast_groups.set(3, [(1, 7), (2, 8)])
        switch.multicast_groups.set(4, [])
        switch.clone_sessions.set(3, [(4, 4)])
        yield switch


def ordered(what: int, argument: int, rounds: int = 0) -> bytes:
    return bytes([what, 0, argument, rounds]) + b"payload"


def test_a_packet_from_port_to_port(traffic: Switch) -> None:
    sent, events = traffic.trace(5, ordered(1, 9), 0)
    assert [port for port, _ in sent] == [9]
    assert text(traffic, events).splitlines()[:9] == [
        "#1 in port 5, 11 bytes",
        "  parser    start → accept, 4 bytes parsed",
        "            order{what=1 argument=9 rounds=0}",
        "  ingress   standard_metadata.egress_spec = 1",
        "            if (standard_metadata.instance_type == 0) → true",
        "            meta_t.kept = 119",
        "            meta_t.lost = 153",
        "            if (order.what == 1) → true",
        "            standard_metadata.egress_spec = 9",
    ]
    assert text(traffic, events).splitlines()[-2:] == [
        "  deparser  seen{instance_type=0 egress_port=9 rid=0 ingress_port=5 length=11 kept=119 lost=153 "
        "stamp=0} order",
        "  out       port 9, 26 bytes",
    ]


def test_why_a_packet_is_gone(traffic: Switch) -> None:
    for frame, reason in [
        (ordered(1, 255, 0)[:3], "error PacketTooShort, 0 bytes parsed"),
        (ordered(3, 3), "dropped: egress_spec is 511"),
        (ordered(2, 21), "dropped: there is no multicast group 21"),
        (ordered(2, 4), "dropped: multicast group 4 is empty"),
        (ordered(4, 21), "no clone session 21: no copy is made"),
        (bytes(4217), "dropped: 4217 bytes are too many"),
        (ordered(8, 0), "dropped: no byte is left to send"),
        (ordered(10, 3), "dropped: its frame caused 4096 passes through egress"),
    ]:
        assert reason in trace(traffic, frame), reason


def test_copies_and_second_rounds(traffic: Switch) -> None:
    copies = trace(traffic, ordered(2, 3))
    assert "multicast group 3: 2 copies" in copies
    assert "egress    port 1, replica 7" in copies
    assert "egress    port 2, replica 8" in copies
    clone = trace(traffic, ordered(4, 3))
    assert "clone     session 3: 1 copy" in clone
    assert "again     cloned, 11 bytes" in clone
    assert trace(traffic, ordered(5, 0, 1)).count("again     resubmitted, 11 bytes") == 2
    assert trace(traffic, ordered(7, 0, 2)).count("again     recirculated, 11 bytes") == 2
    assert "order{rounds 2→1}" in trace(traffic, ordered(7, 0, 2)), "only what egress changed is shown"


def test_lookups_show_keys_and_entries() -> None:
    with Switch(program("matching")) as switch:
        switch.table("In.exact_").insert(
            Entry((Exact(0x0A0B0C0D0E0F), Exact(5), Exact(1)), "In.number", (77,))
        )
        acl = Entry((Ternary(0, 0), Range(1, 3), Optional(None)), "In.number", (7,), 9)
        switch.table("In.acl").insert(acl)
        switch.table("In.routes6").insert(Entry((Lpm(2, 128),), "In.wide", (1 << 100,)))

        def query(table: int, low: int) -> bytes:
            return pack([(table, 8), (0x0A0B0C0D0E0F, 48), (1, 32), (2, 128), (1, 16), (low, 4), (0, 4)])

        hit = trace(switch, query(1, 5))
        assert "exact_(hdr.query.mac=0a:0b:0c:0d:0e:0f, low=5, there=1) hit #0 → number(value=77)" in hit
        assert "answer.value = 77" in hit
        assert "low=6, there=1) miss → miss()" in trace(switch, query(1, 6))
        assert (
            "acl(hdr.query.ip=0.0.0.1, hdr.query.port=1, hdr.query.mac=0a:0b:0c:0d:0e:0f) "
            "hit #0, priority 9 → number(value=7)" in trace(switch, query(4, 5))
        )
        routes = trace(switch, query(3, 5))
        assert "routes6(hdr.query.ip6=::2) hit #0" in routes
        (applied,) = (e for e in switch.trace(1, query(3, 5), 0)[1] if isinstance(e, Applied))
        assert (applied.key, applied.args) == ((2,), (1 << 100,))


def test_the_p4_source_is_shown_where_it_is_known() -> None:
    root = raw("traffic")
    place = {"filename": "somewhere/traffic.p4", "line": 57, "column": 3}
    test = next(each for each in root["pipelines"][0]["conditionals"])
    test["source_info"] = {**place, "source_fragment": "sm.instance_type\n == 0"}
    for action in root["actions"]:
        for primitive in action["primitives"]:
            primitive["source_info"] = {**place, "line": 99, "source_fragment": "x = y"}
    loaded = load_program(json.dumps(root).encode())
    with Switch(dataclasses.replace(loaded, digest=program("traffic").digest)) as switch:  # the same code
        lines = trace(switch, ordered(1, 9)).splitlines()
    shown = {" ".join(line.split()) for line in lines}
    assert "if (sm.instance_type == 0) → true traffic.p4:57" in shown
    assert "meta_t.kept = 119 traffic.p4:99 x = y" in shown


def test_long_actions_are_shortened_unless_all_is_wanted() -> None:
    with Switch(program("loops")) as switch:
        _, events = switch.trace(1, CORPUS["loops"][4], 0)
        statements = sum(isinstance(event, Executed) for event in events)
        short, full = text(switch, events), text(switch, events, full=True)
    assert statements > 60
    assert "more statements" in short
    assert "more statements" not in full
    assert len(full.splitlines()) > statements > len(short.splitlines())


def test_what_waits_in_a_queue() -> None:
    with Switch(program("queues")) as switch:
        switch.queues(PORT).set(Queueing(rate_bps=8 * 10**6, depth_packets=1))
        switch.recorder.start()
        for _ in range(3):
            switch.process(1, order(priority=2, length=100), SECOND)
        switch.step(2 * SECOND)
        shown = text(switch, switch.recorder.read()[0]).splitlines()
    titles = [line for line in shown if line.startswith("#")]
    assert titles == [
        "#1 in port 1, 54 bytes",
        "#1 leaves the queue of port 3 after 0 ns",
        "#2 in port 1, 54 bytes",
        "#3 in port 1, 54 bytes",
        "#2 leaves the queue of port 3 after 100 µs",
    ]
    assert shown.count("  queue     port 3, priority 2, behind no packets") == 2
    assert "  queue     dropped: queue 2 of port 3 is full" in shown
    assert sum(line == "  out       port 3, 100 bytes" for line in shown) == 2


def test_only_some_frames_are_traced() -> None:
    with Switch(program("traffic")) as switch:
        switch.recorder.start(ports=[7, 9], frames=3)
        for port in (1, 7, 8, 9, 7, 7, 9):
            switch.process(port, ordered(1, 2), 0)
        events, lost = switch.recorder.read()
        assert [event.port for event in events if isinstance(event, FrameIn)] == [7, 9, 7]
        assert (lost, switch.recorder.read()) == (0, ([], 0))
        switch.recorder.stop()
        assert switch.recorder.read() == ([], 0)
        assert switch.statistics().packets_out == 7


def test_what_nobody_reads_is_counted_and_whole_packets_remain() -> None:
    with Switch(program("traffic")) as switch:
        switch.recorder.start()
        frames = 0
        while True:
            for _ in range(1000):
                switch.process(1, ordered(1, 2), 0)
            frames += 1000
            if frames >= 8000:
                break
        events, lost = switch.recorder.read()
        numbers = [event.number for event in events if isinstance(event, FrameIn)]
        assert lost > 0
        assert len(numbers) + lost == frames
        assert numbers == list(range(1, len(numbers) + 1))
        assert sum(isinstance(event, FrameOut) for event in events) == len(numbers), "no packet is cut short"
        switch.process(1, ordered(1, 2), 0)
        (event, *_), lost = switch.recorder.read()
        assert (event, lost) == (FrameIn(frames + 1, 1, 11, 0), 0)


@pytest.mark.parametrize("name", ["matching", "parsing", "traffic", "state"])
def test_traced_packets_are_treated_alike(name: str) -> None:
    """Tracing goes on and off in the middle of traffic; registers and random numbers are one state."""
    rng = random.Random(1)
    with Switch(program(name)) as plain, Switch(program(name)) as traced:
        for switch in (plain, traced):
            switch.multicast_groups.set(3, [(1, 1), (2, 2), (600, 3)])
            switch.clone_sessions.set(3, [(4, 4), (5, 5)], packet_length=30)
        for now in range(400):
            if now % 50 == 0:
                traced.recorder.stop() if now % 150 == 100 else traced.recorder.start()
            frame = bytearray(rng.choice(CORPUS[name]) + rng.randbytes(rng.randrange(9)))
            frame[rng.randrange(len(frame))] = rng.randrange(256)
            port = rng.randrange(512)
            assert plain.process(port, bytes(frame), now) == traced.process(port, bytes(frame), now), (
                frame.hex()
            )
        assert plain.statistics() == traced.statistics()
        assert text(traced, traced.recorder.read()[0], full=True)
        for register, about in plain.program.registers.items():
            for index in range(min(about.size, 50)):
                assert plain.register(register).read(index) == traced.register(register).read(index)


def test_what_waits_goes_on_alike_when_tracing_begins_or_ends() -> None:
    rng = random.Random(2)
    with Switch(program("queues")) as plain, Switch(program("queues")) as traced:
        for switch in (plain, traced):
            switch.multicast_groups.set(PORT, [(PORT, 1), (4, 2)])
            switch.clone_sessions.set(1, [(4, 4)])
            switch.queues(PORT).set(Queueing(rate_bps=10**6, depth_packets=5))
            switch.queues(4).set(Queueing(rate_pps=1000))
        turns = 0
        for now in range(0, SECOND // 5, SECOND // 1000):
            if rng.random() < 0.1:
                turns += sum(isinstance(event, Turn) for event in traced.recorder.read()[0])
                traced.recorder.start(frames=rng.randrange(9))
            elif rng.random() < 0.05:
                traced.recorder.stop()
            frame = order(what=rng.choice((0, MULTICAST, 4, 8, 16)), priority=rng.randrange(8), length=200)
            assert plain.process(1, frame, now) == traced.process(1, frame, now)
        assert plain.step(9 * SECOND) == traced.step(9 * SECOND)
        assert plain.queues(PORT).statistics() == traced.queues(PORT).statistics()
        assert turns > 10


def test_a_program_that_is_not_traced_has_no_tracepoints() -> None:
    for path in sorted(FOLDER.glob("*.json")):
        assert "trac" not in generate(load_program(path))


def test_the_command_writes_a_trace(tmp_path: Path) -> None:
    wrpcap(str(tmp_path / "in.pcap"), [ordered(1, 2), ordered(2, 21), ordered(1, 2)])
    done = run(
        *("--program", FOLDER / "traffic.json", "--port", f"2=pcap:{tmp_path}/in.pcap,{tmp_path}/out.pcapng"),
        *("--trace-file", tmp_path / "trace.txt", "--trace-frames", 2, "--trace-port", 2),
    )
    assert done.exit_code == 0, done.output
    shown = (tmp_path / "trace.txt").read_text()
    assert [line for line in shown.splitlines() if line.startswith("#")] == [
        "#1 in port 2, 11 bytes",
        "#2 in port 2, 11 bytes",
    ]
    assert "out       port 2, 26 bytes" in shown
    assert "dropped: there is no multicast group 21" in shown


def test_what_an_action_profile_chose() -> None:
    with Switch(program("profiles")) as switch:
        switch.profile("In.shared").insert_member(number(1, 11))
        switch.profile("In.by_value").insert_member(Member(2, "In.wide", (1 << 100,)))
        switch.profile("In.by_value").insert_group(group(1, m2=1))
        switch.table("In.first").insert(Entry((Exact(7),), via=ByMember(1)))
        point(switch, ByGroup(1), ip=7)
        point(switch, ByMember(2), ip=8)
        assert "first(hdr.query.ip=0.0.0.7) hit #0 → member → number(value=11)" in trace(
            switch, profiled(FIRST, ip=7)
        )
        wide = f"wide(value=0x{1 << 100:x})"
        assert f"→ group → {wide}" in trace(switch, profiled(CHOSEN, ip=7))
        assert "→ member → wide(" in trace(switch, profiled(CHOSEN, ip=8))
