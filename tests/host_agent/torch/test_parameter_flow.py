# SPDX-License-Identifier: Apache-2.0
"""Parameter Flow in real processes: asynchronous and stale-synchronous; servers killed, workers stopped."""

import contextlib
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weir.torch
from tests.harness.commands import WEIR, Command
from tests.harness.effort import effort
from tests.host_agent.torch.job_groups import Job
from tests.host_agent.torch.test_parameter_server import (
    OPTIMIZERS,
    backward,
    batch,
    flat,
    make_model,
    wait_for,
)
from weir.host_agent.torch.parameter_server import flow_server, worker

WORKERS, SERVERS = 2, 2
KILLS = effort(2, 50)


def loss_of(model: nn.Module) -> float:
    inputs, targets = (torch.cat(part) for part in zip(*(batch(step, 99) for step in range(30)), strict=True))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs), targets))


def train(
    rank: int, steps: int, pause_s: float, name: str, options: dict[str, Any], over: Path
) -> tuple[Tensor, float, int]:
    """Return the parameters at the end, their loss, and the greatest staleness that a step began with.

    The end is after this many steps, and when the file ``over`` is there.
    """
    model = make_model()
    if rank:
        nn.init.zeros_(model[0].weight)  # everybody begins with worker 0's
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
    staleness = 0
    with weir.torch.ParameterServer(model, optimizer, servers=SERVERS, **options) as server:
        step = 0
        while step < steps or not over.exists():
            step += 1
            (over.parent / f"{rank}").write_text(str(step))
            optimizer.zero_grad()
            backward(model, [batch(step, rank)])
            staleness = max(staleness, server.session.worker.staleness)
            server.step()
            schedule.step()
            time.sleep(pause_s)
        server.finish()
        assert "migrate_every" not in options or server.moved
    return flat(model), loss_of(model), staleness


def outcomes(
    steps: int,
    options: dict[str, Any],
    *,
    name: str = "momentum",
    pause_s: float = 0.0,
    meanwhile: Callable[[Job, Callable[[int], int]], None] = lambda job, step_of: None,
) -> tuple[list[Tensor], list[float], list[int]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Job(WORKERS, SERVERS, train, steps, pause_s, name, options, over := Path(folder) / "over") as job,
    ):

        def step_of(rank: int) -> int:
            file = over.parent / f"{rank}"
            return int(file.read_text() or 0) if file.exists() else 0

        meanwhile(job, step_of)
        over.touch()
        found = job.results()[:WORKERS]
    models, losses, staleness = zip(*found, strict=True)
    return list(models), list(losses), list(staleness)


@pytest.mark.parametrize(
    ("consistency", "name"),
    [("async", "adam"), ("ssp:2", "momentum"), *effort([], [("async", "momentum"), ("ssp:2", "adam")])],
)
def test_training_converges_and_ends_alike(consistency: str, name: str) -> None:
    options = {"consistency": consistency, "push_filter": "1e-3:sqrt", "pull_filter": "1e-3:sqrt"}
    models, losses, staleness = outcomes(effort(100, 200), options, name=name)
    assert torch.equal(models[0], models[1]), "bit for bit"
    assert max(losses) < 0.6 * loss_of(make_model())
    if consistency == "ssp:2":
        assert max(staleness) <= 2


CHOSEN: dict[str, dict[str, Any]] = {
    "dfs": {"sparsifier": "dfs", "density": 0.2, "pull_filter": "1e-3:sqrt"},
    "filter": {"push_filter": "1e-3:sqrt"},
}


