# SPDX-License-Identifier: Apache-2.0
"""``weir pcap audit`` finds nothing in captures of real switches and hosts, whatever their links do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgWriter, wrpcap
from typer.testing import CliRunner

from tests.harness.effort import effort
from tests.harness.forked import forked_clusters  # noqa: F401
from tests.weir.captures import (
    BLOCKS,
    CALM,
    TOPOLOGIES,
    WILD,
    edited,
    is_,
    operators,
    reclassed,
    shared,
    sums,
    wide,
)
from weir.cli import app
from weir.pcap.audit import Note, PacketAudit, Rule
from weir.pcap.capture import RawFrame
from weir.pcap.frames import CapturedFrame, read_frames
from weir.simulator.link import Faults
from weir.wire.definition import RELIABLE_DSCP, UDP_PORT, PacketType

CONTRIBUTION = PacketType.CONTRIBUTION


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(tmp_path_factory.mktemp("captures") / "racks.pcapng", TOPOLOGIES["two racks"], CALM)


@pytest.mark.parametrize("faults", [CALM, WILD], ids=["calm", "wild"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_nothing_is_found_in_sums_over_any_topology(name: str, faults: Faults, tmp_path: Path) -> None:
    audit = PacketAudit.of_files([sums(tmp_path / "capture", TOPOLOGIES[name], faults)], loss_budget=0.1)
    assert not audit.findings, audit.findings[:3]
    checked = audit.report.checked
    flows = {Rule.PRIORITY, Rule.SPRAY, Rule.SETTLEMENT}
    used = set(Rule) - flows - {Rule.TRIMMED, Rule.BUDGET}
    assert all(checked[rule] > 20 for rule in used - {Rule.ADDRESS}), checked
    assert checked[Rule.ADDRESS] >= 16 and checked[Rule.BUDGET] >= 4
    for shares in audit.report.worker_lanes.values():
        assert shares.entered >= 2 * BLOCKS * 256 and not shares.unknown
        assert shares.returned <= BLOCKS * 256 // 10
    assert not +audit.report.notes


def test_nothing_is_found_where_collectives_and_flows_are_trimmed(tmp_path: Path) -> None:
    audit = PacketAudit.of_files([shared(tmp_path / "capture")], loss_budget=0.5)
    assert not audit.findings, audit.findings[:3]
    assert all(audit.report.checked[rule] > 0 for rule in Rule), audit.report.checked
    assert audit.report.checked[Rule.PRIORITY] > 1000


@pytest.mark.parametrize("make", [operators, wide], ids=["operators", "wide packets"])
def test_nothing_is_found_with_any_operator_or_in_wide_packets(make: type[operators], tmp_path: Path) -> None:
    audit = PacketAudit.of_files([make(tmp_path / "capture")], loss_budget=0)
    assert not audit.findings, audit.findings[:3]
    assert audit.report.checked[Rule.SUMS] >= 40


def test_nothing_is_found_where_the_numbers_of_rounds_begin_again(tmp_path: Path) -> None:
    """After 2^32 - 1 comes 0."""
    capture = sums(tmp_path / "capture", TOPOLOGIES["two racks"], WILD, first_round=2**32 - 3)
    audit = PacketAudit.of_files([capture])
    assert not audit.findings, audit.findings[:3]
    assert all(shares.unknown == 0 for shares in audit.report.worker_lanes.values())


def test_captures_by_clocks_that_differ_are_not_held_against_anybody(racks: Path) -> None:
    """Every switch captures what passes its ports; one's clock is a millisecond slow."""
    frames: list[CapturedFrame] = []
    for seen in read_frames(racks):
        for node, incoming in zip(seen.port.split(" > "), (False, True), strict=True):
            if not node.startswith("h"):
                time = seen.time - (0.001 if node == "leaf1" else 0.0)
                port = f"port to {seen.port}"
                frames.append(replace(seen, file=node, port=port, time=time, incoming=incoming))
    audit = PacketAudit()
    for seen in sorted(frames, key=lambda frame: frame.time):
        audit.add(seen)
    audit.finish()
    assert not audit.findings, audit.findings[:3]
    assert audit.report.checked[Rule.COMPLETE] > 100 and audit.report.checked[Rule.ROUND_ORDER] > 100


def test_captures_of_one_direction_are_not_asked_who_went_first(racks: Path) -> None:
    """As BMv2 writes them: a file for what comes in at a port, another for what goes out."""
    audit = edited(racks, lambda raw, seen: [replace(raw, file=raw.port, port="")])
    assert not audit.findings, audit.findings[:3]
    assert audit.report.checked[Rule.SUMS] > 100


