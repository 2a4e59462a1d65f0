# SPDX-License-Identifier: Apache-2.0
"""DFS with any of its parts left out: nothing is lost, all know the same, and a restart changes no bit."""

from functools import partial
from itertools import chain, combinations

import pytest
import torch

from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import Exchanged, GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier
from weir.host_agent.compression.sparsifiers.dfs import PARTS

LEFT_OUT = list(chain.from_iterable(combinations(PARTS, count) for count in range(len(PARTS) + 1)))


class Job:
    """Workers with DFS, each with its own gradients."""

    def __init__(self, workers: int, leave_out: tuple[str, ...], lane_bits: LaneBits | None) -> None:
        module = torch.nn.Sequential(torch.nn.Linear(60, 90), torch.nn.Linear(90, 7))
        named = list(module.named_parameters())
        self.layout = BucketLayout.of(0, [name for name, _ in named], [p for _, p in named], SCALE_BLOCK)
        self.group, self.ranks = InMemoryGroup(workers), list[GradientExchange]()
        for communicator in self.group.communicators:
            method = create_sparsifier("dfs", SparsifierOptions(density=0.02, leave_out=leave_out))
            self.ranks.append(GradientExchange(method, LossPolicy.of(0.0), lane_bits=lane_bits))
            self.ranks[-1].join(module, communicator, 16)

    def gradients(self, step: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        return [torch.randn(self.layout.elements, generator=generator) ** 3 for _ in self.ranks]

    def step(self, number: int) -> list[Exchanged]:
        buckets = self.gradients(number)
        work = [
            partial(rank.exchange, self.layout, bucket)
            for rank, bucket in zip(self.ranks, buckets, strict=True)
        ]
        done = self.group.run(work)
        assert all(torch.equal(bucket, buckets[0]) for bucket in buckets), "replicas are identical"
        assert all(rank.shared_state() == self.ranks[0].shared_state() for rank in self.ranks)
        return done

    def compensated(self, number: int) -> torch.Tensor:
        """Return the sum of what all workers have before a step; of number -1: of their residuals alone."""
        buckets = (
            self.gradients(number) if number >= 0 else [torch.zeros(self.layout.elements)] * len(self.ranks)
        )
        own = [r.gradients.compensated(self.layout, b) for r, b in zip(self.ranks, buckets, strict=True)]
        return torch.stack(own).double().sum(dim=0)


@pytest.mark.parametrize("lane_bits", [None, 32])
@pytest.mark.parametrize("leave_out", LEFT_OUT)
def test_nothing_is_lost_and_a_restart_changes_no_bit(
    leave_out: tuple[str, ...], lane_bits: LaneBits | None
) -> None:
    job = Job(3, leave_out, lane_bits)
    for number in range(4):
        before = job.compensated(number)
        total = job.step(number)[0].total.double()
        assert torch.allclose(before, total + job.compensated(-1), rtol=0, atol=1e-5)
    resumed, smaller = Job(3, leave_out, lane_bits), Job(2, leave_out, lane_bits)
    for again in (resumed, smaller):
        for rank, saved in zip(again.ranks, job.ranks, strict=False):
            rank.load_state_dict(saved.state_dict())
    for number in range(4, 7):
        expected, found = job.step(number)[0].total, resumed.step(number)[0].total
        assert torch.equal(expected, found)
        smaller.step(number)
