# SPDX-License-Identifier: Apache-2.0
"""``weir audit`` finds nothing in captures of every link of simulated networks, and every planted breach."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.simulator.reductions import submit, vectors
from tests.simulator.test_flows import LANES, Cluster, gradients
from weir.cli import app
from weir.controller.qos import Qos
from weir.controller.topology import Topology, leaf_spine, leaf_spine_core
from weir.host_agent.flows import ServerConfig
from weir.host_agent.flows.codec import Bitmap, Chunk, Stop
from weir.host_agent.flows.server import bounded
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.service_class import ServiceClass
from weir.pcap.audit import PacketAudit, Rule
from weir.pcap.frames import CapturedFrame, read_frames
from weir.simulator.link import Faults
from weir.simulator.network import LinkSpec, Network
from weir.simulator.trace import Trace
from weir.softswitch.runtime.queueing import Queueing
from weir.wire.definition import AUDIENCE_EXCEPT, RELIABLE_DSCP, Flag, PacketType

MS = 1_000_000
CALM = Faults(delay=5_000)
WILD = Faults(
    delay=5_000, jitter=20_000, loss=0.02, duplicate=0.02, late=0.02, lateness=100 * MS, trim=0.02, mark=0.02
)
BLOCKS = 40
TOPOLOGIES = {
    "one rack": leaf_spine(1, 1, 4, target="soft"),
    "two racks": leaf_spine(2, 2, 3, target="soft"),
    "three tiers": leaf_spine_core(2, 2, 2, 2, 2, target="soft"),
}


def sums(path: Path, topology: Topology, faults: Faults) -> Path:
    """Capture three reduces on every link: for all, for one, for all but one; the first may lose a tenth."""
    with Network(topology, seed=1, link=LinkSpec(100_000_000, faults)) as network, Trace(path) as trace:
        trace.attach_all(network.links())
        workers = [host.name for host in topology.hosts]
        job = network.admit(workers, slots=8, initial_rto=0.02, min_rto=0.01)
        tenth = np.array([BLOCKS * 256 // 10], np.uint64)
        service = ServiceClass(layer=1, accounts=np.zeros(BLOCKS, np.uint16), budgets=tenth)
        submit(job, vectors(1, len(workers), BLOCKS), service)
        network.run(lambda: job.idle, limit=20)
        for audience in (job.paths[1], AUDIENCE_EXCEPT | job.paths[2]):
            submit(
                job,
                vectors(2, len(workers), BLOCKS),
                audiences=np.full(BLOCKS, audience, np.uint16),
            )
            network.run(lambda: job.idle, limit=20)
    return path


def shared(path: Path) -> Path:
    """Capture a collective and a parameter server on every link of two racks, both congested and trimmed."""
    topology = leaf_spine(2, 2, 3, target="soft", qos=Qos())
    vectors_, previous = gradients(6, 5), np.zeros(LANES, np.float32)
    queueing = Queueing(depth_packets=400)
    link = LinkSpec(100_000_000, CALM)
    with Network(topology, seed=1, link=link, queueing=queueing) as network, Trace(path) as trace:
        trace.attach_all(network.links())
        job = network.admit(list(network.stations)[:5], slots=64)
        half = np.array([150 * 256 // 2], np.uint64)
        service = ServiceClass(layer=3, accounts=np.zeros(150, np.uint16), budgets=half)
        submit(job, vectors(7, 5, 150), service)
        cluster = Cluster(network, ServerConfig(pull_loss=0.05))
        cluster.exchange(vectors_, bounded(LANES, 0.1, layer=3), previous)
        network.run(lambda: job.idle, limit=60)
    return path


@pytest.fixture(scope="module")
def congested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared(tmp_path_factory.mktemp("captures") / "shared.pcapng")


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sums(tmp_path_factory.mktemp("captures") / "racks.pcapng", TOPOLOGIES["two racks"], CALM)


@pytest.mark.parametrize("faults", [CALM, WILD], ids=["calm", "wild"])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_nothing_is_found_in_sums_over_any_topology(name: str, faults: Faults, tmp_path: Path) -> None:
    audit = PacketAudit.of_files([sums(tmp_path / "capture", TOPOLOGIES[name], faults)])
    assert not audit.findings, audit.findings[:3]
    checked = audit.report.checked
    used = set(Rule) - {Rule.PRIORITY, Rule.SPRAY, Rule.SETTLEMENT, Rule.TRIMMED}
    assert all(checked[rule] > 20 for rule in used), checked
    for shares in audit.report.worker_lanes.values():
        assert shares.entered >= 2 * BLOCKS * 256 and not shares.unknown
        assert shares.returned <= BLOCKS * 256 // 10


def test_nothing_is_found_where_collectives_and_flows_are_trimmed(congested: Path) -> None:
    audit = PacketAudit.of_files([congested])
    assert not audit.findings, audit.findings[:3]
    assert all(audit.report.checked[rule] > 0 for rule in Rule), audit.report.checked
    assert audit.report.checked[Rule.PRIORITY] > 1000


def test_captures_by_clocks_that_differ_are_not_held_against_anybody(racks: Path) -> None:
    """Every switch captures what passes its ports; one's clock is a millisecond slow."""
    frames: list[CapturedFrame] = []
    for seen in read_frames(racks):
        for node in seen.port.split(" > "):
            if not node.startswith("h"):
                slow = 0.001 if node == "leaf1" else 0.0
                frames.append(replace(seen, file=node, port=f"port to {seen.port}", time=seen.time - slow))
    audit = PacketAudit()
    for seen in sorted(frames, key=lambda frame: frame.time):
        audit.add(seen)
    audit.finish()
    assert not audit.findings, audit.findings[:3]
    assert audit.report.checked[Rule.COMPLETE] > 100 and audit.report.checked[Rule.ROUND_ORDER] > 100


