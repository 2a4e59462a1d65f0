# SPDX-License-Identifier: Apache-2.0
"""Drop precedence with the gradients of a real model: what a congested queue takes, and what it leaves."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.utils import rdpcap

from softp4.runtime.queueing import Queueing
from softp4.switch import Switch
from weir.background import Sender, Victim, frame
from weir.controller.desired import desired_state
from weir.controller.qos import WEIR_CLASSES, Qos
from weir.controller.topology import Topology, leaf_spine
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses, shared_magnitude_classes
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.transport.frames import Addresses, Endpoint, Framer
from weir.host_agent.transport.service_class import ServiceClass
from weir.host_agent.transport.slot_transport import SlotTransport, TransportConfig
from weir.p4src import PROGRAM
from weir.simulator.entries import install
from weir.simulator.host import Work
from weir.simulator.network import LinkSpec, Network
from weir.simulator.trace import Trace
from weir.train.config import TrainConfig, make_config
from weir.train.data import share
from weir.train.task import Task, make_task, mean_loss
from weir.wire.definition import (
    LAYER_CLASSES,
    MAGNITUDE_CLASSES,
    NOT_ECT,
    UDP_PORT,
    Flag,
    Op,
    PacketType,
    dscp,
)
from weir.wire.scapy_layer import Weir

WORKERS = 4
BLOCK = 256
MBIT = 1_000_000
MICROSECOND = 1_000


@pytest.fixture(scope="module")
def training() -> tuple[TrainConfig, Task]:
    """Return the CNN of ``weir train`` with its data."""
    config = make_config(model="cnn", method="dense", workers=WORKERS, epochs=1, seed=1)
    return config, make_task(config)


def vectors(
    training: tuple[TrainConfig, Task], rank: int, step: int
) -> dict[int, tuple[BucketLayout, torch.Tensor]]:
    """Return a worker's gradient of a step by layer class, the back first: how it lies, and its values."""
    config, task = training
    batch = share(len(task.data.train), rank, WORKERS, config.batch_size, config.seed, epoch=1)[step]
    task.model.zero_grad()
    mean_loss(task.model(task.data.train.inputs[batch]), task.data.train.targets[batch]).backward()  # type: ignore[no-untyped-call]
    layers, parameters, found = LayerClasses.of(task.model), dict(task.model.named_parameters()), {}
    for layer in reversed(range(LAYER_CLASSES)):
        if names := [name for name in parameters if layers[name] == layer]:
            layout = BucketLayout.of(layer, names, [parameters[name] for name in names], BLOCK)
            flat = [parameters[name].grad.flatten() for name in names]  # type: ignore[union-attr]
            found[layer] = layout, layout.spread(torch.cat(flat), WORKERS)
    return found


def gradients(training: tuple[TrainConfig, Task], step: int, policy: LossPolicy) -> list[list[Work]]:
    """Return each worker's gradient of a step as sums to do, with classes from the scales that all share."""
    every = [vectors(training, rank, step) for rank in range(WORKERS)]
    layers, works = LayerClasses.of(training[1].model), [list[Work]() for _ in every]
    for layer, (layout, _) in every[0].items():
        own = [vector for _, vector in (one[layer] for one in every)]
        largest = torch.stack(own).abs().amax(dim=0).view(-1, BLOCK).amax(dim=1)
        classes = shared_magnitude_classes(
            layout, largest.frexp().exponent.numpy().view(np.uint32) + 256, step
        )
        for vector, work in zip(own, works, strict=True):
            lanes = (vector.double() * 2**30).clamp(-(2**30), 2**30).to(torch.int32).numpy().view(np.uint32)
            accounts = policy.accounts_for(layout, layers, classes, lanes.reshape(-1, BLOCK).any(axis=1))
            service = ServiceClass(layer, classes, accounts.of_block, accounts.budgets)
            work.append(Work(Op.ADD, BLOCK, lanes.copy(), service=service))
    return works


# -- packet by packet -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrival:
    """A packet that may be shed: its classes, and how many waited in the queue that it was to join."""

    layer: int
    magnitude: int
    depth: int


def incast(
    topology: Topology, works: list[Work], gaps: Random
) -> tuple[list[Arrival], list[Arrival], Counter[bool]]:
    """Send the first packets of all workers to one slow port, in bursts.

    Returns what was trimmed, what was let through of those that may be shed, and of the protected ones how
    many lost their lanes.
    """
    *senders, receiver = topology.hosts
    there = Endpoint(receiver.mac, receiver.ip, UDP_PORT)
    arrived: dict[tuple[int, int], Arrival] = {}
    left: list[bytes] = []
    with Switch(PROGRAM) as switch:
        install(switch, desired_state(topology, topology.switch("leaf1"), []))
        switch.queues(receiver.port).set(Queueing(rate_bps=200 * MBIT))
        ways = []
        for worker, (host, work) in enumerate(zip(senders, works, strict=True)):
            transport = SlotTransport(TransportConfig(job=1, worker=worker, workers=WORKERS, slots=256))
            transport.begin(work.op, work.block, work.lanes, work.service)
            framer = Framer(Addresses(Endpoint(host.mac, host.ip, UDP_PORT), there))
            ways.append((worker, host.port, [framer.wrap(*d) for d in transport.poll(0)[0]]))
        now = 0
        for number in range(max(len(frames) for _, _, frames in ways)):
            now += gaps.choice((5,) * 9 + (900,)) * MICROSECOND
            for worker, port, frames in ways:
                if number >= len(frames):
                    continue
                packet = Ether(frames[number])
                left += [out for _, out in switch.step(now)]
                if packet[IP].tos & 3 == NOT_ECT and packet[Weir].groups:
                    queue = switch.queues(receiver.port).statistics()[packet[IP].tos >> 5]
                    arrived[worker, packet[Weir].slot] = Arrival(
                        packet[Weir].layer, packet[Weir].magnitude, queue.depth_packets
                    )
                left += [out for _, out in switch.process(port, frames[number], now)]
        left += [out for _, out in switch.step(now + 10**9)]
    trimmed, through, protected = [], [], Counter[bool]()
    for out in left:
        weir = Ether(out)[Weir]
        cut = bool(weir.getfieldval("flags") & Flag.TRIMMED)
        arrival = arrived.get((weir.worker, weir.slot))
        if arrival is None:
            protected[cut] += 1
        else:
            (trimmed if cut else through).append(arrival)
    return trimmed, through, protected