@pytest.mark.parametrize(
    ("chosen", "name", "consistency"),
    [
        *(("dfs", "adamw", consistency) for consistency in ("sync", "async", *effort([], ["ssp:2"]))),
        ("filter", "adamw", "async"),
        *effort([], [("filter", "adamw", "sync"), ("filter", "adamw", "ssp:2")]),
        *effort([], [(each, "momentum", when) for each in CHOSEN for when in ("sync", "ssp:2", "async")]),
    ],
)
def test_units_move_while_methods_and_filters_choose(chosen: str, name: str, consistency: str) -> None:
    """All begins on server 0: with any consistency, method and optimizer, workers end with one model."""
    units = sum(-(-parameter.numel() // 256) for parameter in make_model().parameters())
    owner = [0] * (units - 1) + [1]
    options = {"consistency": consistency, "owner": owner, "migrate_every": 10, **CHOSEN[chosen]}
    models, losses, _ = outcomes(effort(75, 150), options, name=name)
    assert torch.equal(models[0], models[1]), "bit for bit"
    assert max(losses) < 0.7 * loss_of(make_model())


@pytest.mark.parametrize("consistency", ["ssp:3", *effort([], ["async"])])
def test_servers_that_are_killed_come_back(consistency: str) -> None:
    moments = random.Random(1)

    def kill(job: Job, _step_of: object) -> None:
        """A server that had forgotten a push would be told so by the worker that knows of it, or stop it."""
        for number in range(KILLS):
            time.sleep(moments.uniform(0.3, 1.5))
            job.kill_and_restart(WORKERS + number % SERVERS)

    options = {"consistency": consistency, "push_filter": "1e-3:sqrt", "pull_filter": "1e-3:sqrt"}
    models, losses, staleness = outcomes(100, options, pause_s=0.03, meanwhile=kill)
    assert torch.equal(models[0], models[1])
    assert max(losses) < 0.6 * loss_of(make_model())
    if consistency == "ssp:3":
        assert max(staleness) <= 3


@pytest.mark.parametrize("consistency", ["async", "ssp:3"])
def test_a_worker_that_is_stopped_is_waited_for_as_far_as_the_bound_says(consistency: str) -> None:
    def stop(job: Job, step_of: Callable[[int], int]) -> None:
        wait_for(lambda: min(step_of(0), step_of(1)) > 5)
        process = job.processes[1].pid
        os.kill(process, signal.SIGSTOP)
        wait_for(lambda: step_of(0) >= step_of(1) + (8 if consistency == "async" else 3))
        time.sleep(2.0)
        os.kill(process, signal.SIGCONT)

    models, _, staleness = outcomes(100, {"consistency": consistency}, pause_s=0.02, meanwhile=stop)
    assert torch.equal(models[0], models[1])
    if consistency == "ssp:3":
        assert max(staleness) == 3, "reached, and not exceeded"
    else:
        assert max(staleness) > 3


def train_until_alone(rank: int, running: str) -> str:
    model = make_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    server = weir.torch.ParameterServer(
        model, optimizer, consistency="async", timeout=timedelta(seconds=5 if rank else 6)
    )
    try:
        for step in range(10**6):
            optimizer.zero_grad()
            backward(model, [batch(step, rank)])
            server.step()
            Path(running, f"{rank}").touch()
    except weir.torch.GroupBrokenError as error:
        server._close(farewell=False)
        return str(error)
    return "went on"


def test_a_server_that_does_not_come_back_is_named(tmp_path: Path) -> None:
    with Job(2, 1, train_until_alone, str(tmp_path)) as job:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        job.processes[2].kill()
        for rank, said in enumerate(job.outcomes([0, 1])):
            assert f"worker {rank} has waited for {6 - rank} s for parameter server 0 to apply step " in said
            assert " (at 127.0.0.1:" in said and "silent for " in said
            assert "restart it with its state" in said


def leave_early(rank: int) -> str:
    model = make_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    server = weir.torch.ParameterServer(model, optimizer, consistency="ssp:1", silence_s=3.0)
    if rank:
        os._exit(1)
    for step in range(20):
        optimizer.zero_grad()
        backward(model, [batch(step, rank)])
        server.step()
    for refused in (server.state_dict, lambda: server.load_state_dict({})):
        with pytest.raises(RuntimeError, match="--state"):
            refused()
    server.finish()
    server.close()
    return "went on"


def test_a_dead_worker_is_taken_out() -> None:
    """Steps do not wait for it, nor does the end of the training."""
    with Job(2, 1, leave_early) as job:
        assert job.outcomes([0, 2]) == ["went on", None]


def be_quick_to_speak() -> None:
    flow_server.SILENT_S = worker.SILENCE_S = 2.0  # type: ignore[misc]


def lose_a_worker(rank: int, silence_s: float | None) -> str:
    """Make steps together, by flows: the last worker dies after a few."""
    model = make_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    units = sum(-(-parameter.numel() // 256) for parameter in model.parameters())
    server = weir.torch.ParameterServer(
        model, optimizer, owner=[0] * units, silence_s=silence_s, timeout=timedelta(seconds=10)
    )
    try:
        for step in range(10):
            if rank and step == 4:
                os._exit(1)
            optimizer.zero_grad()
            backward(model, [batch(step, rank)])
            server.step()
        server.finish()
    except weir.torch.GroupBrokenError as error:
        server._close(farewell=False)
        return str(error)
    server.close()
    return "went on"


def test_steps_that_all_make_together_wait_for_a_dead_worker_and_name_it() -> None:
    with Job(2, 1, lose_a_worker, None, first=be_quick_to_speak) as job:
        (said,) = job.outcomes([0])
        job.processes[2].kill()
    assert "worker 0 has waited for 10 s for parameter server 0 to apply step 5 " in said
    assert "it waits for worker 1 to make step 5; worker 1 has been silent since " in said


def test_they_go_on_without_one_that_was_silent_for_as_long_as_the_job_says() -> None:
    with Job(2, 1, lose_a_worker, 3.0) as job:
        assert job.outcomes([0, 2]) == ["went on", None]


def test_a_script_that_only_ends_leaves_its_servers_and_the_others_their_store(tmp_path: Path) -> None:
    """Worker 0, which holds the store, is done long before the other one, and nobody closes anything."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, torch, weir.torch\n"
        "rank = int(os.environ['RANK'])\n"
        "model = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)\n"
        "server = weir.torch.ParameterServer(model, optimizer, consistency='async')\n"
        "for _ in range(3 + 20 * rank):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(1, 4)).sum().backward()\n"
        "    server.step()\n"
        "    time.sleep(0.05)\n"
        "print(server.rank, 'is done')\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"WEIR_RENDEZVOUS": f"tcp://127.0.0.1:{port}", "WORLD_SIZE": "2"}
    with contextlib.ExitStack() as running:
        server, *ranks = (
            running.enter_context(Command(*words, environment={**environment, "RANK": str(rank)}))
            for rank, words in enumerate([(*WEIR, "server"), (script,), (script,)], start=-1)
        )
        assert [rank.said() for rank in ranks] == ["0 is done\n", "1 is done\n"]
        assert server.said() == ""
    assert [process.returncode for process in (server, *ranks)] == [0, 0, 0]