def test_captures_of_one_direction_are_not_asked_who_went_first(racks: Path) -> None:
    """As BMv2 writes them: a file for what comes in at a port, another for what goes out."""
    audit = PacketAudit()
    for seen in read_frames(racks):
        audit.add(replace(seen, file=seen.port))
    audit.finish()
    assert not audit.findings, audit.findings[:3]
    assert audit.report.checked[Rule.SUMS] > 100


# -- planted breaches -----------------------------------------------------------------------------------

Change = Callable[[CapturedFrame], CapturedFrame]


def planted(
    path: Path, wanted: Callable[[CapturedFrame], bool], change: Change, number: int = 0
) -> tuple[PacketAudit, CapturedFrame]:
    """Return the audit of a capture in which one frame, the ``number``-th that is wanted, was changed."""
    audit, found = PacketAudit(), []
    for seen in read_frames(path):
        if wanted(seen):
            found.append(seen)
            audit.add(change(seen) if len(found) == number + 1 else seen)
        else:
            audit.add(seen)
    audit.finish()
    return audit, found[number]


def changed(**fields: object) -> Change:
    """Return a change of fields of the Weir packet."""

    def change(seen: CapturedFrame) -> CapturedFrame:
        assert seen.packet is not None and seen.udp is not None
        packet = replace(seen.packet, **fields)
        return replace(seen, packet=packet, udp=replace(seen.udp, payload=packet.encode()))

    return change


def reclassed(dscp: int, ecn: int) -> Change:
    def change(seen: CapturedFrame) -> CapturedFrame:
        assert seen.udp is not None
        return replace(seen, udp=replace(seen.udp, dscp=dscp, ecn=ecn))

    return change


def one_lane_more(seen: CapturedFrame) -> CapturedFrame:
    assert seen.packet is not None
    group, lanes = next(iter(seen.packet.groups.items()))
    return changed(groups={**seen.packet.groups, group: (lanes[0] + 1 & 0xFFFFFFFF, *lanes[1:])})(seen)


