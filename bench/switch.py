# SPDX-License-Identifier: Apache-2.0
"""``weir bench switch``: the soft switch against BMv2 and against a hand-written C aggregator.

All run the slot protocol for 4 workers with 256 lanes a packet, self-clocked: every slot always has a round
under way. Over veth pairs they take turns, the senders on the same two cores; the soft switch by AF_PACKET,
as the others, by AF_XDP, and without veth over shared memory.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from operator import truediv
from statistics import median
from typing import Final

from rich.console import Console

from softp4.dataplane.ports import PortLoop
from softp4.native.scratch import scratch_folder
from softp4.switch import Switch
from weir.agent_service.client import AgentClient
from weir.bench import native
from weir.bench.table import show, spread
from weir.controller.desired import desired_state
from weir.controller.jobs import Job, Member
from weir.controller.slots import SlotRange
from weir.controller.topology import single_switch
from weir.controller.wiring import Target
from weir.netns.cluster import NetworkCluster, network_cluster
from weir.netns.lab import Lab, lab
from weir.netns.namespace import why_not
from weir.p4src import PROGRAM
from weir.report.words import factor
from weir.simulator.entries import install

JOB: Final = 7
SHARED_MEMORY: Final = "soft switch, shared memory"
ROUNDS_APART: Final = 100_000_000
"""Rounds by which a repetition is ahead of the last one: a leap, which the second worker makes good."""

console = Console(stderr=True)


def run(workers: int, slots: int, lanes: int, seconds: float, repeats: int) -> None:
    """Measure and print. Over AF_PACKET only as root; BMv2 only when it is on PATH; both said if not."""
    memory = pipeline(workers, slots, lanes, repeats)
    notes = []
    rates: dict[str, list[float]] = {}
    reason = why_not()
    if reason is None:
        kinds = ["soft switch", "soft switch, AF_XDP", SHARED_MEMORY, "C aggregator"]
        if shutil.which("simple_switch_grpc"):
            kinds.append("BMv2")
        else:
            notes.append("BMv2 not measured: simple_switch_grpc is not on PATH")
        rates = interfaces(kinds, workers, slots, lanes, seconds, repeats)
    else:
        notes.append(f"AF_PACKET not measured: {reason}")
    _print(memory, rates, workers, lanes, notes)


def pipeline(workers: int, slots: int, lanes: int, repeats: int) -> dict[str, list[float]]:
    """Return packets per second into each pipeline, frames in memory, one thread; the two take turns."""
    load = native.contributions(JOB, workers, lanes)
    aggregator = native.Aggregator(JOB, workers, slots)
    rates: dict[str, list[float]] = {"soft switch": [], "C aggregator": []}
    with Switch(PROGRAM) as switch:
        admit(switch, workers, slots)
        rounds = max(20, 400_000 // (workers * slots))
        for repeat in range(repeats + 1):
            first = 1 + repeat * rounds
            for name, candidate in (("soft switch", switch), ("C aggregator", aggregator)):
                rate = native.in_memory(candidate, load, slots, first, first + rounds)
                if repeat:  # the first one warms up
                    rates[name].append(rate)
    aggregator.close()
    return rates


def admit(switch: Switch, workers: int, slots: int) -> None:
    topology = single_switch(workers, grpc="127.0.0.1:1", target="soft")
    members = {rank: Member(rank, host, 9347) for rank, host in enumerate(topology.hosts)}
    job = Job(JOB, "bench", "", workers, members=members, slots=SlotRange(0, slots))
    install(switch, desired_state(topology, topology.switches[0], [job]))


def interfaces(
    kinds: Sequence[str], workers: int, slots: int, lanes: int, seconds: float, repeats: int
) -> dict[str, list[float]]:
    """Return packets per second in and out of each kind of switch over its ports, started anew for each
    turn.
    """
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(repeats):
        for kind in kinds:
            turn = over_rings if kind == SHARED_MEMORY else partial(_over_veth, kind)
            rate = turn(workers, slots, lanes, seconds)
            console.print(f"{kind}: {rate.packets:,.0f} packets/s, {rate.retransmitted} retransmitted")
            rates[kind].append(rate.packets)
    return rates


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
        scratch_folder("bench", "/dev/shm") as folder,
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
    """Let no switch send trains meanwhile: the raw sockets of the load know single packets only."""
    before = os.environ.get("SOFTP4_TRAINS")
    os.environ["SOFTP4_TRAINS"] = "off"
    try:
        yield
    finally:
        del os.environ["SOFTP4_TRAINS"]
        if before is not None:
            os.environ["SOFTP4_TRAINS"] = before


def _blind(place: Lab) -> None:
    """Let the hosts' kernels ignore results, which are for the load's raw sockets only.

    With another MAC address, IP drops them at once; else it would look for a socket and answer with ICMP, on
    the switch's time.
    """
    for index, namespace in enumerate(place.namespaces):
        namespace.links.set("eth0", mac=f"02:00:00:ff:00:{index:02x}")


@contextlib.contextmanager
def _serving(kind: str, workers: int, slots: int) -> Iterator[tuple[Lab, int]]:
    """Yield a lab whose switch serves one job; that job's id."""
    if kind == "C aggregator":
        with lab(workers) as place, _hand_written(place, workers, slots):
            yield place, JOB
    else:
        switch: Target = "bmv2" if kind == "BMv2" else "soft"
        xdp = kind.endswith("AF_XDP")
        with (
            network_cluster(workers, switch=switch, xdp=xdp) as cluster,
            _joined(cluster, workers, slots) as job,
        ):
            yield cluster.lab, job


@contextlib.contextmanager
def _hand_written(place: Lab, workers: int, slots: int) -> Iterator[None]:
    command = [
        *place.at_switch(),
        sys.executable,
        "-m",
        "weir.bench.aggregator",
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


def _print(
    memory: dict[str, list[float]], rates: dict[str, list[float]], workers: int, lanes: int, notes: list[str]
) -> None:
    bmv2 = median(rates["BMv2"]) if "BMv2" in rates else None
    rows = []
    for where, measured in (("in memory, packets in", memory), ("in and out", rates)):
        for name, values in measured.items():
            rate = median(values)
            against_c = median(map(truediv, values, measured["C aggregator"]))
            against_bmv2 = factor(rate / bmv2) if bmv2 else "-"
            rows.append((f"{name}, {where}", f"{rate:,.0f}", spread(values), factor(against_c), against_bmv2))
    show(
        f"Slot protocol, {workers} workers, {lanes} lanes a packet",
        ("switch", "packets/s", "spread", "x C aggregator", "x BMv2"),
        rows,
        [
            "x C aggregator: median of the turns. x BMv2: packets in and out. AF_PACKET on veth if not said.",
            *notes,
        ],
    )
