# SPDX-License-Identifier: Apache-2.0
"""The soft switch against BMv2 and against a hand-written C aggregator.

All run the slot protocol, self-clocked: every slot always has a round under way. Over veth pairs they
alternate, the senders on the same two cores; the soft switch by AF_PACKET, as the others, and without veth
over shared memory.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final

from softp4.bench.contenders import take_turns
from softp4.dataplane.ports import HasHandle, PortLoop
from softp4.native.scratch import scratch_folder
from softp4.switch import Switch
from weir.agent_service.client import AgentClient
from weir.bench.case import Run, parameter
from weir.bench.report import factor
from weir.bench.results import Column, Row, Table
from weir.bench.switch import native
from weir.controller.desired import desired_state
from weir.controller.jobs import Job, Member
from weir.controller.slots import SlotRange
from weir.controller.topology import single_switch
from weir.controller.wiring import Target
from weir.netns.cluster import NetworkCluster, network_cluster
from weir.netns.lab import Lab, lab
from weir.netns.namespace import why_not
from weir.p4src import PROGRAM
from weir.simulator.entries import install

JOB: Final = 7
SOFT: Final = "soft switch"
SHARED_MEMORY: Final = "soft switch, shared memory"
AGGREGATOR: Final = "C aggregator"
BMV2: Final = "BMv2"
BESIDE_BMV2: Final = "x BMv2 over ports"
ROUNDS_APART: Final = 100_000_000
"""Rounds by which a repetition is ahead of the last one: a leap, which the second worker makes good."""


@dataclass(frozen=True)
class Parameters:
    """The load."""

    workers: int = parameter(4, "Number of workers.", least=1, most=32)
    slots: int = parameter(64, "Slots kept busy.", least=1, most=1024)
    lanes: int = parameter(256, "Lanes a packet.", choices=range(32, 257, 32))
    seconds: float = parameter(3.0, "Length of one repetition over ports.", unit="s", least=0.1)


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure over ports, then in memory: ports only as root; BMv2 only when it is on PATH; said if not."""
    bmv2 = 0.0
    if (reason := why_not()) is None:
        kinds = [SOFT, SHARED_MEMORY, AGGREGATOR]
        if shutil.which("simple_switch_grpc"):
            kinds.append(BMV2)
        else:
            run.say("BMv2 not measured: simple_switch_grpc is not on PATH")
        rates = interfaces(kinds, given, run)
        notes = ("each is restarted for each turn; over AF_PACKET on veth pairs if not said",)
        peers = tuple(kind for kind in (AGGREGATOR, BMV2) if kind in kinds)
        yield _table("packets in and out", given, rates, peers, notes)
        bmv2 = median(rates[BMV2]) if BMV2 in rates else 0.0
    else:
        run.say(f"AF_PACKET not measured: {reason}")
    memory = pipeline(given, run.repeats)
    yield _table("in memory, packets in", given, memory, (AGGREGATOR,), (), bmv2)


def _table(
    what: str,
    given: Parameters,
    rates: Mapping[str, list[float]],
    peers: tuple[str, ...],
    notes: tuple[str, ...],
    bmv2: float = 0.0,
) -> Table:
    """Return a table of packets per second. bmv2: in and out of BMv2, beside rows that it has no part in."""
    beside = (Column(BESIDE_BMV2, factor, "packets in and out of BMv2 over AF_PACKET"),) if bmv2 else ()
    return Table(
        f"Slot protocol, {given.workers} workers, {given.lanes} lanes a packet: {what}",
        (Column("packets/s"), *beside),
        tuple(
            Row(name, {"packets/s": values, **({BESIDE_BMV2: median(values) / bmv2} if bmv2 else {})})
            for name, values in rates.items()
        ),
        peers=peers,
        better="more",
        notes=notes,
    )