@pytest.mark.parametrize("faults", [CALM, WILD], ids=["calm", "wild"])
def test_what_a_capture_lacks_is_not_held_against_anybody(faults: Faults, tmp_path: Path) -> None:
    """One switch's capture of a network of six switches, and one host's."""
    capture = sums(tmp_path / "capture", TOPOLOGIES["three tiers"], faults)
    for node in ("leaf1", "leaf4", "spine1", "spine4", "core1", "h2"):

        def there(raw: RawFrame, seen: CapturedFrame, node: str = node) -> list[RawFrame]:
            here, to = raw.port.split(" > ")
            port = to if here == node else here
            return [replace(raw, file=node, port=port, incoming=to == node)] if node in (here, to) else []

        audit = edited(capture, there)
        assert not audit.findings, (node, audit.findings[:3])
        assert audit.report.checked[Rule.CHECKSUM] > 100


@pytest.mark.parametrize(("kind", "link"), [(CONTRIBUTION, "h1 > "), (PacketType.RESULT, "leaf1 > h1")])
def test_packets_whose_first_sending_was_lost_before_the_capture_are_believed(
    kind: PacketType, link: str, tmp_path: Path
) -> None:
    """A switch's capture has what its hosts' links have not lost; a host's, what the switch's have not."""
    capture, unseen = sums(tmp_path / "capture", TOPOLOGIES["one rack"], CALM), 0

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        nonlocal unseen
        again = raw.number % 7 == 0 and is_(kind, link)(seen)
        unseen += again
        return [reclassed(RELIABLE_DSCP, seen.udp.ecn)(raw) if again and seen.udp else raw]

    audit = edited(capture, edit)
    assert unseen > 5 and not audit.findings, audit.findings[:3]


STEPS = effort(2, 5)
MODES = {
    "losses": "--workers 3 --set loss=0.02 --loss-budget 0.05",
    "racks": "--workers 3 --method dense --topology leaf-spine-2x2 --set loss=0.03 --loss-budget 0.2"
    " --links 20mbit --set background=incast --set background_load=0.2",
    "a parameter server": "--workers 2 --mode ps --set servers=2 --method dense --consistency ssp:2"
    " --set push_filter=0.001:lr --set pull_filter=0.001:lr:4",
}


@pytest.mark.parametrize("name", effort(["racks", "a parameter server"], list(MODES)))
def test_nothing_is_found_in_a_training(name: str, tmp_path: Path) -> None:
    """Real processes: every port of every switch."""
    command = (
        f"train {MODES[name]} --model mlp --epochs 1 --max-steps {STEPS} --no-reference --out {tmp_path}"
    )
    done = CliRunner().invoke(app, [*command.split(), "--set", f"pcap={tmp_path / 'run.pcapng'}"])
    assert done.exit_code == 0, done.output
    files = sorted(tmp_path.glob("run*.pcapng"))
    assert len(files) == (4 if name == "racks" else 1)
    budget = float(MODES[name].partition("--loss-budget ")[2].split(" ")[0] or 0)
    audit = PacketAudit.of_files(files, loss_budget=budget)
    assert not audit.findings, audit.findings[:3]
    assert audit.report.checked[Rule.SUMS if name != "a parameter server" else Rule.CHECKSUM] > 100
    assert audit.report.checked[Rule.ADDRESS] > 6
    (told,) = json.loads(next(tmp_path.rglob("summary.json")).read_text())["runs"].values()
    assert told["steps"] == STEPS and told["replicas"]["identical_at_end"]
    if name == "racks":
        delivery = told["delivery"]
        assert 0 < delivery["missing"] <= delivery["budget"] <= budget * delivery["lanes"]
        assert delivery["releases"] > 0 and told["network"]["background"] > 0
        for row in ("releases, all workers", "missing of the gradient", "summed by spines"):
            assert row in done.output


# -- captures that cannot tell ---------------------------------------------------------------------------


def partial(raw: RawFrame) -> RawFrame:
    """Return the frame as a host captures it whose NIC is to fill the UDP checksum in (CHECKSUM_PARTIAL)."""
    total = sum(int.from_bytes(raw.data[at : at + 2]) for at in range(26, 34, 2)) + 17
    total += int.from_bytes(raw.data[38:40])
    total = (total & 0xFFFF) + (total >> 16)
    return replace(raw, data=raw.data[:40] + total.to_bytes(2) + raw.data[42:])


def test_checksums_that_a_device_is_to_fill_in_are_noted_once_and_not_held_against_anybody(
    racks: Path,
) -> None:
    audit = edited(racks, lambda raw, seen: [partial(raw)])
    assert not audit.findings, audit.findings[:3]
    assert audit.report.notes[Note.OFFLOADED] == audit.report.weir


