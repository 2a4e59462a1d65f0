# SPDX-License-Identifier: Apache-2.0
"""Gradient steps in packed lanes: what was not delivered, rounding and losses alike, is in the residuals."""

import functools

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.host_agent.models import Parts
from weir.host_agent.collectives.in_memory import InMemoryGroup
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.compression.exchange import ExchangeResult, GradientExchange
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import SparsifierOptions, create_sparsifier, sparsifier_names
from weir.host_agent.transport.service_class import ServiceClass

SIZES = 5000, 64, 1, 30_000, 300
STEPS = 4


class Job:
    """The workers of a job in memory, and what each of them has given and still owes."""

    def __init__(
        self,
        name: str,
        bits: LaneBits,
        workers: int,
        policy: float = 0.0,
        encoding: str | None = None,
        group: InMemoryGroup | None = None,
    ) -> None:
        self.group = group or InMemoryGroup(workers)
        self.module = Parts(SIZES)
        named = list(self.module.named_parameters())
        self.layout = BucketLayout.of(0, [n for n, _ in named], [p for _, p in named], SCALE_BLOCK)
        self.workers = []
        for communicator in self.group.communicators:
            worker = GradientExchange(
                create_sparsifier(name, SparsifierOptions(density=0.05)),
                LossPolicy.of(policy),
                encoding=encoding,
                lane_bits=bits,
            )
            worker.join(self.module, communicator, slots=16)
            self.workers.append(worker)
        self.given = np.zeros((workers, self.layout.elements))

    def step(self, number: int) -> tuple[list[ExchangeResult], list[torch.Tensor]]:
        """Make a step with random gradients; return how, and every worker's average."""
        buckets = []
        for rank in range(len(self.workers)):
            generator = torch.Generator().manual_seed(1000 * number + rank)
            noise = torch.randn(self.layout.elements, generator=generator)
            buckets.append(noise * torch.randn(self.layout.elements, generator=generator) ** 2)
            self.given[rank] += buckets[-1].double().numpy() / len(self.workers)
        done = self.group.run(
            [
                functools.partial(w.exchange_bucket, self.layout, b)
                for w, b in zip(self.workers, buckets, strict=True)
            ]
        )
        return done, buckets

    def owed(self) -> npt.NDArray[np.float64]:
        """Return the sum of all workers' residuals."""
        total = np.zeros(self.layout.elements)
        for worker in self.workers:
            feedback = worker.gradients.feedback
            assert feedback is not None
            for segment in self.layout:
                residual = feedback.residual(segment.name)
                assert residual is not None
                total[segment.in_bucket] += residual.double().numpy()
        return total


@pytest.mark.parametrize("name", sparsifier_names())
@pytest.mark.parametrize(("bits", "workers"), [(16, 4), (8, 4), (8, 12)])
def test_what_was_given_is_delivered_or_owed(name: str, bits: LaneBits, workers: int) -> None:
    job = Job(name, bits, workers)
    delivered = np.zeros(job.layout.elements)
    for number in range(STEPS):
        _, buckets = job.step(number)
        for other in buckets[1:]:
            assert torch.equal(other, buckets[0])
        delivered += buckets[0].double().numpy()
    np.testing.assert_allclose(delivered + job.owed(), job.given.sum(axis=0), atol=2e-5)


@pytest.mark.parametrize(("bits", "fields"), [(16, 2), (8, 4)])
def test_dense_gradients_take_a_lane_for_several_values(bits: LaneBits, fields: int) -> None:
    job = Job("dense", bits, 4)
    done, _ = job.step(0)
    assert done[0].report.lanes * fields == job.layout.length
    assert done[0].report.blocks_sent == done[0].blocks == -(-done[0].report.lanes // 256)


def test_blocks_without_a_gradient_are_not_sent_for_what_was_rounded_off() -> None:
    job = Job("dense", 8, 4)
    job.step(0)
    sparse = [torch.zeros(job.layout.elements) for _ in job.workers]
    for rank, bucket in enumerate(sparse):
        bucket[1024 * rank] = 1.0
    job.given += np.stack([bucket.double().numpy() for bucket in sparse]) / 4
    owed = job.owed()
    done = job.group.run(
        [
            functools.partial(w.exchange_bucket, job.layout, b)
            for w, b in zip(job.workers, sparse, strict=True)
        ]
    )
    assert [one.report.blocks_sent for one in done] == [1] * 4
    assert np.count_nonzero(job.owed() != owed) <= 4 * 256


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("encoding", ["dense", "blocks:128", "auto"])
def test_lost_blocks_are_owed(bits: LaneBits, encoding: str) -> None:
    def loss(rank: int, service: ServiceClass, blocks: int) -> npt.NDArray[np.bool_]:
        lost[rank] += 1
        return np.random.default_rng(100 * rank + lost[rank]).random(blocks) < 0.2

    lost = [0] * 4
    name = "dense" if encoding == "dense" else "topk-block"
    job = Job(name, bits, 4, policy=0.3, encoding=encoding, group=InMemoryGroup(4, loss))
    delivered = np.zeros(job.layout.elements)
    returned = 0
    for number in range(STEPS):
        done, buckets = job.step(number)
        delivered += buckets[0].double().numpy()
        returned += sum(one.report.given_back.blocks.size for one in done)
    assert returned
    np.testing.assert_allclose(delivered + job.owed(), job.given.sum(axis=0), atol=2e-5)


@pytest.mark.parametrize("bits", [16, 8])
def test_budgets_are_of_lanes_that_are_sent(bits: LaneBits) -> None:
    job = Job("dense", bits, 4, policy=0.3)
    done, _ = job.step(0)
    report = done[0].report
    assert 0.1 * report.entered.lanes < report.budgets.sum() <= report.entered.lanes


@pytest.mark.parametrize(
    ("bits", "workers", "encoding", "policy", "message"),
    [
        (8, 4, "blocks:64", 0.0, "blocks:64: with 4 values to a lane, blocks have 128 or 256 values"),
        (16, 4, "blocks:32", 0.0, "with 2 values to a lane, blocks have 64 or 128 or 256 values"),
        (8, 12, "blocks:128", 0.0, "with 3 values to a lane, blocks have 256 values"),
        (
            8,
            12,
            None,
            0.1,
            "a lane has three values, which cannot be combined with a loss budget; choose 16 or 32",
        ),
        (8, 32, None, 0.0, None),
    ],
)
def test_what_lanes_do_not_go_with_is_refused(
    bits: LaneBits, workers: int, encoding: str | None, policy: float, message: str | None
) -> None:
    if message is None:
        Job("topk-block", bits, workers, policy, encoding)
        return
    with pytest.raises(ValueError, match=message):
        Job("topk-block", bits, workers, policy, encoding)
