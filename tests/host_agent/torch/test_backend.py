# SPDX-License-Identifier: Apache-2.0
"""The backend as a program meets it: DDP, errors on every rank, clean ends, wrong settings."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import weir
import weir.torch
from tests.harness.effort import effort
from tests.host_agent.torch.worlds import World, raising
from weir.cluster import LocalCluster

SIZE = 3  # ranks of a world; the cluster has room for two worlds
HOSTS = 2 * SIZE


def second_world(cluster: LocalCluster) -> World:
    """Return three ranks on the hosts that the module's world does not use."""
    return World(SIZE, lambda rank: cluster.environment(SIZE + rank))


def ddp_digests(steps: int) -> list[bytes]:
    torch.manual_seed(dist.get_rank())  # DDP makes the replicas equal, not the seed
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5)),
        bucket_cap_mb=0.01,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    digests = []
    for step in range(steps):
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(step * SIZE + dist.get_rank()))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        digests.append(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    return digests


def test_ddp_replicas_are_bit_identical_after_every_step(world: World) -> None:
    first, *others = world.run(ddp_digests, 5)
    assert len(set(first)) == 5
    assert all(other == first for other in others)


def non_finite(rank: int, value: float, dtype: torch.dtype) -> str:
    tensor = torch.ones(20, 50, dtype=dtype)
    if dist.get_rank() == rank:
        tensor[7, 3] = value
    before = tensor.clone()
    with pytest.raises(weir.torch.NonFiniteError) as caught:
        dist.all_reduce(tensor, group=raising())
    torch.testing.assert_close(tensor, before, equal_nan=True, rtol=0, atol=0)
    healthy = torch.ones(3)
    dist.all_reduce(healthy, group=raising())
    assert healthy.tolist() == [float(SIZE)] * 3
    return str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_non_finite_input_is_named_on_every_rank_and_costs_nothing(
    world: World, dtype: torch.dtype
) -> None:
    for rank, value in [(1, torch.nan), (2, torch.inf), (0, -torch.inf)]:
        for reporter, message in enumerate(world.run(non_finite, rank, value, dtype)):
            assert f"NaN or infinity on rank {rank}: all_reduce number" in message
            assert f"element 353 of a {str(dtype).removeprefix('torch.')} tensor of shape (20, 50)" in message
            assert f"reported on rank {reporter}" in message


def ddp_non_finite() -> str:
    model = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=raising())
    bad = torch.full((1, 4), torch.inf if dist.get_rank() == 1 else 1.0)
    with pytest.raises(weir.torch.NonFiniteError) as caught:
        model(bad).sum().backward()
    model.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    return str(caught.value)


def test_a_non_finite_gradient_ends_ddps_backward_on_every_rank(world: World) -> None:
    for message in world.run(ddp_non_finite):
        assert "NaN or infinity on rank 1: all_reduce number" in message
        assert "float32 tensor of shape (20,)" in message


def other_front_ends() -> None:
    """Ways into the group that do not pass torch.distributed's Python functions, or use many of them."""
    functional = torch.distributed._functional_collectives
    ones = torch.ones(2 * SIZE)
    assert functional.all_reduce(ones, "sum", dist.group.WORLD).tolist() == [float(SIZE)] * 2 * SIZE
    assert functional.all_gather_single(ones, 0, dist.group.WORLD).numel() == 2 * SIZE * SIZE
    assert functional.reduce_scatter_single(ones, "sum", 0, dist.group.WORLD).tolist() == [float(SIZE)] * 2

    model = torch.nn.Linear(8, 8)
    fully_shard(model, mesh=init_device_mesh("cpu", (SIZE,)))
    model(torch.ones(2, 8)).sum().backward()
    assert model.bias.grad.full_tensor().tolist() == [2.0] * 8


def test_functional_collectives_and_fsdp(world: World) -> None:
    world.run(other_front_ends)


