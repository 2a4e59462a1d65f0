# SPDX-License-Identifier: Apache-2.0
"""Synchronous training with parameter servers, in real processes, beside the same training in this one."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import weir
import weir.torch
from tests.harness.effort import effort
from tests.harness.ports import free_port, udp_ports
from tests.host_agent.torch.job_groups import Job
from weir.host_agent.collectives.packing import LaneBits
from weir.hub import Hub

WORKERS, SERVERS, BATCH = 3, 2, 8
HOSTS = WORKERS + SERVERS

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 30), nn.Tanh(), nn.Linear(30, 5))


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(BATCH, 20, generator=generator)
    return inputs, (inputs[:, :5] * 3).argmax(dim=1)


def backward(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    inputs, targets = (torch.cat(part) for part in zip(*batches, strict=True))
    nn.functional.cross_entropy(model(inputs), targets).backward()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def locally(name: str, steps: int) -> Tensor:
    """Return the parameters after training with the batches of all workers put together."""
    model = make_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, [batch(step, rank) for rank in range(WORKERS)])
        optimizer.step()
        schedule.step()
    return flat(model)


def train(rank: int, name: str, steps: int, options: dict[str, Any]) -> Tensor:
    model = make_model()
    if rank:
        torch.nn.init.zeros_(model[0].weight)  # everybody begins with worker 0's
    optimizer = OPTIMIZERS[name](model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    with weir.torch.ParameterServer(model, optimizer, servers=SERVERS, **options) as server:
        for step in range(steps):
            optimizer.zero_grad()
            backward(model, [batch(step, rank)])
            server.step()
            schedule.step()
    return flat(model)


@pytest.mark.parametrize("name", effort(["momentum", "adamw"], list(OPTIMIZERS)))
def test_training_is_local_training_on_all_batches(cluster: weir.LocalCluster, name: str) -> None:
    steps = 12
    with Job(
        WORKERS, SERVERS, train, name, steps, {"bucket_bytes": 4096}, environment=cluster.environment
    ) as job:
        *workers, _, _ = job.results()
    assert all(torch.equal(workers[0], other) for other in workers), "bit for bit"
    expected = locally(name, steps)
    assert not torch.equal(expected, flat(make_model()))
    # Sums are off by 2^-27 of the largest value around them; Adam divides by their size.
    torch.testing.assert_close(workers[0], expected, rtol=1e-4, atol=1e-4 if "adam" in name else 1e-6)


def test_servers_and_workers_may_be_anywhere_around_a_hub() -> None:
    hub = Hub(HOSTS, listen=f"127.0.0.1:{free_port()}", udp=udp_ports(HOSTS))
    hub.start()
    try:
        with Job(
            WORKERS,
            SERVERS,
            train,
            "momentum",
            4,
            {},
            environment=lambda rank: {**hub.environment(rank), "WEIR_LINK": "ip"},
        ) as job:
            *workers, _, _ = job.results()
    finally:
        hub.stop()
    assert all(torch.equal(workers[0], other) for other in workers)
    torch.testing.assert_close(workers[0], locally("momentum", 4), rtol=1e-4, atol=1e-6)


def train_overlapped(rank: int, overlap: bool) -> tuple[list[int], Tensor, list[str]]:
    """Return which buckets went early, the parameters, and what was refused."""
    model = make_model()
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    early, refused = [], []
    with weir.torch.ParameterServer(
        model, optimizer, servers=SERVERS, bucket_bytes=4096, overlap=overlap
    ) as server:
        for step in range(4):
            optimizer.zero_grad()
            with server.no_sync():
                backward(model, [batch(2 * step, rank)])
            backward(model, [batch(2 * step + 1, rank)])
            server.step()
            early.append(server.early)
        trained = flat(model)
        if overlap:
            optimizer.zero_grad()
            backward(model, [batch(0, rank)])
            try:
                backward(model, [batch(1, rank)])
            except RuntimeError as error:
                refused.append(str(error))
            model[0].bias.grad.mul_(2)
            try:
                server.step()
            except RuntimeError as error:
                refused.append(str(error))
            server.connection.close()
    return early, trained, refused


def test_pushes_go_while_backward_runs_and_change_nothing(cluster: weir.LocalCluster) -> None:
    found = {}
    for overlap in (False, True):
        with Job(WORKERS, SERVERS, train_overlapped, overlap, environment=cluster.environment) as job:
            found[overlap] = job.outcomes(range(WORKERS))
    for (early, model, refused), (none, expected, _) in zip(found[True], found[False], strict=True):
        assert torch.equal(model, expected)
        assert min(early) > 1
        assert none == [0, 0, 0, 0]
        assert "no_sync()" in refused[0]
        assert "changed after backward" in refused[1]


def train_dense(rank: int, bucket_bytes: int, zeros: bool) -> tuple[Tensor, int]:
    """Return the parameters, and how many packets a worker sent."""
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(128, 130) for _ in range(16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with weir.torch.ParameterServer(model, optimizer, servers=SERVERS, bucket_bytes=bucket_bytes) as server:
        before = server.connection.stats
        for step in range(2):
            generator = torch.Generator().manual_seed(100 * step + rank)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
                if zeros and rank == 1 and parameter.dim() == 2:
                    parameter.grad[:26] = 0
            server.step()
        return flat(model), (server.connection.stats - before).rounds


@pytest.mark.parametrize("zeros", [False, True])
def test_dense_steps_take_wide_packets_and_keep_their_bits(cluster: weir.LocalCluster, zeros: bool) -> None:
    """Rounds of small buckets are too short for them; zeros of one worker are enough to keep others small."""
    found = []
    for bucket_bytes in (2**16, 2**19):
        with Job(WORKERS, SERVERS, train_dense, bucket_bytes, zeros, environment=cluster.environment) as job:
            *workers, _, _ = job.results()
        assert all(torch.equal(workers[0][0], model) for model, _ in workers)
        found.append(workers[0])
    (narrow, many), (wide, few) = found
    assert torch.equal(narrow, wide)
    assert (few < 0.5 * many) is not zeros


ROWS, COLUMNS, THRESHOLD = 40, 300, 0.01


def train_filtered(rank: int, options: dict[str, Any]) -> tuple[Tensor, Tensor, float]:
    """Return the parameters before and after ``finish``, and the share that the last step pushed.

    Gradients do not depend on the model.
    """
    torch.manual_seed(1)
    model = nn.Linear(COLUMNS, ROWS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with weir.torch.ParameterServer(model, optimizer, servers=SERVERS, **options) as server:
        for step in range(6):
            generator = torch.Generator().manual_seed(100 * step + rank)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator) ** 3 / 50
            server.step()
        before = flat(model)
        server.finish()
        assert server.last_step is not None
        return before, flat(model), server.last_step.sent_elements / server.last_step.elements


def test_what_filters_hold_back_is_late_and_bounded(cluster: weir.LocalCluster) -> None:
    found: dict[str, Any] = {}
    for name, options in (
        ("none", {}),
        ("pull", {"pull_filter": str(THRESHOLD)}),
        ("push", {"push_filter": f"{THRESHOLD}:constant"}),
    ):
        with Job(WORKERS, SERVERS, train_filtered, options, environment=cluster.environment) as job:
            *workers, _, _ = job.results()
        found[name] = workers[0]
        for other in workers[1:]:
            assert torch.equal(workers[0][0], other[0])
            assert torch.equal(workers[0][1], other[1])
    plain, _, everything = found["none"]
    behind, finished, _ = found["pull"]
    lag = (behind - plain).abs()
    assert 0.5 * THRESHOLD < lag.max() <= THRESHOLD
    assert torch.equal(finished, plain), "bit for bit, when nothing waits any more"
    pushed, _, share = found["push"]
    assert 0.2 * THRESHOLD < (pushed - plain).abs().max() < 1.01 * THRESHOLD
    assert share < 0.2 < everything


def test_a_filter_and_a_method_that_both_choose_are_refused() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="use method dense"):
        weir.torch.ParameterServer(model, optimizer, sparsifier="topk", push_filter="0.1", rank=0, workers=1)


def train_sparsely(rank: int, name: str, bits: LaneBits) -> tuple[float, Tensor]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    with weir.torch.ParameterServer(
        model, optimizer, servers=SERVERS, sparsifier=name, density=0.1, lane_bits=bits, exclude=["1d"]
    ) as server:
        for step in range(20):
            optimizer.zero_grad()
            backward(model, [batch(step, rank)])
            server.step()
    inputs, targets = batch(1000, 0)
    return float(nn.functional.cross_entropy(model(inputs), targets)), flat(model)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("dfs", 16), ("topk-block", 8), *effort([], [("omnireduce", 16), ("exdyna", 32)])],
)
def test_methods_push_less_and_train(cluster: weir.LocalCluster, name: str, bits: LaneBits) -> None:
    inputs, targets = batch(1000, 0)
    before = float(nn.functional.cross_entropy(make_model()(inputs), targets).detach())
    with Job(WORKERS, SERVERS, train_sparsely, name, bits, environment=cluster.environment) as job:
        *workers, _, _ = job.results()
    assert all(torch.equal(workers[0][1], other) for _, other in workers)
    assert workers[0][0] < 0.9 * before


def train_in_two_parts(rank: int, name: str, folder: str, first: int, last: int) -> Tensor:
    """Return the parameters after steps ``first`` to ``last``, which begin where the saved state ends."""
    model = make_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    file = Path(folder, f"{rank}.pt")
    options = {"sparsifier": "topk-block", "density": 0.2, "block": 32, "bucket_bytes": 4096}
    with weir.torch.ParameterServer(model, optimizer, servers=SERVERS, **options) as server:
        if file.exists():
            server.load_state_dict(torch.load(file, weights_only=True))
        for step in range(first, last):
            optimizer.zero_grad()
            backward(model, [batch(step, rank)])
            server.step()
        torch.save(server.state_dict(), file)
    return flat(model)


@pytest.mark.parametrize("name", effort(["adamw"], ["momentum", "adamw"]))
def test_a_saved_state_goes_on_bit_for_bit(cluster: weir.LocalCluster, name: str, tmp_path: Path) -> None:
    found = []
    for folder, parts in (("whole", [(0, 8)]), ("parts", [(0, 3), (3, 8)])):
        (tmp_path / folder).mkdir()
        for first, last in parts:
            arguments = (name, str(tmp_path / folder), first, last)
            with Job(
                WORKERS, SERVERS, train_in_two_parts, *arguments, environment=cluster.environment
            ) as job:
                found.append(job.results()[0])
    whole, _, parts_together = found
    assert torch.equal(whole, parts_together)
    state = torch.load(tmp_path / "parts" / "0.pt", weights_only=True)["optimizer"]
    shapes = {parameter: tuple(of.shape) for parameter, of in make_model().named_parameters()}
    key = "momentum_buffer" if name == "momentum" else "exp_avg_sq"
    assert {parameter: tuple(known[key].shape) for parameter, known in state.items()} == shapes


def train_with_accidents(rank: int) -> list[str]:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    said = []
    with weir.torch.ParameterServer(model, optimizer, servers=SERVERS, max_norm=0.01) as server:
        start = flat(model)
        backward(model, [batch(0, rank)])
        if rank == 1:
            model[2].bias.grad[3] = torch.nan
        try:
            server.step()
        except weir.torch.NonFiniteError as error:
            said.append(str(error))
        said.append(str(torch.equal(start, flat(model))))
        optimizer.zero_grad()
        backward(model, [batch(0, rank)])
        server.step()
        said.append(f"{float((flat(model) - start).norm()):.5f}")
    return said


def test_a_nan_changes_nothing_and_the_norm_is_that_of_the_whole_model(cluster: weir.LocalCluster) -> None:
    with Job(WORKERS, SERVERS, train_with_accidents, environment=cluster.environment) as job:
        *workers, _, _ = job.results()
    for message, unchanged, moved in workers:
        assert "NaN or infinity on rank 1" in message
        assert "'2.bias'" in message
        assert unchanged == "True"
        assert moved == "0.00200"  # 0.2 times 0.01


def train_until_lost(rank: int, victim: int, ready: str) -> str:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    server = weir.torch.ParameterServer(model, optimizer, servers=SERVERS)
    try:
        for step in range(10**6):
            optimizer.zero_grad()
            backward(model, [batch(step, rank)])
            server.step()
            if step == 3:
                Path(ready, str(rank)).touch()
    except weir.torch.GroupBrokenError as error:
        return str(error)
    return "nothing happened"


@pytest.mark.parametrize("victim", [1, WORKERS + 1])
def test_a_death_is_named_to_all_others(cluster: weir.LocalCluster, victim: int, tmp_path: Path) -> None:
    with Job(
        WORKERS, SERVERS, train_until_lost, victim, str(tmp_path), environment=cluster.environment
    ) as job:
        wait_for(lambda: len(list(tmp_path.iterdir())) == WORKERS)
        job.processes[victim].kill()
        others = [member for member in range(WORKERS + SERVERS) if member != victim]
        said = job.outcomes(others)
    for words in map(str, said):
        assert f"rank {victim}" in words
        assert f"ranks 0 to {WORKERS - 1} are workers, {WORKERS} to {WORKERS + SERVERS - 1} servers" in words


@pytest.mark.long
def test_the_command_serves_a_plain_script(tmp_path: Path) -> None:
    """Nothing but a rendezvous is given: worker 0 starts the switch. Nobody says that it is over, and leaving
    takes time, as it does on a busy machine.
    """
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time, torch, weir.torch\n"
        "torch.manual_seed(int(sys.argv[1]))\n"
        "model = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
        "server = weir.torch.ParameterServer(model, optimizer)\n"
        "for _ in range(3):\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.ones(1, 4)).sum().backward()\n"
        "    server.step()\n"
        "print(model.weight.tolist())\n"
        "server.connection.at_close(lambda: time.sleep(1.0))\n"
    )
    environment = {**os.environ, "WEIR_RENDEZVOUS": f"file://{tmp_path / 'store'}"}
    environment.pop("WEIR_CONTROLLER", None)
    commands = [[sys.executable, "-m", "weir", "server"]]
    commands += [[sys.executable, str(script), str(rank)] for rank in range(2)]
    processes = []
    for rank, command in enumerate(commands, start=-1):
        own = {**environment, "RANK": str(rank), "WORLD_SIZE": "2"}
        processes.append(
            subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    said = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(map("".join, said))
    assert said[1][0] == said[2][0] != ""
