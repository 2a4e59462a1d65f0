# SPDX-License-Identifier: Apache-2.0
"""Bytes on the links: one gradient reaches a server in a step, one copy of its changes leaves it."""

from functools import partial

import pytest
import torch

import weir
import weir.torch
from tests.harness.effort import effort
from tests.host_agent.torch.job_groups import Job
from weir.host_agent.torch import job_connection
from weir.host_agent.transport.slot_transport import TransportConfig
from weir.network import NetworkSpec, parse_shape
from weir.wire.definition import COLUMN, SLOT_LANES, WEIR, WIDE_LANES

ROWS, COLUMNS, STEPS = 512, 300, 4
ELEMENTS = ROWS * COLUMNS
HEADERS = 42 + WEIR.size + COLUMN.size  # of a packet with one column


def full_packets(numbers: int, lanes: int) -> int:
    """Return the bytes of this many numbers in full packets of this many lanes."""
    return -(-numbers // lanes) * (HEADERS + 4 * lanes)


MODEL = full_packets(ELEMENTS, SLOT_LANES)


def never_send_again() -> None:
    """Wait for ever for what was sent. Nothing is lost here, but where processes wait for a processor, timers
    would send packets again, and this is about how many there must be.
    """
    patient = partial(TransportConfig, initial_rto=1000.0, min_rto=1000.0, max_rto=1000.0)
    setattr(job_connection, "TransportConfig", patient)  # noqa: B010


def train(rank: int, steps: int, servers: int) -> tuple[int, int, int]:
    """Return the bytes that a worker has sent to the switch and got from it, and how many packets it has sent
    again.
    """
    torch.manual_seed(1)
    model = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with weir.torch.ParameterServer(model, optimizer, servers=servers) as server:
        for step in range(steps):
            generator = torch.Generator().manual_seed(100 * step + rank)
            model.weight.grad = torch.randn(ROWS, COLUMNS, generator=generator)
            server.step()
        stats = server.connection.stats
        return stats.bytes_up, stats.bytes_down, stats.retransmissions


@pytest.mark.parametrize(
    ("workers", "servers", "shape", "lanes"),
    [
        (4, 2, "single", WIDE_LANES),
        (5, 1, "leaf-spine-2x1", SLOT_LANES),
        *effort([], [(2, 1, "single", WIDE_LANES)]),
    ],
)
def test_one_gradient_in_and_one_copy_of_the_changes_out(
    workers: int, servers: int, shape: str, lanes: int
) -> None:
    """lanes: of packets, which are wide where one switch joins all members by memory."""
    model = full_packets(ELEMENTS, lanes)
    gradient = model + full_packets(ELEMENTS // SLOT_LANES, SLOT_LANES)  # a scale for each 256 values
    aside = -(-ELEMENTS // lanes) * HEADERS  # what advances the slots of members without lanes
    network = NetworkSpec(shape=parse_shape(shape))
    counted = []
    with weir.local_cluster(workers=workers + servers, network=network) as cluster:
        for steps in (1, 1 + STEPS):
            with Job(
                workers,
                servers,
                train,
                steps,
                servers,
                environment=cluster.environment,
                first=never_send_again,
            ) as job:
                found = job.results()
            assert not any(again for *_, again in found)
            counted.append(found)
    per_step = [
        ((up - up_before) / STEPS, (down - down_before) / STEPS)
        for (up_before, down_before, _), (up, down, _) in zip(*counted, strict=True)
    ]
    share, others = 1 / servers, 1 - 1 / servers
    for sent, got in per_step[workers:]:
        expected = share * gradient + others * model + aside  # the other servers' changes come here, too
        assert got == pytest.approx(expected, rel=0.05), "not one from every worker"
        assert sent == pytest.approx(share * model + (1 + others) * aside, rel=0.05), (
            "not one to every worker"
        )
    for up, down in per_step[:workers]:
        assert up == pytest.approx(gradient + aside, rel=0.05)
        assert down == pytest.approx(model + aside, rel=0.05)


def train_scattered(rank: int, servers: int) -> tuple[float, bytes]:
    """Return bytes that a worker gets in a step, and the model."""
    torch.manual_seed(1)
    model = torch.nn.Linear(COLUMNS, ROWS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"sparsifier": "topk", "density": 0.005, "bucket_bytes": 4 * ELEMENTS // 2}
    with weir.torch.ParameterServer(model, optimizer, servers=servers, **options) as server:
        for step in range(3 + STEPS):
            if step == 3:
                before = server.connection.stats.bytes_down
            generator = torch.Generator().manual_seed(100 * step + rank)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            server.step()
        found = (server.connection.stats.bytes_down - before) / STEPS
        assert torch.equal(server.master[: model.weight.numel()], model.weight.detach().flatten())
        return found, server.master.numpy().tobytes()


@pytest.mark.parametrize("servers", effort([2], [1, 2]))
def test_scattered_changes_come_down_by_mask(servers: int) -> None:
    workers = 2
    with (
        weir.local_cluster(workers=workers + servers) as cluster,
        Job(workers, servers, train_scattered, servers, environment=cluster.environment) as job,
    ):
        (got, model), (_, other), *_ = job.results()
    assert model == other
    assert got < 0.25 * MODEL, "in whole blocks nearly all of the model comes down"