def sharded_training() -> None:
    """Three steps with sharded parameters, beside the same on one rank with all ranks' batches."""

    def make() -> torch.nn.Sequential:
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Linear(40, 70), torch.nn.Tanh(), torch.nn.Linear(70, 3))

    batches = [torch.randn(4, 40, generator=torch.Generator().manual_seed(rank)) for rank in range(SIZE)]
    alone, model = make(), make()
    mesh = init_device_mesh("cpu", (SIZE,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    for trained, batch in ((alone, torch.cat(batches)), (model, batches[dist.get_rank()])):
        optimizer = torch.optim.AdamW(trained.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            trained(batch).square().mean().backward()
            optimizer.step()
    for whole, shard in zip(alone.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(shard.full_tensor(), whole, rtol=1e-4, atol=1e-5)


def test_fsdp_trains_as_one_process_does(world: World) -> None:
    world.run(sharded_training)


def refused_operations() -> None:
    with pytest.raises(TypeError, match=r"AVG is defined for numbers, not for torch.bool"):
        dist.all_reduce(torch.ones(3, dtype=torch.bool), dist.ReduceOp.AVG)
    with pytest.raises(TypeError, match=r"BAND is defined for integers and bool, not for torch.float32"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with pytest.raises(TypeError, match=r"cannot reduce torch.float8_e5m2"):
        dist.all_reduce(torch.ones(3).to(torch.float8_e5m2))
    with pytest.raises(TypeError, match=r"on CPU and CUDA tensors, this one is on meta"):
        dist.broadcast(torch.ones(3, device="meta"), 0)
    with pytest.raises(TypeError, match=r"layout torch.sparse_coo: the weir backend sums"):
        dist.send(torch.ones(3).to_sparse(), (dist.get_rank() + 1) % SIZE)
    with pytest.raises(
        ValueError, match=r"invalid tensor size at index 0 \(expected 3 times \(2,\), got \(5,\)\)"
    ):
        dist.all_gather_single(torch.ones(5), torch.ones(2))
    with pytest.raises(ValueError, match="rank 0 sends 4 bytes to rank 0, which expects 8"):
        dist.all_to_all([torch.ones(2)] * SIZE, [torch.ones(1)] * SIZE)
    with pytest.raises(
        ValueError, match=r"does not divide equally across group size \(dim 0 is 4, the group has 3 ranks\)"
    ):
        dist.all_to_all_single(torch.ones(4), torch.ones(4))
    dist.barrier()


def test_what_is_not_defined_is_refused_with_a_reason(world: World) -> None:
    world.run(refused_operations)


def rounds_of_reductions(path: str) -> str:
    """Reduce until the group breaks; says how long after the first failure the second call took."""
    Path(path, str(dist.get_rank())).write_text(str(os.getpid()))
    group_error = ""
    try:
        while True:
            dist.all_reduce(torch.ones(100_000))
    except weir.torch.GroupBrokenError as error:
        group_error = str(error)
    with pytest.raises(weir.torch.GroupBrokenError):
        dist.all_reduce(torch.ones(3))
    return group_error


def test_a_worker_that_dies_in_mid_step_ends_the_others_step_with_its_name(
    cluster: LocalCluster, world: World, tmp_path: Path
) -> None:
    with second_world(cluster) as doomed:
        doomed.start(rounds_of_reductions, str(tmp_path))
        while len(list(tmp_path.iterdir())) < SIZE:
            time.sleep(0.01)
        doomed.processes[1].kill()
        for rank in (0, 2):
            message = doomed.outcome(rank)
            assert isinstance(message, str), message
            assert f"rank {rank} of {SIZE} in job" in message
            assert "rank 1" in message.split("stopped", 1)[1]
    world.run(ddp_digests, 1)  # another job on the same ports never noticed


def leave_early() -> str:
    if dist.get_rank() == 1:
        dist.destroy_process_group()
        return ""
    with pytest.raises(weir.torch.GroupBrokenError) as caught:
        dist.all_reduce(torch.ones(1000))
    return str(caught.value)


def test_a_worker_that_leaves_early_does_not_hang_the_others(cluster: LocalCluster) -> None:
    with second_world(cluster) as world:
        left, *messages = sorted(world.run(leave_early))
    assert left == ""
    assert all(re.search("rank 1 .*no collective can complete without it", message) for message in messages)


def wait_alone() -> str:
    if dist.get_rank() == 0:
        with pytest.raises(weir.torch.GroupBrokenError) as caught:
            dist.barrier(timeout=timedelta(seconds=0.3))
        return str(caught.value)
    return ""


def test_a_timeout_says_who_waits_for_what(cluster: LocalCluster) -> None:
    with second_world(cluster) as world:
        message, *_ = world.run(wait_alone)
    assert "no round completed within the timeout of 0.3 s" in message


def wait_for_the_last(capture: str) -> str:
    if dist.get_rank() == SIZE - 1:
        time.sleep(7)
        return ""
    with Path(capture + str(dist.get_rank())).open("w") as log:
        os.dup2(log.fileno(), 2)
        with pytest.raises(weir.torch.GroupBrokenError) as caught:
            dist.all_reduce(torch.ones(1000), async_op=True).wait()
    return str(caught.value)


def test_a_stalled_reduce_names_the_missing_rank_in_the_log_and_at_the_timeout(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with World(SIZE, lambda rank: cluster.environment(SIZE + rank), timeout_s=6) as world:
        messages = world.run(wait_for_the_last, str(tmp_path / "log-"))[:-1]
    missing = f"still waiting for rank {SIZE - 1} of {SIZE}, from which the switch gets no packets"
    assert any(
        "no round completed within the timeout of 6 s" in message and missing in message
        for message in messages
    ), messages
    assert all(missing in path.read_text() for path in tmp_path.iterdir())


def joined() -> None:
    """Nothing to do: joining went well."""


def joining(size: int, environment: dict[str, str], rank: int = 0) -> str:
    """Return what init_process_group raises in a process that is rank ``rank`` and the only one of
    ``size``.
    """
    with World(size, lambda _: environment, timeout_s=0.5, ranks=[rank]) as world:
        world.start(joined)
        error = world.outcome(0)
    return f"{type(error).__name__}: {error}"


def test_joining_says_what_is_wrong(cluster: LocalCluster, world: World) -> None:
    place = cluster.environment(SIZE)
    came_not = (
        r"RendezvousError: of 2 ranks these did not come within 0.5 s: rank {} of 2; "
        r"were 2 processes started, as WORLD_SIZE says\?"
    )
    cases: list[tuple[str, str]] = [
        (joining(40_000, {}), "ValueError: a process group of 40000 ranks .* at most 32768"),
        (joining(2, place), came_not.format(1)),
        (joining(2, {}, rank=1), came_not.format(0)),
        (joining(2, {}), came_not.format(1)),
        (
            joining(1, {**place, "WEIR_LINK": "pigeon"}),
            "ValueError: WEIR_LINK is 'pigeon': it must be shm, ip or udp",
        ),
        (joining(1, {**place, "WEIR_HOST": "h99"}), "JoinRefused: .*h99"),
        (joining(1, cluster.environment(0)), "NoResources: shared-memory port 1 .* is in use by rank 0"),
    ]
    for said, expected in cases:
        assert re.match(expected, said), (expected, said)
    world.run(ddp_digests, 1)  # nobody else noticed


def test_machines_without_a_controller_are_refused() -> None:
    from weir.host_agent.torch import rendezvous

    store = dist.HashStore()
    elsewhere = rendezvous.Introduction("elsewhere boot", "new_group([0, 1])", "", {})
    store.set("weir/rendezvous-1/rank/1", json.dumps(asdict(elsewhere)))
    with pytest.raises(
        rendezvous.RendezvousError, match=r"several machines \(.*elsewhere.*\) and WEIR_CONTROLLER is not"
    ):
        rendezvous.agree(store, [0, 1], 0, "group", timedelta(seconds=1), weir.LocalCluster)
    with pytest.raises(
        rendezvous.RendezvousError, match=r"rank 0 could not find or start a controller: .*elsewhere"
    ):
        rendezvous.agree(store, [0, 1], 1, "group", timedelta(seconds=1), weir.LocalCluster)


def test_a_rendezvous_says_in_the_log_whom_it_waits_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir.host_agent.torch import rendezvous

    monkeypatch.setattr("weir.agent_service.waiting.FIRST_S", 0.2)
    with pytest.raises(
        rendezvous.RendezvousError, match="did not come within 1 s: rank 1 of 3, rank 2 of 3; do"
    ):
        rendezvous.agree(dist.HashStore(), [0, 1, 2], 0, "group", timedelta(seconds=1), weir.LocalCluster)
    assert "still waiting for rank 1 of 3 to come, rank 2 of 3 to come" in caplog.text


def rendezvous_of(
    store: dist.Store,
    prepare: tuple[Callable[[], object], Callable[[], object]],
    start: Callable[[int], object] = weir.LocalCluster,
    timeout_s: float = 1.0,
) -> list[object]:
    """Return what became of each of two ranks that meet, with these preparations."""
    from weir.host_agent.torch import rendezvous

    def meet(rank: int) -> object:
        try:
            limit = timedelta(seconds=timeout_s)
            met, _, _ = rendezvous.agree(store, [0, 1], rank, "group", limit, start, prepare=prepare[rank])
            rendezvous.leave(met)
            return met.job
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(meet, range(2)))


class Nowhere:
    """A cluster that took its time to start."""

    controller, directory = "unix:/nowhere", Path("/nowhere")

    def __init__(self, _workers: int) -> None:
        time.sleep(3.0)


@pytest.mark.parametrize("busy", effort([1], [0, 1]))
def test_a_rank_that_compiles_for_longer_than_the_timeout_is_waited_for(
    busy: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weir.host_agent.torch import busy_ranks

    monkeypatch.delenv("WEIR_CONTROLLER", raising=False)
    monkeypatch.setattr(busy_ranks, "_BEAT_S", 0.2)
    waits = [lambda: None, lambda: None]
    waits[busy] = lambda: time.sleep(3.0)
    jobs = rendezvous_of(dist.FileStore(str(tmp_path / "store"), 2), (waits[0], waits[1]), Nowhere)
    assert isinstance(jobs[0], str) and jobs[0] == jobs[1], jobs


def test_a_rank_that_is_not_heard_of_any_more_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weir.host_agent.torch import busy_ranks, rendezvous

    monkeypatch.setattr(busy_ranks, "_BEAT_S", 0.1)
    monkeypatch.setattr(busy_ranks, "_SILENT_S", 0.5)
    store = dist.HashStore()
    store.add("weir/rendezvous-1/busy/1", 1)  # it said so once, and died
    with pytest.raises(rendezvous.RendezvousError, match=r"these did not come within 0\.3 s: rank 1 of 2"):
        rendezvous.agree(store, [0, 1], 0, "group", timedelta(seconds=0.3), weir.LocalCluster)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_compile_does_not_leave_the_others_to_the_timeout(failing: int) -> None:
    def fail() -> None:
        raise RuntimeError("no C compiler")

    prepare = [lambda: None, lambda: None]
    prepare[failing] = fail
    said = list(map(str, rendezvous_of(dist.HashStore(), (prepare[0], prepare[1]), timeout_s=60)))
    assert said[failing] == "no C compiler"
    assert said[1 - failing] == f"rank {failing} of 2 cannot take part: no C compiler"


def test_a_rank_has_compiled_when_it_meets_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from weir.host_agent.torch import joining

    store, limit, met = dist.HashStore(), timedelta(seconds=60), []

    def compile_now() -> None:
        met.append(store.check(["weir/rendezvous-1/rank/0"]))

    def start(_workers: int) -> weir.LocalCluster:
        raise RuntimeError("all have met")

    monkeypatch.delenv("WEIR_CONTROLLER", raising=False)
    monkeypatch.setattr(joining, "_LIBRARIES", (compile_now,))
    with pytest.raises(RuntimeError, match="all have met"):
        joining.open_connection(store, 0, [0], "g", limit, start)
    assert met == [False]


ABANDONED = """
    import torch, torch.distributed as dist, weir.torch
    dist.init_process_group("weir", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1000), async_op=True)
    print(weir.torch.WeirProcessGroup.__name__, flush=True)
    {end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        pytest.param("raise SystemExit(3)", 3, marks=pytest.mark.long),
        pytest.param("dist.destroy_process_group()", 0, marks=pytest.mark.long),
    ],
)
def test_the_interpreter_ends_cleanly_however_the_program_does(
    cluster: LocalCluster, end: str, status: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ABANDONED.format(end=end))],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **cluster.environment(SIZE)},
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.strip() == "WeirProcessGroup"


def test_interrupting_a_wait_raises_at_once(cluster: LocalCluster) -> None:
    with second_world(cluster) as world:
        world.start(interrupted)
        outcomes = [world.outcome(rank) for rank in range(SIZE)]
    assert outcomes[0] == "interrupted"


def interrupted() -> Any:
    """Rank 0 waits for a collective that the others do not begin, and gets Ctrl-C."""
    if dist.get_rank():
        return ""
    work = dist.all_reduce(torch.ones(3), async_op=True)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        work.wait()
    except KeyboardInterrupt:
        return "interrupted"
    return "done"


def sums_in_groups() -> list[list[float]]:
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], None, [0, 1, 2])]
    sums = []
    for _ in range(2):  # groups alternate on the port
        for group in [*groups, dist.group.WORLD]:
            value = torch.full((300,), float(10 ** dist.get_rank()))
            if dist.get_rank(group) >= 0:
                dist.all_reduce(value, group=group)
            sums.append(value.unique().tolist())
    for group in reversed(groups):
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    return sums


def test_groups_of_ranks_that_found_each_other_by_themselves_add_up() -> None:
    """No setting of the environment: as torchrun starts them."""
    with World(SIZE) as world:
        outcomes = world.run(sums_in_groups)
    for rank, sums in enumerate(outcomes):
        alone = [float(10**rank)]
        expected = [[11.0] if rank < 2 else alone, [110.0] if rank else alone, [111.0], [111.0], [111.0]]
        assert sums == 2 * expected