def test_no_magnitude_is_trimmed_while_a_smaller_one_passes_above_its_threshold(
    training: tuple[TrainConfig, Task],
) -> None:
    topology = leaf_spine(1, 1, WORKERS + 1, target="soft", qos=Qos())
    limit = {
        WEIR_CLASSES[code]: t.trim_at
        for code, t in Qos().per_hop_behaviours().items()
        if code in WEIR_CLASSES
    }
    trimmed, through = [], []
    policy = LossPolicy(budgets=((0.6,) * MAGNITUDE_CLASSES,) * LAYER_CLASSES, tensor=(1.0,) * LAYER_CLASSES)
    buckets = zip(*gradients(training, 0, policy), strict=True)
    for number, works in enumerate(buckets):
        cut, passed, protected = incast(topology, list(works), Random(number))
        assert protected[False] > 0
        assert protected[True] == 0
        trimmed += cut
        through += passed
    assert {arrival.magnitude for arrival in trimmed} == set(range(MAGNITUDE_CLASSES))
    above = {a for a in through if a.depth >= limit[a.layer, a.magnitude]}
    for lost in set(trimmed):
        assert lost.depth >= limit[lost.layer, lost.magnitude]
        assert not any(a.layer == lost.layer and a.magnitude < lost.magnitude for a in above)


# -- a capture ------------------------------------------------------------------------------------------


def captured(path: Path) -> tuple[Counter[tuple[int, int]], Counter[tuple[int, int]]]:
    """Return what was trimmed, and what might have been or was, by (layer, magnitude)."""
    trimmed: Counter[tuple[int, int]] = Counter()
    present: Counter[tuple[int, int]] = Counter()
    for packet in rdpcap(str(path)):
        if Weir not in packet or packet[Weir].type != PacketType.CONTRIBUTION:
            continue
        weir, flags = packet[Weir], Flag(packet[Weir].getfieldval("flags"))
        classes = weir.layer, weir.magnitude
        cut = flags & (Flag.TRIMMED | Flag.PROTECTED | Flag.ANSWER) == Flag.TRIMMED  # not a worker's probe
        if weir.groups and not flags & Flag.PROTECTED:
            assert packet[IP].tos == dscp(*classes) << 2 | NOT_ECT
        trimmed[classes] += cut
        present[classes] += cut or bool(weir.groups and not flags & Flag.PROTECTED)
    return trimmed, present


def test_the_smaller_the_magnitude_the_likelier_is_a_sum_trimmed(
    training: tuple[TrainConfig, Task], tmp_path: Path
) -> None:
    """Three times as likely as of the next magnitude, of those that may be trimmed: sums of two racks.

    Racks are joined by links of a fifth of the hosts' rate, on which a stranger of the same class sends
    bursts. Every magnitude may be lost, of more than is lost, and the switches choose.
    """
    policy = LossPolicy(budgets=((0.6,) * MAGNITUDE_CLASSES,) * LAYER_CLASSES, tensor=(1.0,) * LAYER_CLASSES)
    path = tmp_path / "leaves.pcapng"
    topology = leaf_spine(2, 1, WORKERS // 2 + 1, target="soft", qos=Qos())
    with (
        Network(topology, seed=1, link=LinkSpec(1000 * MBIT), trunk=LinkSpec(200 * MBIT)) as network,
        Trace(path) as trace,
    ):
        for leaf in ("leaf1", "leaf2"):
            trace.attach(leaf, network.link(leaf, "spine1"))
        workers = ["h1", "h2", "h4", "h5"]
        stranger, victim = network.stations["h3"], network.stations["h6"].host
        gateway = Victim(ip=victim.ip, mac=topology.switch("leaf1").aggregation.mac)
        noise = frame(Sender(ip=stranger.host.ip, mac=stranger.host.mac, victims=()), gateway, dscp(1), 0)

        def burst() -> None:
            for _ in range(24):
                stranger.send(noise)
            network.clock.after(5_000 * MICROSECOND, burst)

        burst()
        job = network.admit(workers, slots=64)
        for step in range(2):
            for worker, works in zip(job.workers, gradients(training, step, policy), strict=True):
                for work in works:
                    worker.submit(work)
        network.run(lambda: job.idle, limit=60)
        reports = [report for worker in job.workers for report in worker.reports]
        assert all((report.missing <= report.budgets).all() for report in reports)
    trimmed, present = captured(path)
    busiest = max(layer for layer, _ in trimmed if trimmed[layer, 0] == max(trimmed.values()))
    small, middle, large = (trimmed[busiest, m] / present[busiest, m] for m in range(MAGNITUDE_CLASSES))
    assert trimmed.total() > 50
    assert small > 3 * middle > 9 * large > 0