def is_(
    kind: PacketType, link: str = "", flags: Flag | None = None, lanes: bool = True
) -> Callable[..., bool]:
    def wanted(seen: CapturedFrame) -> bool:
        packet = seen.packet
        return (
            packet is not None
            and packet.type is kind
            and link in seen.port
            and (flags is None or bool(packet.flags & flags))
            and bool(packet.groups) == lanes
        )

    return wanted


def next_of(packet: Packet, block: int) -> tuple[object, ...]:
    return tuple(replace(column, next=block) for column in packet.columns)


RESULT, CONTRIBUTION = PacketType.RESULT, PacketType.CONTRIBUTION
BREACHES: dict[str, tuple[Rule, Callable[..., bool], Change]] = {
    "a sum of a leaf": (Rule.SUMS, is_(CONTRIBUTION, "leaf1 > spine"), one_lane_more),
    "a sum of a spine": (Rule.SUMS, is_(RESULT, "spine1 > leaf1"), one_lane_more),
    "a result of a leaf": (Rule.SUMS, is_(RESULT, "leaf1 > h1"), one_lane_more),
    "a contribution": (Rule.SUMS, is_(CONTRIBUTION, "h2 > leaf1"), one_lane_more),
    "one replica": (Rule.REPLICAS, is_(RESULT, "leaf1 > h2"), one_lane_more),
    "a mask of nobody": (Rule.MASK, is_(RESULT, "leaf1 > h1"), changed(included=0)),
    "a mask of a stranger": (Rule.MASK, is_(CONTRIBUTION, "leaf1 > spine"), changed(included=1 << 9)),
    "a count": (Rule.MASK, is_(RESULT, "spine1 > leaf1"), changed(count=5)),
    "a round too early": (
        Rule.ROUND_ORDER,
        lambda seen: is_(CONTRIBUTION, "h1 > leaf1")(seen) and seen.packet.round == 3,
        lambda seen: changed(round=seen.packet.round + 1)(seen),  # type: ignore[union-attr]
    ),
    "a next block too far": (
        Rule.NEXT,
        is_(RESULT, "spine1 > leaf1"),
        lambda seen: changed(columns=next_of(seen.packet, 1000))(seen),  # type: ignore[arg-type]
    ),
    "lanes for a stranger": (
        Rule.AUDIENCE,
        is_(RESULT, "leaf1 > h1", Flag.ELSEWHERE, lanes=False),
        changed(flags=Flag.PROTECTED, groups={0: (1,) * 32}),
    ),
    "lanes kept from the audience": (
        Rule.AUDIENCE,
        lambda seen: is_(RESULT, "leaf1 > h2")(seen) and seen.packet.audience == 1,
        changed(flags=Flag.PROTECTED | Flag.ELSEWHERE, groups={}),
    ),
    "another operation": (Rule.OPERATION, is_(CONTRIBUTION, "h1 > leaf1"), changed(check=77)),
    "a class": (Rule.CLASS, is_(CONTRIBUTION, "h1 > leaf1"), reclassed(dscp=10, ecn=2)),
    "a droppable packet that can be marked": (
        Rule.CLASS,
        lambda seen: is_(CONTRIBUTION, "h1 > leaf1")(seen) and not seen.packet.flags & Flag.PROTECTED,
        lambda seen: reclassed(seen.udp.dscp, 2)(seen),  # type: ignore[union-attr]
    ),
    "lanes on a trimmed packet": (
        Rule.TRIMMED,
        is_(CONTRIBUTION, "h1 > leaf1"),
        lambda seen: changed(flags=seen.packet.flags | Flag.TRIMMED)(seen),  # type: ignore[union-attr]
    ),
    "a malformed packet": (
        Rule.WELL_FORMED,
        is_(CONTRIBUTION, "h1 > leaf1"),
        lambda seen: replace(seen, packet=None, problem="3 bytes: a Weir header has 28"),
    ),
}


