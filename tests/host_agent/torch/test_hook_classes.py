# SPDX-License-Identifier: Apache-2.0
"""What the hook writes into its packets: the bucket's layer class in every round, the blocks' magnitudes."""

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.host_agent.torch.worlds import World
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.transport.codec import Packet
from weir.pcap.frames import read_frames
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES, Flag, Op, PacketType

POLICY = LossPolicy(budgets=((0.5,) * MAGNITUDE_CLASSES,) * LAYER_CLASSES, tensor=(1.0,) * LAYER_CLASSES)


def exchanged(order: Sequence[int], policy: LossPolicy | float) -> None:
    """One exchange for each layer, in an order of our own."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(LAYER_CLASSES)))
    model = DistributedDataParallel(layers)
    state = weir.torch.HookState(model, sparsifier="dense", encoding="blocks:32", loss_policy=policy)
    named = list(layers.named_parameters())
    for number, index in enumerate(order):
        name, parameter = named[index]
        layout = BucketLayout.of(number, [name], [parameter], 256)
        bucket = torch.randn(parameter.numel(), generator=torch.Generator().manual_seed(index))
        bucket *= torch.arange(1, parameter.numel() + 1)  # blocks of every magnitude
        last = number == len(order) - 1
        state.group.submit(functools.partial(state.average_bucket, layout, bucket, last)).wait()


def contributions(tmp_path: Path, order: Sequence[int], policy: LossPolicy | float) -> list[Packet]:
    """Return what worker 0 sent, in order."""
    capture = tmp_path / "capture.pcap"
    with (
        weir.local_cluster(workers=2, pcap=capture) as cluster,
        World(2, cluster.environment) as world,
    ):
        world.run(exchanged, order, policy)
    packets = [seen.packet for seen in read_frames(capture) if seen.packet is not None]
    return [p for p in packets if p.type is PacketType.CONTRIBUTION and p.worker == 0]


def test_every_round_of_a_bucket_carries_its_class_and_every_block_its_magnitude(tmp_path: Path) -> None:
    order = [3, 0, 2, 1]
    sent = contributions(tmp_path, order, POLICY)
    for op in (Op.MAX, Op.ADD):
        layers = [p.layer for p in sent if p.op is op and p.groups]
        found = [layer for i, layer in enumerate(layers) if i == 0 or layers[i - 1] != layer]
        tail = found[-len(order) :]  # before: what DDP exchanged on its own when it was made
        assert tail == order
    sums = [p for p in sent if p.op is Op.ADD and p.groups and p.block_log2 == 5]
    assert {p.magnitude for p in sums} == set(range(MAGNITUDE_CLASSES))
    assert any(not p.flags & Flag.PROTECTED for p in sums)
    assert all(p.flags & Flag.PROTECTED for p in sent if p.op is not Op.ADD and p.groups)


def test_without_a_budget_every_packet_is_protected(tmp_path: Path) -> None:
    sent = contributions(tmp_path, [2], 0.0)
    assert [p.layer for p in sent if p.op is Op.ADD and p.groups][-1] == 2
    assert all(p.flags & Flag.PROTECTED for p in sent if p.groups)