def test_right_udp_checksums_are_right(racks: Path) -> None:
    def filled(raw: RawFrame) -> RawFrame:
        frame = Ether(raw.data)
        del frame[UDP].chksum
        return replace(raw, data=bytes(frame))

    audit = edited(racks, lambda raw, seen: [filled(raw) if raw.number < 200 else raw])
    assert not audit.findings, audit.findings[:3]
    assert not +audit.report.notes


def test_batches_that_a_device_segments_are_taken_as_the_packets_they_become(racks: Path) -> None:
    """A host's capture has many packets in one frame."""
    waiting: list[RawFrame] = []

    def edit(raw: RawFrame, seen: CapturedFrame) -> list[RawFrame]:
        if not (is_(CONTRIBUTION, "h1 > ")(seen) and seen.packet is not None and seen.packet.round < 3):
            return [raw]
        waiting.append(raw)
        if len(waiting) < 4:
            return []
        frame = Ether(waiting[0].data)
        payload = b"".join(bytes(Ether(one.data)[UDP].payload) for one in waiting)
        train = bytes(
            frame.__class__(src=frame.src, dst=frame.dst)
            / IP(src=frame[IP].src, dst=frame[IP].dst, tos=frame[IP].tos, ttl=frame[IP].ttl)
            / UDP(sport=frame[UDP].sport, dport=frame[UDP].dport, chksum=0)
            / payload
        )
        last = waiting[-1]
        waiting.clear()
        return [partial(replace(last, data=train, length=len(train)))]

    audit = edited(racks, edit)
    names = {finding.rule for finding in audit.report.findings}
    assert names <= {Rule.COMPLETE}, audit.findings[:3]  # what waited for the train is late now
    assert audit.report.notes[Note.TRAIN] >= 6
    assert all(not shares.unknown for shares in audit.report.worker_lanes.values())


def test_frames_of_which_only_the_beginning_was_captured_are_noted(racks: Path) -> None:
    audit = edited(racks, lambda raw, seen: [replace(raw, data=raw.data[:96])])
    assert not audit.findings, audit.findings[:3]
    assert audit.report.notes[Note.CUT_SHORT] > 1000


def test_a_capture_without_weir_says_so(tmp_path: Path) -> None:
    wrpcap(str(tmp_path / "other.pcap"), [Ether() / IP() / UDP(sport=1, dport=2) / b"x"])
    status, output = run(tmp_path / "other.pcap")
    assert status == 0 and "none from or to Weir's ports: nothing was checked" in output


def test_a_capture_without_ethernet_headers_is_refused(tmp_path: Path) -> None:
    """As of all interfaces together ('any')."""
    with PcapNgWriter(str(tmp_path / "any.pcapng")) as writer:
        writer.write(IP() / UDP(sport=1, dport=UDP_PORT) / b"x")
    status, output = run(tmp_path / "any.pcapng")
    assert status == 2 and "capture one interface by its name" in output


# -- the command ----------------------------------------------------------------------------------------


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["pcap", "audit", *map(str, arguments)], env={"COLUMNS": "200"})
    return done.exit_code, " ".join(done.output.split())


def test_the_command_tells_what_was_checked(racks: Path) -> None:
    status, output = run(racks)
    assert status == 0 and "0 findings" in output and "never" in output  # no flows in it


def test_the_command_tells_the_same_as_json(racks: Path) -> None:
    done = CliRunner().invoke(app, ["pcap", "audit", str(racks), "--json"])
    told = json.loads(done.output)
    assert done.exit_code == 0 and told["broken"] == 0 and told["findings"] == []
    assert 0 < told["frames_of_weir"] <= told["frames"]
    assert any(rule["checked"] for rule in told["rules"].values())


def test_the_command_says_what_is_wrong_where_and_what_to_do(racks: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pcapng"
    content = bytearray(racks.read_bytes())
    at = content.index(b"\x08\x00\x45", 20_000)
    content[at + 12] ^= 1  # of IPv4's checksum
    damaged.write_bytes(bytes(content))
    status, output = run(damaged)
    assert status == 1 and "1 findings" in output
    assert "checksum: IPv4's is 0x" in output and f"[{damaged} #" in output
    assert "what to do checksum: a device damages packets" in output


def test_a_loss_budget_that_is_no_share_is_refused(racks: Path) -> None:
    assert run(racks, "--loss-budget", "5")[0] == 2


def test_files_of_one_run_are_put_together(racks: Path, tmp_path: Path) -> None:
    """A capture for each end of the links: what both have is taken once."""
    other = tmp_path / "other.pcapng"
    other.write_bytes(racks.read_bytes())
    status, output = run(racks, other)
    assert status == 0 and "0 findings" in output


def test_a_file_that_is_no_capture_is_refused(tmp_path: Path) -> None:
    status, output = run(tmp_path / "nothing.pcap")
    assert status == 2 and "nothing.pcap" in output