def pipeline(given: Parameters, repeats: int) -> dict[str, list[float]]:
    """Return packets per second into each pipeline, frames in memory, one thread; the two alternate."""
    load = native.contributions(JOB, given.workers, given.lanes)
    aggregator = native.Aggregator(JOB, given.workers, given.slots)
    rounds = max(20, 400_000 // (given.workers * given.slots))
    with Switch(PROGRAM) as switch:
        admit(switch, given.workers, given.slots)
        began: Counter[str] = Counter()

        def rate(name: str, candidate: HasHandle) -> float:
            first = 1 + rounds * began[name]
            began[name] += 1
            return native.in_memory(candidate, load, given.slots, first, first + rounds)

        rates = take_turns(
            {SOFT: partial(rate, SOFT, switch), AGGREGATOR: partial(rate, AGGREGATOR, aggregator)}, repeats
        )
    aggregator.close()
    return rates


def admit(switch: Switch, workers: int, slots: int) -> None:
    """Write the entries of one job into a switch, as the controller would."""
    topology = single_switch(workers, grpc="127.0.0.1:1", target="soft")
    members = {rank: Member(rank, host, 9347) for rank, host in enumerate(topology.hosts)}
    job = Job(JOB, "bench", "", workers, members=members, slots=SlotRange(0, slots))
    install(switch, desired_state(topology, topology.switches[0], [job]))


def interfaces(kinds: Sequence[str], given: Parameters, run: Run) -> dict[str, list[float]]:
    """Return packets per second in and out of each kind of switch, which is restarted for each turn."""

    def turn(kind: str) -> float:
        measure = over_rings if kind == SHARED_MEMORY else partial(_over_veth, kind)
        rate = measure(given.workers, given.slots, given.lanes, given.seconds)
        run.say(f"{kind}: {rate.packets:,.0f} packets/s, {rate.retransmitted} retransmitted")
        return rate.packets

    return take_turns({kind: partial(turn, kind) for kind in kinds}, run.repeats, warm_up=False)


def _over_veth(kind: str, workers: int, slots: int, lanes: int, seconds: float) -> native.Rate:
    with _single_packets(), _serving(kind, workers, slots) as (place, job):
        _blind(place)
        places = [namespace.path for namespace in place.namespaces]
        load = native.contributions(job, workers, lanes)
        native.over_interfaces(places, load, slots, 1, seconds / 3)  # warms up
        return native.over_interfaces(places, load, slots, ROUNDS_APART, seconds)


def over_rings(workers: int, slots: int, lanes: int, seconds: float, threads: int = 1) -> native.Rate:
    """Measure the soft switch over shared memory."""
    load = native.contributions(JOB, workers, lanes)
    with (
        scratch_folder("weir-bench", "/dev/shm") as folder,
        Switch(PROGRAM, threads=threads) as switch,
        contextlib.closing(PortLoop()) as loop,
    ):
        admit(switch, workers, slots)
        if threads > 1:
            switch.threads.share()
        for number in range(1, workers + 1):
            loop.add_shm(number, folder)
        loop.set_switch(switch)
        loop.start()
        native.over_rings(folder, load, slots, 1, seconds / 3)
        return native.over_rings(folder, load, slots, ROUNDS_APART, seconds)


@contextlib.contextmanager
def _single_packets() -> Iterator[None]:
    """Let no switch send batches meanwhile: the raw sockets of the load know single packets only."""
    before = os.environ.get("SOFTP4_BATCHES")
    os.environ["SOFTP4_BATCHES"] = "off"
    try:
        yield
    finally:
        del os.environ["SOFTP4_BATCHES"]
        if before is not None:
            os.environ["SOFTP4_BATCHES"] = before


def _blind(place: Lab) -> None:
    """Let the hosts' kernels ignore results, which are for the load's raw sockets only.

    With another MAC address, IP drops them at once; otherwise it would look for a socket and answer with
    ICMP, on the switch's time.
    """
    for index, namespace in enumerate(place.namespaces):
        namespace.links.set("eth0", mac=f"02:00:00:ff:00:{index:02x}")


@contextlib.contextmanager
def _serving(kind: str, workers: int, slots: int) -> Iterator[tuple[Lab, int]]:
    """Yield a lab whose switch serves one job; that job's id."""
    if kind == AGGREGATOR:
        with lab(workers) as place, _hand_written(place, workers, slots):
            yield place, JOB
    else:
        switch: Target = "bmv2" if kind == BMV2 else "soft"
        with (
            network_cluster(workers, switch=switch) as cluster,
            _joined(cluster, workers, slots) as job,
        ):
            yield cluster.lab, job


@contextlib.contextmanager
def _hand_written(place: Lab, workers: int, slots: int) -> Iterator[None]:
    command = [
        *place.at_switch(),
        sys.executable,
        "-m",
        "weir.bench.switch.aggregator",
        str(JOB),
        str(workers),
        str(slots),
    ]
    process = subprocess.Popen(
        [*command, *place.interfaces], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin and process.stdout
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the hand-written aggregator did not start")
        yield
    finally:
        process.stdin.close()
        process.wait(10)


@contextlib.contextmanager
def _joined(cluster: NetworkCluster, workers: int, slots: int) -> Iterator[int]:
    """Yield all workers of one job joined at the controller, as agents would."""
    clients = [AgentClient(cluster.controller) for _ in range(workers)]
    jobs: list[int] = []

    def join(rank: int) -> None:
        host = cluster.lab.hosts[rank].name
        jobs.append(clients[rank].join(job="bench", size=workers, rank=rank, host=host, slots=slots).job_id)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        if len(jobs) != workers:
            raise RuntimeError("not all workers could join")
        yield jobs[0]
    finally:
        for client in clients:
            client.leave()
            client.close()
