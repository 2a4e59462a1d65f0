# SPDX-License-Identifier: Apache-2.0
"""DFS with every option, and any of its parts left out.

Nothing is lost, all know the same, a restart changes no bit, and a group of another size goes on.
"""

from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import ExchangeResult, GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier
from weir.host_agent.compression.sparsifiers.dfs import PARTS
from weir.host_agent.transport.service_class import ServiceClass

LEFT_OUT = list(chain.from_iterable(combinations(PARTS, count) for count in range(len(PARTS) + 1)))


@dataclass(frozen=True)
class How:
    """Options of DFS, and gradients: scattered, or of a few whole rows of 64.

    lost: share of the blocks that may be lost, and is.
    """

    leave_out: tuple[str, ...] = ()
    lane_bits: LaneBits | None = None
    density: float = 0.05
    energy: float | None = None
    rows: bool = False
    lost: float = 0.0


class Job:
    """Workers with DFS, each with its own gradients."""

    def __init__(self, workers: int, how: How) -> None:
        module = torch.nn.Sequential(torch.nn.Linear(64, 90), torch.nn.Linear(90, 7))
        named = list(module.named_parameters())
        self.layout = BucketLayout.of(0, [name for name, _ in named], [p for _, p in named], SCALE_BLOCK)
        self.how, self.ranks = how, list[GradientExchange]()
        self.group = InMemoryGroup(workers, loss=self._loss if how.lost else None)
        options = SparsifierOptions(density=how.density, leave_out=how.leave_out, energy=how.energy)
        for communicator in self.group.communicators:
            method = create_sparsifier("dfs", options)
            policy = LossPolicy.of(how.lost)
            self.ranks.append(GradientExchange(method, policy, lane_bits=how.lane_bits))
            self.ranks[-1].join(module, communicator, 16)

    def _loss(self, rank: int, service: ServiceClass, blocks: int) -> npt.NDArray[np.bool_]:
        """Return which blocks are lost: of every rank others, the same in every run."""
        return (np.arange(blocks) + 7 * rank) % round(1 / self.how.lost) == 3

    def gradients(self, step: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        found = [torch.randn(self.layout.elements, generator=generator) ** 3 for _ in self.ranks]
        if self.how.rows:
            used = (torch.rand(-(-self.layout.elements // 64), generator=generator) < 0.04).float()
            found = [one * used.repeat_interleave(64)[: one.numel()] for one in found]
        return found

    def step(self, number: int) -> list[ExchangeResult]:
        """Make a step, in which what all have is what is delivered and what is kept."""
        before, buckets = self.compensated(number), self.gradients(number)
        work = [
            partial(rank.exchange_bucket, self.layout, bucket)
            for rank, bucket in zip(self.ranks, buckets, strict=True)
        ]
        done = self.group.run(work)
        assert all(torch.equal(bucket, buckets[0]) for bucket in buckets), "replicas are identical"
        assert all(rank.shared_state() == self.ranks[0].shared_state() for rank in self.ranks)
        assert torch.allclose(before, done[0].total.double() + self.compensated(-1), rtol=0, atol=1e-5)
        return done

    def compensated(self, number: int) -> torch.Tensor:
        """Return the sum of what all workers have before a step; of number -1: of their residuals alone."""
        buckets = (
            self.gradients(number) if number >= 0 else [torch.zeros(self.layout.elements)] * len(self.ranks)
        )
        own = [r.gradients.compensated(self.layout, b) for r, b in zip(self.ranks, buckets, strict=True)]
        return torch.stack(own).double().sum(dim=0)

    def resumed(self, workers: int) -> "Job":
        """Return a job of this many workers that goes on where this one is."""
        again = Job(workers, self.how)
        for number, rank in enumerate(again.ranks):
            if number < len(self.ranks):
                rank.load_state_dict(self.ranks[number].state_dict())
            else:  # one that joins has no residuals
                rank.load_shared_state(self.ranks[0].shared_state())
        return again


@pytest.mark.parametrize("leave_out", LEFT_OUT)
@given(
    lane_bits=st.sampled_from([None, 32, 16]),
    density=st.sampled_from([0.01, 0.05, 0.6]),
    energy=st.sampled_from([None, None, 0.5]),
    rows=st.booleans(),
    lost=st.sampled_from([0.0, 0.0, 0.1]),
    workers=st.integers(1, 4),
    others=st.integers(1, 4),
)
@settings(max_examples=examples(6))
def test_nothing_is_lost_and_a_restart_changes_no_bit(
    leave_out: tuple[str, ...],
    lane_bits: LaneBits | None,
    density: float,
    energy: float | None,
    rows: bool,
    lost: float,
    workers: int,
    others: int,
) -> None:
    job = Job(workers, How(leave_out, lane_bits, density, energy, rows, lost))
    for number in range(5):  # the last one is a probe
        job.step(number)
    same, other = job.resumed(workers), job.resumed(others)
    for number in range(5, 8):
        assert torch.equal(job.step(number)[0].total, same.step(number)[0].total)
        assert job.ranks[0].shared_state() == same.ranks[0].shared_state()
        other.step(number)


def test_blocks_become_rows_and_nothing_is_lost() -> None:
    job = Job(3, How(density=0.6, rows=True))
    for number in range(5):
        job.step(number)
    again = job.resumed(3)
    sent = job.step(5)[0]
    assert sent.selection.plan.encodings["0.weight"].mask_block == 64
    resent = again.step(5)[0]
    assert resent.selection.plan.encodings == sent.selection.plan.encodings
    assert torch.equal(sent.total, resent.total)
