# SPDX-License-Identifier: Apache-2.0
"""Whole networks: two tiers of real switches, loss, congestion, unequal paths, a spine that dies."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from softp4.dataplane.pcap import read_capture
from softp4.runtime.queueing import Queueing
from softp4.state.entry import Entry, Exact
from softp4.switch import MAX_FRAME
from tests.simulator.reductions import (
    BLOCK,
    MS,
    Lanes,
    check_exact,
    delivered,
    drawn,
    network_faults,
    submit,
    vectors,
)
from weir.bench.simulated.fabric import treated
from weir.controller.qos import ClassSpec, Qos
from weir.controller.tables import forwarding, sources, spraying
from weir.controller.topology import Topology, leaf_spine
from weir.host_agent.flows import FlowConfig, FlowReceiver, FlowSender
from weir.host_agent.flows.frames import Address
from weir.host_agent.transport.codec import Packet
from weir.host_agent.transport.report import ReduceReport
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.simulator.background import Background, IncastBursts
from weir.simulator.clock import Clock, StuckError
from weir.simulator.link import Faults
from weir.simulator.network import Allocation, LinkSpec, Network
from weir.simulator.ring import Ring
from weir.simulator.trace import Trace
from weir.wire.addresses import mac_bytes, mac_number
from weir.wire.definition import MAGNITUDE_CLASSES, UDP_PORT, Flag, Op, Treatment, dscp

UDP_PROTOCOL = 17
UNLIMITED = LinkSpec(None, Faults(delay=1_000))
FAST = LinkSpec(1_000_000_000, Faults(delay=1_000))
SLOW = LinkSpec(100_000_000, Faults(delay=1_000))


def two_tiers(racks: int, spines: int, hosts: int, **qos: Any) -> Topology:
    return leaf_spine(racks, spines, hosts, target="soft", qos=Qos(**qos))


def everybody(topology: Topology) -> list[str]:
    return [host.name for host in topology.hosts]


def check_bounded(before: list[Lanes], after: list[Lanes], job: Allocation, budget: int) -> None:
    """Every replica holds the sum of all but what came back, which is within the budget."""
    for worker in job.workers:
        report = worker.reports[-1]
        assert report.missing.tolist() == [report.returned.lanes]
        assert report.returned.lanes <= budget
    check_exact(delivered(before, job), after)


def total(job: Allocation, count: Callable[[ReduceReport], int]) -> int:
    return sum(count(report) for worker in job.workers for report in worker.reports)


def weir_packets(frames: list[bytes]) -> list[Packet]:
    return [
        Packet.decode(frame[42:])
        for frame in frames
        if frame[23] == 17 and UDP_PORT in (int.from_bytes(frame[34:36]), int.from_bytes(frame[36:38]))
    ]


# -- determinism ---------------------------------------------------------------------------------------


def story(seed: int, path: Path) -> bytes:
    """Loss, jitter, background, a job: all that is sent on every link."""
    faults = Faults(delay=5_000, jitter=20_000, loss=0.02, duplicate=0.02)
    topology = two_tiers(2, 2, 3, spray="random")
    with Network(topology, seed=seed, link=LinkSpec(1_000_000_000, faults)) as network, Trace(path) as trace:
        trace.attach_all(network.links())
        job = network.admit(["h1", "h2", "h4", "h5"], slots=8, initial_rto=0.02, min_rto=0.01)
        hosts = ["h3", "h6"]
        incast = IncastBursts(200_000_000, fan_in=1, length=20_000)
        Background(network, incast, senders=hosts, receivers=hosts, seed=seed)
        submit(job, vectors(1, 4, 20))
        network.run(lambda: job.idle, limit=10)
    return path.read_bytes()


def test_the_same_seed_gives_the_same_trace_byte_for_byte(tmp_path: Path) -> None:
    first = story(1, tmp_path / "first")
    assert first == story(1, tmp_path / "again")
    assert first != story(2, tmp_path / "other")


def test_who_looks_changes_nothing(tmp_path: Path) -> None:
    def run(traced: bool) -> list[Any]:
        topology = two_tiers(2, 2, 3)
        queueing = Queueing(depth_packets=24)
        with Network(topology, seed=1, link=FAST, queueing=queueing) as network:
            trace = Trace(tmp_path / "trace")
            if traced:
                trace.attach_all(network.links())
            job = network.admit(everybody(topology), slots=64, initial_rto=0.02, min_rto=0.01)
            incast = IncastBursts(1_500_000_000, fan_in=3, length=40_000)
            Background(network, incast, senders=everybody(topology), receivers=everybody(topology), seed=1)
            after = submit(job, vectors(1, 6, 100))
            network.run(lambda: job.idle, limit=10)
            trace.close()
            counts = [node.switch.statistics() for node in network.nodes.values()]
            return [network.clock.now, counts, [array.sum() for array in after]]

    assert run(traced=True) == run(traced=False)


def test_a_trace_can_be_read_and_is_in_order(tmp_path: Path) -> None:
    story(3, tmp_path / "trace")
    times = [captured.time for captured in read_capture(tmp_path / "trace")]
    assert len(times) > 500
    assert times == sorted(times)


# -- exactness -----------------------------------------------------------------------------------------

networks = st.fixed_dictionaries(
    {
        "racks": st.integers(1, 4),
        "spines": st.integers(1, 4),
        "hosts": st.integers(1, 3),
        "slots": st.one_of(st.integers(1, 4), st.integers(1, 64)),
        "seed": st.integers(0, 2**32 - 1),
        "rate": st.sampled_from([None, 100_000_000]),
        "faults": network_faults,
        "first_round": st.sampled_from([1, 2**32 - 3]),
        "bounded": st.booleans(),
        "dies": st.sampled_from([None, 1, 1 * MS, 20 * MS, 300 * MS]),  # the first spine, when
        "noticed": st.sampled_from([1, 1 * MS, 500 * MS]),  # after so long
    }
)


@drawn(300)
@given(shape=networks)
def test_two_tiers_sum_exactly_what_they_include_whatever_links_do(shape: dict[str, Any]) -> None:
    note(f"{shape!r}")
    topology = two_tiers(shape["racks"], shape["spines"], shape["hosts"])
    link = LinkSpec(shape["rate"], shape["faults"])
    with Network(topology, seed=shape["seed"], link=link) as network:
        names = everybody(topology)
        job = network.admit(names, slots=shape["slots"], first_round=shape["first_round"])
        if shape["dies"] is not None and shape["spines"] > 1:
            network.clock.at(shape["dies"], network.kill, "spine1")
            network.clock.at(shape["dies"] + shape["noticed"], network.program)
        for step in range(3):
            before = vectors(shape["seed"] + step, len(names), 10)
            bounded = shape["bounded"] and step != 1
            budget = 3 * BLOCK
            service = ServiceClass(layer=step, budgets=np.array([budget], np.uint64)) if bounded else LOSSLESS
            after = submit(job, before, service)
            network.run(lambda: job.idle)
            if bounded:
                check_bounded(before, after, job, budget)
            else:
                check_exact(before, after)


def test_frames_are_as_long_as_a_switch_takes_them() -> None:
    with Network(two_tiers(1, 1, 1), seed=1) as network:
        host, leaf = network.stations["h1"], network.nodes["leaf1"].switch
        host.send(bytes(MAX_FRAME))
        network.run_for(0.001)
        assert leaf.statistics().bytes_in == MAX_FRAME
        with pytest.raises(ValueError, match=f"at most {MAX_FRAME} bytes, not {MAX_FRAME + 1}"):
            host.send(bytes(MAX_FRAME + 1))


def test_jobs_within_racks_and_across_them_do_not_disturb_each_other() -> None:
    topology = two_tiers(3, 2, 3)
    with Network(topology, seed=1, link=LinkSpec(None, Faults(delay=1_000, loss=0.02))) as network:
        members = [everybody(topology), ["h1", "h2"], ["h4", "h9"], ["h7", "h8", "h9"]]
        jobs = [network.admit(hosts, slots=16) for hosts in members]
        before = [vectors(number, len(hosts), 30) for number, hosts in enumerate(members)]
        after = [submit(job, arrays) for job, arrays in zip(jobs, before, strict=True)]
        network.run(lambda: all(job.idle for job in jobs))
        for one, other in zip(before, after, strict=True):
            check_exact(one, other)


# -- paths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spines", [2, 4])
def test_slots_are_spread_over_unequal_paths_evenly_and_to_no_harm(spines: int) -> None:
    topology = two_tiers(2, spines, 4)
    with Network(topology, seed=1, link=FAST) as network:
        sent: Counter[tuple[str, str]] = Counter()
        for ends in [("leaf1", f"spine{s}") for s in range(1, spines + 1)]:
            number = int(ends[1].removeprefix("spine"))
            network.link(*ends).faults = Faults(delay=1_000 + 100_000 * number, jitter=20_000 * number)

            def count(_time: int, frame: bytes, ends: tuple[str, str] = ends) -> None:
                sent[ends] += len(frame)

            network.link(*ends).tap = count
        job = network.admit(everybody(topology), slots=64)
        before = vectors(1, 8, 640)
        after = submit(job, before)
        network.run(lambda: job.idle)
        check_exact(before, after)
    assert len(sent) == spines
    assert max(sent.values()) < 1.02 * min(sent.values())


@pytest.mark.parametrize("spines", [2, 4])
def test_flow_packets_are_sprayed_within_two_per_cent_of_even(spines: int) -> None:
    topology = two_tiers(2, spines, 1)
    values = np.random.default_rng(1).standard_normal(400_000).astype(np.float32)
    with Network(topology, seed=1, link=FAST) as network:
        for number in range(1, spines + 1):
            network.link("leaf1", f"spine{number}").faults = Faults(delay=1_000 + 200_000 * number)
        here, there = network.flows("h1"), network.flows("h2")
        sender, receiver = FlowSender(FlowConfig(1)), FlowReceiver(FlowConfig(1))
        here.add(sender, Address(network.stations["h2"].host.ip))
        there.add(receiver, Address(network.stations["h1"].host.ip))
        sender.submit(values)
        here.pump()
        network.run(lambda: sender.idle, limit=10)
        (delivery,) = receiver.deliveries()
        np.testing.assert_array_equal(delivery.values, values)
        leaf = network.nodes["leaf1"].switch
        counted = [
            leaf.table(spraying.PATHS).count(entry.key) for entry in leaf.table(spraying.PATHS).entries()
        ]
    assert len(counted) == spines
    assert min(count.bytes for count in counted) > 1_000_000 / spines
    assert max(count.bytes for count in counted) < 1.02 * min(count.bytes for count in counted)


def test_a_spine_that_dies_in_the_middle_costs_time_and_nothing_else() -> None:
    topology = two_tiers(2, 2, 4)
    with Network(topology, seed=1, link=FAST) as network:
        job = network.admit(everybody(topology), slots=32)
        before = vectors(1, 8, 400)
        after = submit(job, before)
        network.clock.at(1 * MS, network.kill, "spine1")
        network.clock.at(50 * MS, network.program)
        network.run_for(0.05)
        assert not job.idle
        rounds = [worker.transport.rounds for worker in job.workers]
        assert all(rounds)  # it was in the middle
        network.run(lambda: job.idle, limit=5)
        check_exact(before, after)
        again = vectors(2, 8, 40)
        last = submit(job, again)
        start = network.clock.now
        network.run(lambda: job.idle, limit=1)
        assert network.clock.now - start < 10 * MS  # nobody waits for the dead spine
        check_exact(again, last)
        late = network.admit(everybody(topology), slots=16)
        done = submit(late, again)
        network.run(lambda: late.idle, limit=1)
        check_exact(again, done)


@pytest.mark.parametrize("when", [100_000, 500_000, 1_300_000, 2_100_000])
def test_whenever_a_spine_dies_the_rounds_that_one_rack_has_reach_the_others(when: int) -> None:
    """Results are on their way down to some racks only: the others get them through the new spine."""
    topology = two_tiers(3, 2, 2)
    with Network(topology, seed=when, link=FAST) as network:
        for leaf, delay in (("leaf1", 1_000), ("leaf2", 200_000), ("leaf3", 600_000)):
            network.link("spine1", leaf).faults = Faults(delay=delay)
        job = network.admit(everybody(topology), slots=16)
        before = vectors(when, 6, 200)
        after = submit(job, before)
        network.clock.at(when, network.kill, "spine1")
        network.clock.at(when + 20 * MS, network.program)
        network.run(lambda: job.idle, limit=10)
        check_exact(before, after)


restarts = st.lists(
    st.tuples(st.sampled_from(["leaf1", "leaf2", "spine1"]), st.integers(1, 30 * MS)), max_size=6
)


@drawn(150)
@given(
    racks=st.integers(1, 2),
    hosts=st.integers(1, 3),
    slots=st.integers(1, 32),
    seed=st.integers(0, 2**32 - 1),
    faults=network_faults,
    op=st.sampled_from([Op.ADD, Op.MAX]),
    restarts=restarts,
)
def test_switches_that_start_anew_cost_time_and_nothing_else(
    racks: int,
    hosts: int,
    slots: int,
    seed: int,
    faults: Faults,
    op: Op,
    restarts: list[tuple[str, int]],
) -> None:
    """They forget sums of which only some workers have the result: those repeat what they sent."""
    topology = two_tiers(racks, 1, hosts)
    names = {switch.name for switch in topology.switches}
    with Network(topology, seed=seed, link=LinkSpec(100_000_000, faults)) as network:
        job = network.admit(everybody(topology), slots=slots)
        for switch, when in restarts:
            if switch in names:
                network.clock.at(when, network.kill, switch)
                network.clock.at(when + 1, network.restart, switch)
                network.clock.at(when + 2 * MS, network.program)
        before = [vectors(seed + step, len(job.workers), 40) for step in range(3)]
        after = [submit(job, arrays, op=op) for arrays in before]
        network.run(lambda: network.clock.now > 31 * MS and job.idle, limit=3600)
        for one, other in zip(before, after, strict=True):
            check_exact(one, other, op)


def test_a_result_that_only_some_have_when_the_switch_starts_anew_reaches_the_others() -> None:
    topology = two_tiers(1, 1, 4)
    with Network(topology, seed=1, link=FAST) as network:
        network.link("leaf1", "h4").faults = Faults(delay=1_000, loss=1.0)
        job = network.admit(everybody(topology), slots=16)
        before = vectors(1, 4, 64)
        after = [submit(job, before) for _ in range(3)]
        network.run_for(0.05)
        assert [worker.transport.rounds for worker in job.workers] == [16, 16, 16, 0]
        network.link("leaf1", "h4").faults = Faults(delay=1_000)
        network.kill("leaf1")
        network.restart("leaf1")
        network.program()
        network.run(lambda: job.idle, limit=10)
        for result in after:
            check_exact(before, result)
        assert all(sum(report.replays for report in worker.reports) for worker in job.workers[:3])


LAST = {
    "one rack": (two_tiers(1, 1, 4), "leaf1", "leaf1", 1 * MS),
    "its leaf, of two racks": (two_tiers(2, 2, 2), "leaf2", "leaf2", 1 * MS),
    "the spine, of two racks": (two_tiers(2, 1, 2), "leaf2", "spine1", 1 * MS),
    "long after the others were done": (two_tiers(1, 1, 3), "leaf1", "leaf1", 200_000 * MS),
}


@pytest.mark.parametrize("name", LAST)
def test_who_is_done_helps_those_whose_results_a_switch_has_forgotten(name: str) -> None:
    """They have nothing else to do, ever: the job's last sum lacks one worker, and its switch restarts."""
    topology, leaf, restarted, when = LAST[name]
    with Network(topology, seed=1, link=FAST) as network:
        last = everybody(topology)[-1]
        network.link(leaf, last).faults = Faults(delay=1_000, loss=1.0)
        job = network.admit(everybody(topology), slots=16)
        before = vectors(1, len(job.workers), 16)
        after = submit(job, before)
        network.run(lambda: [worker.idle for worker in job.workers].count(False) == 1, limit=5)
        network.run_for(when / 1e9)
        network.link(leaf, last).faults = Faults(delay=1_000)
        for switch in {leaf, restarted}:
            network.kill(switch)
            network.restart(switch)
        network.program()
        network.run(lambda: job.idle, limit=130)
        check_exact(before, after)
        network.run_for(1000)
        sent = sum(worker.transport.report().replays for worker in job.workers)
        assert sent <= len(job.workers) * 16 * (6 + 1400 // 64)  # more and more rarely


def test_a_lossy_sum_that_a_switch_has_forgotten_ends_in_words() -> None:
    """A second sum could have other workers in it: nobody repeats anything."""
    topology = two_tiers(1, 1, 3)
    with Network(topology, seed=77, link=FAST) as network:
        network.link("leaf1", "h3").faults = Faults(delay=1_000, loss=1.0)
        job = network.admit(everybody(topology), slots=16)
        submit(job, vectors(1, 3, 16), ServiceClass(budgets=np.array([16 * BLOCK], np.uint64)))
        network.run_for(0.05)
        network.link("leaf1", "h3").faults = Faults(delay=1_000)
        network.kill("leaf1")
        network.restart("leaf1")
        network.program()
        with pytest.raises(StuckError, match=r"seed 77, .* 1 workers wait for \(slot, round\); job1, rank 2"):
            network.run(lambda: job.idle, limit=300)


def test_packets_that_go_in_a_circle_between_switches_end_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two switches forward a frame to one another, by its MAC address, and it never comes to a host."""
    monkeypatch.setattr(Clock, "most_events", 200_000)
    lost = "02:00:00:00:99:99"
    with Network(two_tiers(1, 1, 1), seed=5, link=UNLIMITED) as network:
        (cable,) = network.topology.links
        for end in cable.ends:
            there = network.nodes[end.switch].switch.table(forwarding.L2)
            there.insert(Entry((Exact(mac_number(lost)),), forwarding.FORWARD, (end.port,)))
            network.nodes[end.switch].switch.table(sources.STATIONS).set_default(sources.TRUST)
        network.stations["h1"].send(bytes.fromhex(lost.replace(":", "")) + bytes(60))
        with pytest.raises(
            StuckError, match=r"^2\d\d,\d{3} events in \d.\d{6} virtual seconds, and no end: seed 5"
        ):
            network.run(lambda: False, limit=1e9)


def test_packets_that_go_in_a_circle_between_hosts_end_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answers the other's packet at once, and links take no time."""
    monkeypatch.setattr(Clock, "most_events", 20_000)
    with Network(two_tiers(1, 1, 2), seed=6, link=LinkSpec(None, Faults(delay=0))) as network:
        one, other = network.stations["h1"], network.stations["h2"]

        def echo(frame: bytes) -> None:
            back = frame[6:12] + frame[:6] + frame[12:]
            (one if frame[:6] == mac_bytes(one.host.mac) else other).send(back)

        for station in (one, other):
            station.open(UDP_PROTOCOL, 7, echo)
        one.send(bytes(Ether(src=one.host.mac, dst=other.host.mac) / IP() / UDP(dport=7) / b"echo"))
        with pytest.raises(StuckError, match=r"events in 0\.000000 virtual seconds, and no end: seed 6"):
            network.run(lambda: False)


# -- congestion ----------------------------------------------------------------------------------------


def congested(**qos: Any) -> tuple[Network, list[str]]:
    """Return two racks of four between which there is a tenth of the hosts' rate."""
    topology = two_tiers(2, 1, 4, **qos)
    network = Network(topology, seed=1, link=FAST, trunk=SLOW, queueing=Queueing(depth_packets=128))
    return network, everybody(topology)


def test_no_timer_fires_because_of_a_trim() -> None:
    network, names = congested()
    with network:
        job = network.admit(names, slots=64)
        budget = 200 * BLOCK
        for seed in range(3):
            before = vectors(seed, 8, 400)
            service = ServiceClass(layer=3, budgets=np.array([budget], np.uint64))
            after = submit(job, before, service)
            network.run(lambda: job.idle, limit=10)
            check_bounded(before, after, job, budget)
        assert treated(network, Treatment.TRIMMED) > 0
        assert total(job, lambda report: report.trimmed) > 0
        assert total(job, lambda report: report.timeouts) == 0


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_sent_twice_over_slow_links_that_lose_nothing(seed: int) -> None:
    """All slots' packets wait in one queue for longer than the least timeout, equally long."""
    link = LinkSpec(10_000_000, Faults(delay=1_000, jitter=seed * 100_000))
    with Network(two_tiers(1, 1, 2), seed=seed, link=link) as network:
        job = network.admit(everybody(network.topology), slots=128)
        for number in range(3):
            before = vectors(number, 2, 400)
            after = submit(job, before)
            network.run(lambda: job.idle, limit=30)
            check_exact(before, after)
        assert total(job, lambda report: report.retransmissions) == 0


def test_links_slower_than_the_initial_timeout_are_learned_within_a_window() -> None:
    link = LinkSpec(10_000_000, Faults(delay=1_000))
    with Network(two_tiers(1, 1, 4), seed=1, link=link) as network:
        job = network.admit(everybody(network.topology), slots=256)  # 224 ms of the link
        submit(job, vectors(1, 4, 1500))
        network.run(lambda: job.idle, limit=30)
        assert total(job, lambda report: report.retransmissions) < 4 * 256 / 2


def test_marks_close_the_window_of_what_is_protected_before_anything_is_lost() -> None:
    network, names = congested()
    with network:
        job = network.admit(names, slots=64)
        before = vectors(1, 8, 1000)
        after = submit(job, before)
        network.run(lambda: job.idle, limit=10)
        check_exact(before, after)
        assert treated(network, Treatment.MARKED) > 0
        assert total(job, lambda report: report.marked) > 0
        assert total(job, lambda report: report.timeouts) == 0
        assert all(worker.reports[-1].window < 64 for worker in job.workers)


def test_front_layers_results_arrive_before_back_layers() -> None:
    network, names = congested()
    with network:
        layers = [3, 2, 0]  # submitted in this order, as a backward pass would
        jobs = {layer: network.admit(names, slots=32) for layer in layers}
        before = {layer: vectors(layer, 8, 200) for layer in layers}
        after = {layer: submit(jobs[layer], before[layer], ServiceClass(layer=layer)) for layer in layers}
        ended: dict[int, int] = {}

        def all_done() -> bool:
            for layer, job in jobs.items():
                if job.idle and layer not in ended:
                    ended[layer] = network.clock.now
            return len(ended) == len(jobs)

        network.run(all_done, limit=10)
        for layer in layers:
            check_exact(before[layer], after[layer])
    assert ended[0] < ended[2] < ended[3]
    assert ended[0] < 0.5 * ended[3]  # it had the links almost for itself


def test_protected_packets_are_never_trimmed_and_droppable_ones_next_to_them_are() -> None:
    network, names = congested()
    with network:
        frames: list[bytes] = []
        for ends in (("leaf1", "spine1"), ("leaf2", "spine1")):  # hosts may send what looks like it: probes
            network.link(*ends).tap = lambda _time, frame: frames.append(frame)
        budget = 200 * BLOCK
        lossless, bounded = (network.admit(names, slots=64) for _ in range(2))
        first, second = vectors(1, 8, 400), vectors(2, 8, 400)
        exact = submit(lossless, first, ServiceClass(layer=3))
        trimmed = submit(bounded, second, ServiceClass(layer=3, budgets=np.array([budget], np.uint64)))
        network.run(lambda: lossless.idle and bounded.idle, limit=10)
        check_exact(first, exact)
        check_bounded(second, trimmed, bounded, budget)
        assert total(lossless, lambda report: report.repeats_asked + report.trimmed) == 0
        assert total(bounded, lambda report: report.trimmed) > 0
    cut = [p.flags for p in weir_packets(frames) if p.flags & (Flag.TRIMMED | Flag.ANSWER) == Flag.TRIMMED]
    assert cut
    assert not any(flags & Flag.PROTECTED for flags in cut)


def test_thresholds_changed_at_run_time_hold_for_the_next_packet() -> None:
    network, names = congested()
    back = [dscp(3, magnitude) for magnitude in range(MAGNITUDE_CLASSES)]
    with network:
        job = network.admit(names, slots=64)
        blocks = 1500
        before = vectors(1, 8, blocks)
        after = submit(job, before, ServiceClass(layer=3, budgets=np.array([blocks * BLOCK], np.uint64)))
        network.run(lambda: treated(network, Treatment.TRIMMED) >= 20, limit=1)
        trimmed = treated(network, Treatment.TRIMMED)
        network.program(two_tiers(2, 1, 4, classes=dict.fromkeys(back, ClassSpec(trim_at="never"))))
        network.run_for(0.01)
        assert treated(network, Treatment.TRIMMED) == trimmed
        network.program(two_tiers(2, 1, 4, classes={back[0]: ClassSpec(trim_at=0)}))
        climbing: list[bytes] = []
        network.link("leaf1", "spine1").tap = lambda _time, frame: climbing.append(frame)
        waiting = network.nodes["leaf1"].switch.queues(5).statistics()[dscp(3) >> 3].depth_packets
        network.run_for(0.01)
        assert treated(network, Treatment.TRIMMED) > trimmed
        packets = weir_packets(climbing)
        whole = [packet for packet in packets if packet.groups and not packet.flags & Flag.PROTECTED]
        assert len(whole) <= waiting < len(packets)  # those that were in the queue before, and not one more
        network.program(two_tiers(2, 1, 4))
        network.run(lambda: job.idle, limit=20)
        check_bounded(before, after, job, blocks * BLOCK)


# -- the peers -----------------------------------------------------------------------------------------


def test_a_ring_on_idle_links_takes_the_time_of_its_bytes() -> None:
    topology = two_tiers(2, 2, 4)
    with Network(topology, seed=1, link=FAST) as network:
        ring = Ring(network, everybody(topology))
        left = Counter(range(8))
        length = 800_000
        for rank in range(8):
            ring.all_reduce(rank, length, lambda rank=rank: left.subtract([rank]))
        network.run(lambda: not any(left[rank] > 0 for rank in range(8)), limit=1)
        bits = 2 * 7 * length / 8 * 8
        assert 1.0 < network.clock.now / (bits / FAST.rate_bps * 1e9) < 1.15