@pytest.mark.parametrize("name", BREACHES)
def test_a_planted_breach_is_found_and_its_frame_named(racks: Path, name: str) -> None:
    rule, wanted, change = BREACHES[name]
    audit, seen = planted(racks, wanted, change, number=3)
    found = [finding for finding in audit.report.findings if finding.rule is rule]
    assert found, (rule, audit.findings[:3])
    assert any(seen.place in finding.frames for finding in found), (seen.place, audit.findings[:3])


def test_a_result_that_leaves_too_early_is_found(racks: Path) -> None:
    """One worker's packets of a round are missing in the capture, of which it was a child before."""
    audit, lost = PacketAudit(), None
    for seen in read_frames(racks):
        if is_(CONTRIBUTION, "h2 > leaf1")(seen):
            assert seen.packet is not None
            lost = lost or (seen.packet.slot, seen.packet.round) if seen.packet.round > 2 else lost
            if (seen.packet.slot, seen.packet.round) == lost:
                continue
        audit.add(seen)
    audit.finish()
    assert {finding.rule for finding in audit.report.findings} >= {Rule.COMPLETE}, audit.findings[:3]


def test_other_lanes_than_before_are_found(tmp_path: Path) -> None:
    capture = sums(tmp_path / "capture", TOPOLOGIES["one rack"], WILD)
    sent: set[tuple[int, ...]] = set()

    def again(seen: CapturedFrame) -> bool:
        packet = seen.packet
        if not is_(CONTRIBUTION)(seen) or packet is None:
            return False
        key = (packet.worker, packet.slot, packet.round)
        return key in sent or bool(sent.add(key))

    audit, seen = planted(capture, again, one_lane_more)
    (found,) = [f for f in audit.report.findings if f.rule is Rule.SAME_LANES]
    assert seen.place in found.frames


def test_a_lower_class_that_goes_first_is_found(congested: Path) -> None:
    """Of two packets that leave on one link, the times are exchanged."""
    frames = list(read_frames(congested))
    link = [
        n
        for n, f in enumerate(frames)
        if f.port == "leaf2 > h6" and isinstance(f.flow, Chunk) and f.flow.data and not f.flow.protected
    ]
    early, late = link[100], link[120]
    first, second = frames[early], frames[late]
    frames[early] = replace(second, time=first.time)
    frames[late] = replace(first, time=second.time)
    audit = PacketAudit()
    for seen in frames:
        audit.add(seen)
    audit.finish()
    assert Rule.PRIORITY in {finding.rule for finding in audit.report.findings}


def test_a_path_that_is_not_used_is_found(congested: Path) -> None:
    """All but a few of a leaf's packets that went by one spine are said to have gone by the other."""
    audit = PacketAudit()
    for number, seen in enumerate(read_frames(congested)):
        moved = seen.port == "leaf1 > spine2" and number % 20
        audit.add(replace(seen, port="leaf1 > spine1") if moved else seen)
    audit.finish()
    found = [finding for finding in audit.report.findings if finding.rule is Rule.SPRAY]
    assert len(found) == 1 and "leaf1 > spine1" in found[0].text


def test_packets_whose_first_sending_was_lost_before_the_capture_are_believed(tmp_path: Path) -> None:
    """A switch's capture has what its hosts' links have not lost."""
    capture = sums(tmp_path / "capture", TOPOLOGIES["one rack"], CALM)
    audit, unseen = PacketAudit(), 0
    for number, seen in enumerate(read_frames(capture)):
        again = number % 7 == 0 and is_(CONTRIBUTION, "h1 > ")(seen)
        unseen += again
        audit.add(reclassed(RELIABLE_DSCP, seen.udp.ecn)(seen) if again and seen.udp else seen)
    audit.finish()
    assert unseen > 5 and not audit.findings, audit.findings[:3]


