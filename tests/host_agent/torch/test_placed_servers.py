# SPDX-License-Identifier: Apache-2.0
"""Servers of a placement in real processes: exact parameters, also when servers die while units migrate."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.harness.effort import effort
from tests.host_agent.torch.job_groups import Job
from weir.host_agent.parameter_server.messages import Kind
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.torch.parameter_server.job_group import open_store
from weir.host_agent.torch.parameter_server.serve import make_server
from weir.torch import ParameterServer

MEMBERS, ROWS, WIDTH, STEPS = 3, 600, 4, 24
"""Of MEMBERS machines each has a worker and a server."""


def rows_of(step: int, rank: int) -> np.ndarray:
    """Return the rows of a batch: three batches in turn; from the middle on each worker uses another's."""
    third = ROWS // MEMBERS
    owner = (rank + (step >= STEPS // 2)) % MEMBERS
    rng = np.random.default_rng((step % 3, owner))
    return np.unique(np.concatenate([rng.integers(third * owner, third * (owner + 1), 60), [0, 1, 2]]))


def gradient_of(step: int, rank: int, rows: np.ndarray) -> torch.Tensor:
    """Return whole numbers, multiples of the number of workers: their average is exact."""
    rng = np.random.default_rng((step, rank))
    return torch.from_numpy(MEMBERS * rng.integers(-9, 9, (rows.size, WIDTH)).astype(np.float32))


def expected() -> torch.Tensor:
    """Return the table as one process has it at the end."""
    table = torch.zeros(ROWS, WIDTH)
    for step in range(STEPS):
        for rank in range(MEMBERS):
            rows = rows_of(step, rank)
            table[torch.from_numpy(rows)] -= gradient_of(step, rank, rows) / MEMBERS
    return table


def train(rank: int, pause_s: float, options: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Return the embedding at the end, and how many units have moved."""
    model = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with ParameterServer(
        model,
        optimizer,
        servers=MEMBERS,
        rank=rank,
        workers=MEMBERS,
        timeout=timedelta(seconds=120),
        **options,
    ) as servers:
        for step in range(STEPS):
            rows = rows_of(step, rank)
            used = torch.tensor(rows)
            servers.pull(1 + step % 3 + 3 * (step >= STEPS // 2), {"weight": used})
            assert used.untyped_storage().resizable()
            values = gradient_of(step, rank, rows)
            model.weight.grad = torch.sparse_coo_tensor(rows[None], values, model.weight.shape)
            servers.step()
            time.sleep(pause_s)
        servers.finish()
        return servers.master.view(ROWS, WIDTH).clone(), servers.moved


def serve(index: int, folder: Path, dies: str) -> int:
    """Be a server; return the words that it handed over. dies: by its own hand, once."""
    mark = folder / f"died-{dies}-{index}"

    def die() -> None:
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    if dies == "giving":
        _before(ServerMachine, "_adopt", lambda *_: die())
    elif dies == "given":
        _after(ServerMachine, "handle", lambda _server, message: message.kind is Kind.HANDOVER_ACK and die())
    elif dies == "taking":
        _before(ServerMachine, "handle", lambda _server, message: message.kind is Kind.HANDOVER and die())
    elif dies == "taken":
        _after(ServerMachine, "handle", lambda _server, message: message.kind is Kind.HANDOVER and die())
    server = make_server(open_store(None, leads=False), index, state=folder / f"state-{index}")
    server.run()
    return server.server.holdings.handed_over


def _before(kind: type, name: str, do: Callable[..., object]) -> None:
    original = getattr(kind, name)

    def changed(self: object, *args: object) -> object:
        do(self, *args)
        return original(self, *args)

    setattr(kind, name, changed)


def _after(kind: type, name: str, do: Callable[..., object]) -> None:
    original = getattr(kind, name)

    def changed(self: object, *args: object) -> object:
        found = original(self, *args)
        do(self, *args)
        return found

    setattr(kind, name, changed)


def member(rank: int, folder: Path, dies: str, pause_s: float, options: dict[str, Any]) -> Any:
    if rank < MEMBERS:
        return train(rank, pause_s, options)
    return serve(rank - MEMBERS, folder, dies if rank == MEMBERS + 1 else "")


def run(folder: Path, dies: str, meanwhile: Callable[[Job], None], **options: Any) -> tuple[int, int]:
    """Train, and check the parameters at the end; return units moved, and words handed over by servers."""
    with Job(2 * MEMBERS, 0, member, folder, dies, 0.02 if dies else 0.0, options) as job:
        meanwhile(job)
        *_, moved = (results := job.results())[0]
    for table, units in results[:MEMBERS]:
        assert torch.equal(table, expected())
        assert units == moved
    return moved, sum(results[MEMBERS:])


def test_sparse_training_is_exact_and_what_stays_stays(tmp_path: Path) -> None:
    assert run(tmp_path, "", lambda job: None) == (0, 0)


def test_rows_migrate_to_the_worker_that_uses_them(tmp_path: Path) -> None:
    moved, words = run(tmp_path, "", lambda job: None, migrate_every=4)
    assert moved > 50 and words == moved * WIDTH


@pytest.mark.parametrize("dies", ["giving", "taken", *effort([], ["given", "taking"])])
def test_a_server_killed_while_units_migrate_comes_back_and_nothing_is_lost(
    tmp_path: Path, dies: str
) -> None:
    mark = tmp_path / f"died-{dies}-1"

    def restart(job: Job) -> None:
        end = time.monotonic() + 60
        while not mark.exists():
            assert time.monotonic() < end, "no migration"
            time.sleep(0.02)
        job.kill_and_restart(MEMBERS + 1)

    moved, _ = run(tmp_path, dies, restart, migrate_every=4)
    assert moved > 50


def blocks(rank: int, steps: int, options: dict[str, Any]) -> tuple[bytes, int, list[float]]:
    """Return the model, units moved, and the losses of the steps."""
    torch.manual_seed(1 + rank)
    model = nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    with ParameterServer(model, optimizer, servers=2, rank=rank, workers=2, **options) as servers:
        generator = torch.Generator().manual_seed(rank)
        for _ in range(steps):
            inputs = torch.randn(64, 40, generator=generator)
            targets = (inputs[:, 0] + inputs[:, 1] > 0).long()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            servers.step()
            losses.append(float(loss.detach()))
        return servers.master.numpy().tobytes(), servers.moved, losses


def test_blocks_of_a_network_move_between_servers_by_their_compressed_traffic(tmp_path: Path) -> None:
    """All blocks begin on server 0: loads are evened, and every worker has the same model at every step."""
    units = -(-40 * 300 // 256) + 2 + 3 + 1
    options = {"owner": [0] * (units - 1) + [1], "migrate_every": 5, "push_filter": "1e-4:lr"}

    with Job(4, 0, _either, tmp_path, options) as job:
        (one, moved, losses), (other, *_), *_ = job.results()
    assert one == other
    assert moved >= units // 3
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])


def _either(rank: int, folder: Path, options: dict[str, Any]) -> Any:
    return blocks(rank, 60, options) if rank < 2 else serve(rank - 2, folder, "")
