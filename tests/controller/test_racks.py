# SPDX-License-Identifier: Apache-2.0
"""Jobs that span racks, on real switches: exact sums, losing a spine, settings that change meanwhile."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from softp4.native.ring import ShmPort
from tests.controller.helpers import until
from tests.controller.racks import Racks
from tests.harness.switch_process import SwitchProcess
from weir.agent_service.client import AgentClient, Membership
from weir.controller.program import load_program
from weir.controller.server import Settings, running
from weir.controller.switch_client import SwitchClient
from weir.controller.tables import admission, tree
from weir.controller.topology import TopologyError, leaf_spine
from weir.host_agent.transport.reducer import Reducer
from weir.wire.definition import FLOW_PORT, VERSION, FlowType, Op, dscp
from weir.wire.scapy_layer import WeirFlow

LANES = 1_000_000
HOSTS = ("h1", "h2", "h3", "h4")


@pytest.fixture
def racks(tmp_path: Path) -> Iterator[Racks]:
    with Racks(tmp_path) as made:
        yield made


class Workers:
    """The members of one job, each with its reducer."""

    def __init__(
        self, racks: Racks, address: str, hosts: tuple[str, ...], stack: ExitStack, slots: int = 64
    ) -> None:
        self._pool = stack.enter_context(ThreadPoolExecutor(len(hosts)))
        self.agents = [stack.enter_context(AgentClient(address)) for _ in hosts]

        def join(rank: int) -> Membership:
            size = len(hosts)
            return self.agents[rank].join(
                job="-".join(hosts), size=size, rank=rank, host=hosts[rank], slots=slots
            )

        self.members = list(self._pool.map(join, range(len(hosts))))
        self._reducers = [stack.enter_context(racks.worker(member)) for member in self.members]

    def reduce(self, seed: int, during: Callable[[], None] = lambda: None, block: int = 32) -> None:
        """Everybody's vector is the exact sum of all, zero blocks and all."""
        random = np.random.default_rng(seed)
        vectors = [random.integers(0, 1 << 32, LANES, dtype=np.uint32) for _ in self._reducers]
        for vector in vectors:
            vector.reshape(-1, 32)[random.random(LANES // 32) < 0.5] = 0
        wanted = np.sum(vectors, axis=0, dtype=np.uint32)

        def one(reducer: Reducer, vector: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> None:
            reducer.reduce_blocks(vector, Op.ADD, block)

        calls = [self._pool.submit(one, *pair) for pair in zip(self._reducers, vectors, strict=True)]
        during()
        for call in calls:
            call.result()
        for vector in vectors:
            np.testing.assert_array_equal(vector, wanted)


FAST = Settings(lease_s=20.0, join_timeout_s=60.0, spine_timeout_s=0.5)


def switch_status(agent: AgentClient, name: str) -> Any:
    (found,) = [switch for switch in agent.status().switches if switch.name == name]
    return found


def test_workers_of_two_racks_sum_exactly_over_both_spines(racks: Racks) -> None:
    with running(racks.topology, FAST) as controller, ExitStack() as stack:
        workers = Workers(racks, controller.address, ("h1", "h3", "h4"), stack)
        home = Workers(racks, controller.address, ("h2",), stack)
        assert [member.switch_name for member in workers.members] == ["leaf1", "leaf2", "leaf2"]
        assert [member.aggregation.ip for member in workers.members] == ["10.0.1.254", *["10.0.2.254"] * 2]
        assert not any(member.fill for member in workers.members)
        for seed in range(3):
            workers.reduce(seed)
        home.reduce(9)
        status = workers.agents[0].status()
        (wide,) = [job for job in status.jobs if job.size == 3]
        assert (list(wide.leaves), list(wide.spines)) == (["leaf1", "leaf2"], ["spine1", "spine2"])
        assert all(member.up.packets and member.down.packets for member in wide.members)
        by_name = {switch.name: switch for switch in status.switches}
        assert [by_name[name].role for name in ("leaf2", "spine2")] == ["leaf", "spine"]
        assert [by_name[name].slots_used for name in ("leaf1", "leaf2", "spine1")] == [128, 64, 64]
        for name in ("spine1", "spine2"):
            assert [port.host for port in by_name[name].ports] == ["leaf1", "leaf2"]
            assert all(port.up.packets and port.down.packets for port in by_name[name].ports)


@pytest.mark.parametrize("lanes", [32, 64])
def test_one_narrow_switch_makes_the_packets_of_its_jobs_narrow_and_their_slots_aligned(
    racks: Racks, lanes: int
) -> None:
    """A spine that says it is a Tofino: this many lanes in a packet, 2^n slots; a job of another rack is as
    ever.
    """
    switches = tuple(
        switch.model_copy(update={"target": "tofino", "lanes": lanes}) if switch.name == "spine2" else switch
        for switch in racks.topology.switches
    )
    topology = racks.topology.model_copy(update={"switches": switches})
    with running(topology, FAST) as controller, ExitStack() as stack:
        home = Workers(racks, controller.address, ("h2",), stack, slots=24)
        wide = Workers(racks, controller.address, ("h1", "h3", "h4"), stack, slots=40)
        for workers in (home, wide):
            workers.reduce(1, block=64)
        status = wide.agents[0].status()
        slots = {job.size: (job.slot_base, job.slot_count) for job in status.jobs}
        assert slots == {1: (0, 24), 3: (64, 64)}
        assert [workers.members[0].max_lanes for workers in (home, wide)] == [0, lanes]
        sent = {job.size: job.members[0].up for job in status.jobs}
        assert lanes * 4 < sent[3].bytes / sent[3].packets < 14 + 20 + 8 + 28 + 8 + lanes * 4 + 1
        assert sent[1].bytes / sent[1].packets > 400


def test_packets_for_another_rack_are_spread_evenly_and_counted(racks: Racks) -> None:
    frames = 200
    sender, receiver = racks.topology.hosts[0], racks.topology.hosts[3]
    gateway = racks.topology.switch("leaf1").aggregation.mac
    flow = WeirFlow(version=VERSION, type=FlowType.CHUNK) / bytes(100)
    there = IP(src=sender.ip, dst=receiver.ip, tos=dscp(0) << 2) / UDP(sport=FLOW_PORT, dport=FLOW_PORT)
    frame = bytes(Ether(src=sender.mac, dst=gateway) / there / flow)
    with running(racks.topology, FAST) as controller, AgentClient(controller.address) as agent:
        until(lambda: {switch.state for switch in agent.status().switches} == {"ready"})
        with (
            ShmPort(Path(str(sender.shm)), sender.port) as out,
            ShmPort(Path(str(receiver.shm)), receiver.port) as into,
        ):
            for _ in range(frames):
                out.send(frame)
                arrived = into.recv(timeout=10)
                assert arrived is not None
                told = Ether(arrived)
                assert (told.dst, told[IP].ttl, told[IP].tos) == (receiver.mac, 61, dscp(0) << 2)
        leaf = switch_status(agent, "leaf1")
        (front,) = [row for row in leaf.classes if row.dscp == dscp(0)]
        assert front.traffic.packets == frames
        assert [(path.spine, path.traffic.packets) for path in leaf.paths] == [
            ("spine1", frames // 2),
            ("spine2", frames // 2),
        ]


def test_a_job_goes_on_without_a_spine_and_a_new_one_uses_it_again(racks: Racks) -> None:
    with running(racks.topology, FAST) as controller, ExitStack() as stack:
        workers = Workers(racks, controller.address, ("h1", "h3"), stack)
        workers.reduce(1)
        workers.reduce(2, during=lambda: racks.kill("spine2"))
        agent = workers.agents[0]
        until(lambda: switch_status(agent, "spine2").given_up)
        until(lambda: list(agent.status().jobs[0].spines) == ["spine1"])
        workers.reduce(3)

        racks.start("spine2")
        until(lambda: not switch_status(agent, "spine2").given_up)
        later = Workers(racks, controller.address, ("h2", "h4"), stack)
        workers.reduce(4)
        later.reduce(5)
        spines = {tuple(job.spines) for job in agent.status().jobs}
        assert spines == {("spine1",), ("spine1", "spine2")}
        racks.kill("spine1")
        later.reduce(6)


def test_a_job_of_two_pods_goes_on_without_a_core(tmp_path: Path) -> None:
    with (
        Racks(tmp_path, pods=2, racks=1, spines=1) as pods,
        running(pods.topology, FAST) as controller,
        ExitStack() as stack,
    ):
        workers = Workers(pods, controller.address, ("h1", "h3", "h4"), stack)
        assert workers.members[0].paths == (0, 1 << 10, 1 << 10 | 1)
        workers.reduce(1)
        agent = workers.agents[0]
        assert list(agent.status().jobs[0].spines) == ["core1", "core2", "spine1", "spine2"]
        core = switch_status(agent, "core2")
        assert core.role == "core"
        assert [port.host for port in core.ports] == ["spine1", "spine2"]
        assert all(port.up.packets and port.down.packets for port in core.ports)
        workers.reduce(2, during=lambda: pods.kill("core2"))
        until(lambda: list(agent.status().jobs[0].spines) == ["core1", "spine1", "spine2"])
        workers.reduce(3)


def test_no_leaf_sends_elsewhere_before_all_leaves_are_deaf_to_the_spine(racks: Racks) -> None:
    """A leaf that cannot be told holds the move up: it might still hear the spine."""
    both, fenced, moved = ({3, 4}, {3, 4}), ({3}, {3, 4}), ({3}, {3})
    with running(racks.topology, FAST) as controller, ExitStack() as stack:
        workers = Workers(racks, controller.address, ("h1", "h3"), stack)
        assert _ways(racks, "leaf1") == both
        racks.kill("leaf2")
        racks.kill("spine2")
        until(lambda: _ways(racks, "leaf1") == fenced)
        until(lambda: switch_status(workers.agents[0], "spine2").given_up)
        assert list(workers.agents[0].status().jobs[0].spines) == ["spine1", "spine2"]
        assert _ways(racks, "leaf1") == fenced
        racks.start("leaf2")
        until(lambda: _ways(racks, "leaf1") == moved)
        until(lambda: _ways(racks, "leaf2") == moved)


def _ways(racks: Racks, leaf: str) -> tuple[set[int], set[int]]:
    """Return the ports by which a leaf accepts results, and by which it sends its sums; as the switch
    says.
    """
    observer = SwitchClient(racks.topology.switch(leaf), 1)
    try:
        observer.ensure_program(load_program("weir_v1model"))
        entries = observer.read().entries
    finally:
        observer.close()
    down = {int(str(dict(e.match)["port"])) for e in entries if e.table == admission.PARENTS}
    return down, {dict(e.params)["port"] for e in entries if e.table == tree.UPLINKS}


def test_a_job_starts_while_a_spine_is_away_and_none_without_any(
    racks: Racks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.controller.service.MIN_PROGRAM_TIME_S", 0.1)
    racks.kill("spine1")
    with running(racks.topology, FAST) as controller, ExitStack() as stack:
        workers = Workers(racks, controller.address, ("h1", "h3"), stack)
        workers.reduce(1)
        racks.kill("spine2")
        until(lambda: switch_status(workers.agents[0], "spine2").given_up)
        with pytest.raises(
            Exception, match=r"cannot start, a switch could not be programmed: no spine is left"
        ):
            Workers(racks, controller.address, ("h2", "h4"), stack)
        racks.start("spine2")
        workers.reduce(2)


def test_qos_changes_while_a_job_runs_and_nothing_else_may(racks: Racks) -> None:
    with running(racks.topology, FAST) as controller, ExitStack() as stack:
        workers = Workers(racks, controller.address, ("h1", "h4"), stack)
        workers.reduce(1)
        qos = {"classes": {"AF13": {"trim_at": 3}}, "spray": "random"}
        qos |= {"losses": [{"switch": "leaf1", "port": 3, "probability": 0.05}]}
        changed = racks.topology.model_validate({**racks.topology.model_dump(), "qos": qos})
        controller.reconfigure(changed)
        agent = workers.agents[0]
        until(lambda: "drop_simulated" in _events_after(workers, agent))
        status = switch_status(agent, "leaf1")
        (back,) = [row for row in status.classes if row.dscp == dscp(3, 0)]
        assert (back.trim_at, back.mark_at, back.queue) == (3, 12, 1)
        assert (status.spray, len(status.losses)) == ("random", 1)
        other = changed.model_copy(update={"hosts": changed.hosts[:-1]})
        with pytest.raises(TopologyError, match="hosts changed, but only qos may"):
            controller.reconfigure(other)


def _events_after(workers: Workers, agent: AgentClient) -> set[str]:
    """Return what leaf1 has counted, after some more traffic."""
    workers.reduce(7)
    return {e.name for e in switch_status(agent, "leaf1").events if e.count.packets}


def test_a_spine_that_hangs_is_given_up_until_it_answers_again(tmp_path: Path) -> None:
    """Its session stays open, so it has to be asked."""
    hanging = SwitchProcess("soft", tmp_path)
    hanging.start()
    address = {"spine2": hanging.address}
    topology = leaf_spine(1, 2, 1, grpc=lambda name: address.get(name, f"unix:{tmp_path}/{name}"))
    try:
        with running(topology, FAST) as controller, AgentClient(controller.address) as agent:
            until(lambda: switch_status(agent, "spine1").given_up)
            until(lambda: switch_status(agent, "spine2").state == "ready")
            assert not switch_status(agent, "spine2").given_up
            hanging.signal(signal.SIGSTOP)
            until(lambda: switch_status(agent, "spine2").given_up)
            assert "spine2" in switch_status(agent, "spine2").problem
            hanging.signal(signal.SIGCONT)
            until(lambda: not switch_status(agent, "spine2").given_up)
    finally:
        hanging.signal(signal.SIGCONT)
        hanging.stop()