def test_a_worker_whose_packets_all_go_first_is_found(racks: Path) -> None:
    """As if each had been sent before."""
    audit = PacketAudit()
    for seen in read_frames(racks):
        again = is_(CONTRIBUTION, "h1 > leaf1")(seen)
        audit.add(reclassed(RELIABLE_DSCP, seen.udp.ecn)(seen) if again and seen.udp else seen)
    audit.finish()
    assert [finding.rule for finding in audit.report.findings] == [Rule.CLASS]


def test_a_receiver_that_claims_what_never_came_is_found(congested: Path) -> None:
    """The last link loses a chunk's data, and nobody is told."""
    frames = list(read_frames(congested))
    (chunk, *_) = [
        f.flow for f in frames if f.port == "leaf2 > h6" and isinstance(f.flow, Chunk) and f.flow.data
    ][50:]
    audit = PacketAudit()
    for seen in frames:
        flow = seen.flow
        same = isinstance(flow, Chunk) and (flow.head, flow.index) == (chunk.head, chunk.index)
        if not (same and seen.port == "leaf2 > h6"):
            audit.add(seen)
    audit.finish()
    found = [finding for finding in audit.report.findings if finding.rule is Rule.SETTLEMENT]
    assert found and f"[{chunk.index}], which never came" in found[0].text


def test_a_stop_beyond_the_budget_is_found(congested: Path) -> None:
    def half(seen: CapturedFrame) -> CapturedFrame:
        stop = seen.flow
        assert isinstance(stop, Stop)
        bits = np.zeros(stop.head.count, np.bool_)
        bits[: bits.size // 2] = True
        return replace(seen, flow=replace(stop, bits=bits))

    def stops(seen: CapturedFrame) -> bool:
        return isinstance(seen.flow, Stop) and seen.flow.bits is not None and seen.port == "h6 > leaf2"

    audit, seen = planted(congested, stops, half)
    found = [finding for finding in audit.report.findings if finding.rule is Rule.SETTLEMENT]
    assert any("its budget is" in finding.text and seen.place in finding.frames for finding in found)


def test_a_bitmap_in_a_data_class_is_found(congested: Path) -> None:
    audit, seen = planted(congested, lambda seen: isinstance(seen.flow, Bitmap), reclassed(dscp=10, ecn=2))
    assert [finding.frames for finding in audit.report.findings] == [(seen.place,)]


def test_nothing_is_found_in_a_training_over_racks_that_lose_packets(tmp_path: Path) -> None:
    """Real processes: every port of two leaves and two spines, with losses and a budget for more."""
    capture = tmp_path / "run.pcapng"
    options = "--workers 4 --model mlp --epochs 1 --max-steps 6 --topology leaf-spine-2x2 --loss 0.01"
    done = CliRunner().invoke(
        app,
        f"train {options} --loss-budget 0.05 --no-reference --out {tmp_path} --pcap {capture}".split(),
    )
    assert done.exit_code == 0, done.output
    files = sorted(tmp_path.glob("run.*.pcapng"))
    assert [file.name for file in files] == [
        f"run.{name}.pcapng" for name in ("leaf1", "leaf2", "spine1", "spine2")
    ]
    audit = PacketAudit.of_files(files)
    assert not audit.findings, audit.findings[:3]
    assert audit.report.checked[Rule.SUMS] > 100
    assert len(audit.report.worker_lanes) == 4


# -- the command ----------------------------------------------------------------------------------------


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["audit", *map(str, arguments)], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_command_tells_what_was_checked(racks: Path) -> None:
    status, output = run(racks)
    assert status == 0 and "0 findings" in output and "never" in output  # no flows in it


def test_files_of_one_run_are_put_together(racks: Path, tmp_path: Path) -> None:
    """A capture for each end of the links: what both have is taken once."""
    other = tmp_path / "other.pcapng"
    other.write_bytes(racks.read_bytes())
    status, output = run(racks, other)
    assert status == 0 and "0 findings" in output


def test_a_file_that_is_no_capture_is_refused(tmp_path: Path) -> None:
    status, output = run(tmp_path / "nothing.pcap")
    assert status == 2 and "nothing.pcap" in output
