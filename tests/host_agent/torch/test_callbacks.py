# SPDX-License-Identifier: Apache-2.0
"""What programs do with the handles of collectives: callbacks that go on from there, futures that torch's C++
reads, works that it keeps, and what other backends' futures hold.
"""

import gc
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.host_agent.torch.worlds import World
from weir.host_agent.transport.callbacks import EndlessWaitError

SIZE = 2


def started(value: float = 1.0) -> torch.futures.Future[list[torch.Tensor]]:
    """Return the future of an all-reduce of one value."""
    return dist.all_reduce(torch.tensor([value]), async_op=True).get_future()


# ---- callbacks


def all_reduce_in_callbacks(depth: int) -> float:
    """Sum a sum again, in a callback of a callback's all-reduce, and so on."""

    def again(future: torch.futures.Future[list[torch.Tensor]], left: int) -> float:
        total = future.value()[0].item()
        if not left:
            return total
        return started(total).then(lambda future: again(future, left - 1)).wait()

    return started().then(lambda future: again(future, depth)).wait()


def test_a_callback_waits_for_a_collective_that_it_makes(world: World) -> None:
    assert world.run(all_reduce_in_callbacks, 1) == [SIZE**2] * SIZE


def test_callbacks_of_callbacks_do_so_too(world: World) -> None:
    assert world.run(all_reduce_in_callbacks, 5) == [SIZE**6] * SIZE


def many_at_once() -> list[list[float]]:
    """Sum ten values, each twice, the second sum made in a callback that other ranks come to at other times,
    and beside them further ones that nobody waits for in the callback.
    """
    unawaited = []

    def second(future: torch.futures.Future[list[torch.Tensor]]) -> list[float]:
        time.sleep(0.002 * dist.get_rank())
        (total,) = future.value()
        other = total.clone()
        unawaited.append((dist.all_reduce(other, async_op=True), other))
        dist.all_reduce(total)
        return total.tolist()

    futures = [started(float(number)).then(second) for number in range(10)]
    found = [future.wait() for future in futures]
    for work, _ in unawaited:
        work.wait()
    return [*found, [float(other) for _, other in unawaited]]


def test_collectives_of_callbacks_have_the_same_order_on_all_ranks(world: World) -> None:
    sums = [float(SIZE**2 * number) for number in range(10)]
    assert world.run(many_at_once) == [[*([value] for value in sums), sums]] * SIZE


def wait_for_what_comes_behind() -> list[float]:
    """Wait, in a callback, for a collective that the program makes only later."""
    group: Any = dist.group.WORLD
    issued: list[dist.Work] = []
    added, there, tensor = threading.Event(), threading.Event(), torch.ones(1)

    def wait(_future: object) -> float:
        assert there.wait(30)
        issued[0].wait()
        return tensor.item()

    group.submit(lambda: added.wait(30))  # else torch may find the sum there, and call ``wait`` here
    first = started().then(wait)
    added.set()
    issued.append(dist.all_reduce(tensor, async_op=True))
    there.set()
    return [first.wait()]


def test_a_callback_waits_for_a_collective_that_the_program_makes_later(world: World) -> None:
    assert world.run(wait_for_what_comes_behind) == [[float(SIZE)]] * SIZE


def groups_in_callbacks() -> tuple[float, float]:
    """Make a group in a callback, use it and destroy it there; destroy another in a callback on itself."""

    def use(_future: object) -> float:
        group = dist.new_group(timeout=timedelta(seconds=30))
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
        return tensor.item()

    found = started().then(use).wait()
    own = dist.new_group(timeout=timedelta(seconds=30))
    tensor = torch.ones(1)
    work = dist.all_reduce(tensor, group=own, async_op=True)
    work.get_future().then(lambda _future: dist.destroy_process_group(own)).wait()
    return found, tensor.item()


def test_callbacks_make_and_destroy_groups(world: World) -> None:
    assert world.run(groups_in_callbacks) == [(float(SIZE), float(SIZE))] * SIZE


def wait_inside_an_operation() -> list[str]:
    group: Any = dist.group.WORLD
    said = []

    def wait() -> None:
        dist.all_reduce(torch.ones(1))

    def take_future() -> None:
        started().wait()

    for inside in (wait, take_future):
        with pytest.raises(EndlessWaitError) as caught:
            group.submit(inside).wait()
        said.append(str(caught.value))
    dist.barrier()
    return said


def test_a_wait_that_would_never_end_raises(world: World) -> None:
    for said in world.run(wait_inside_an_operation):
        assert all("queued behind it: that would never end" in words for words in said)


def groups_that_wait_for_one_another() -> list[list[float]]:
    """Sum up in a second group in callbacks of the first, and the result in the first again."""
    other = dist.new_group(timeout=timedelta(seconds=30))

    def up_and_down(future: torch.futures.Future[list[torch.Tensor]]) -> list[float]:
        (total,) = future.value()
        dist.all_reduce(total, group=other)
        dist.all_reduce(total)
        return total.tolist()

    futures = [started(float(number)).then(up_and_down) for number in range(5)]
    found = [future.wait() for future in futures]
    dist.destroy_process_group(other)
    return found


def test_a_callback_reduces_in_another_group_and_in_its_own(world: World) -> None:
    sums = [[float(SIZE**3 * number)] for number in range(5)]
    assert world.run(groups_that_wait_for_one_another) == [sums] * SIZE


def messages_in_callbacks() -> tuple[float, float]:
    """Answer a message in a callback on its receipt, and sum up there."""
    other = 1 - dist.get_rank()
    mine, received, answer = torch.tensor([dist.get_rank() + 1.0]), torch.zeros(1), torch.zeros(1)
    waiting = dist.irecv(received, other, tag=1)

    def go_on(future: torch.futures.Future[list[torch.Tensor]]) -> float:
        (value,) = future.value()
        sending, receiving = dist.isend(value * 10, other, tag=2), dist.irecv(answer, other, tag=2)
        receiving.wait()
        sending.wait()
        dist.all_reduce(value)
        return value.item()

    total = waiting.get_future().then(go_on)
    dist.isend(mine, other, tag=1).get_future().wait()
    return total.wait(), answer.item()


def test_callbacks_on_messages_send_receive_and_reduce(world: World) -> None:
    for rank, found in enumerate(world.run(messages_in_callbacks)):
        assert found == (3.0, 10.0 * (rank + 1))


# ---- torch's hooks


def powersgd(ddp: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def gathering(ddp: DistributedDataParallel) -> None:
    """Register a hook made as torch's quantization hooks, which read all_gather's futures in NCCL's form."""

    def hook(_state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        scale = bucket.buffer().abs().max().reshape(1)
        scales, rows = [torch.zeros(1) for _ in range(SIZE)], []

        def gather_all(future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
            own = (bucket.buffer() / future.value()[dist.get_rank()] * 100).to(torch.int8)
            rows.extend(torch.zeros_like(own) for _ in range(SIZE))
            gathered: list[torch.Tensor] = dist.all_gather(rows, own, async_op=True).get_future().wait()
            return gathered

        def add_up(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            parts = zip(future.value(), scales, strict=True)
            return torch.stack([part * scale / 100 for part, scale in parts]).mean(0)

        return dist.all_gather(scales, scale, async_op=True).get_future().then(gather_all).then(add_up)

    ddp.register_comm_hook(None, hook)


def fp16(ddp: DistributedDataParallel) -> None:
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)


def fp16_of_powersgd(ddp: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook))


def builtin_fp16(ddp: DistributedDataParallel) -> None:
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)


def builtin_allreduce(ddp: DistributedDataParallel) -> None:
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)


def gradients(register: Callable[[DistributedDataParallel], None], dtype: torch.dtype) -> torch.Tensor:
    """Return the gradients of the fifth of five backward passes, of a model in several buckets."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(24, 24) for _ in range(6))).to(dtype)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.003)
    register(ddp)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(5):
        ddp.zero_grad()
        ddp(torch.randn(4, 24, generator=generator).to(dtype)).square().sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    "register",
    [powersgd, fp16_of_powersgd, gathering],
    ids=lambda f: f.__name__,
)
def test_hooks_that_communicate_in_callbacks_train_alike_on_all_ranks(
    world: World, register: Callable[[DistributedDataParallel], None]
) -> None:
    first, *others = world.run(gradients, register, torch.float32)
    assert first.abs().sum() > 0
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("register", [fp16, builtin_fp16, builtin_allreduce], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_hooks_that_send_fewer_bits_give_the_mean_gradient(
    world: World, register: Callable[[DistributedDataParallel], None], dtype: torch.dtype
) -> None:
    plain = world.run(gradients, no_hook, dtype)[0]
    for found in world.run(gradients, register, dtype):
        torch.testing.assert_close(found, plain, rtol=0.01, atol=0.01)


def no_hook(_ddp: DistributedDataParallel) -> None:
    pass


def builtin_hook_in_a_group_that_fails() -> str:
    group = dist.new_group(timeout=timedelta(seconds=30))
    ddp = DistributedDataParallel(torch.nn.Linear(3, 3), process_group=group)
    builtin_fp16(ddp)
    loss = ddp(torch.ones(1, 3)).sum()
    group.abort()
    with pytest.raises(RuntimeError) as caught:
        loss.backward()
    dist.destroy_process_group(group)
    return str(caught.value)


def test_what_fails_below_a_builtin_hook_is_raised_in_backward(world: World) -> None:
    for said in world.run(builtin_hook_in_a_group_that_fails):
        assert "aborted the process group" in said


# ---- works that C++ keeps


def join_undivided() -> list[float]:
    model = DistributedDataParallel(torch.nn.Linear(5, 5, bias=False))
    found = []
    with model.join(divide_by_initial_world_size=False):
        for _ in range(2 + dist.get_rank()):
            model(torch.full((1, 5), 50.0)).sum().backward()
            found.append(next(model.parameters()).grad.mean().item())
            model.zero_grad()
    return found


def test_ddp_joins_uneven_inputs_and_divides_by_the_ranks_that_are_left(world: World) -> None:
    assert world.run(join_undivided) == [[50.0] * (2 + rank) for rank in range(SIZE)]


def kept_by_cpp_alone() -> list[list[float]]:
    """Drop works that C++ keeps, and wait for them there; some fail."""
    found, kept = [], []
    for value in range(3):
        work = dist.all_reduce(torch.tensor([float(value)]), async_op=True)
        kept.append(work.boxed())
        del work
    other = 1 - dist.get_rank()
    message = torch.zeros(1)
    receiving = dist.irecv(message, other).boxed()
    dist.isend(torch.ones(1), other).wait()
    gc.collect()
    for box in kept:
        work = Work.unbox(box)
        work.wait()
        found.append(work.get_future().wait()[0].tolist())
    Work.unbox(receiving).wait()
    group: Any = dist.group.WORLD
    failing = group.submit(lambda: 1 // 0).boxed()
    with pytest.raises(ZeroDivisionError):
        Work.unbox(failing).wait()
    return [*found, message.tolist()]


def test_works_that_only_cpp_keeps_are_waited_for(world: World) -> None:
    assert world.run(kept_by_cpp_alone) == [[[0.0], [2.0], [4.0], [1.0]]] * SIZE


def kept_under_a_profile() -> list[list[float]]:
    with torch.profiler.profile():
        return kept_by_cpp_alone()


def test_a_profile_does_not_change_that(world: World) -> None:
    """It watches the ends of works, and must not pass for somebody who waits for them."""
    assert world.run(kept_under_a_profile) == [[[0.0], [2.0], [4.0], [1.0]]] * SIZE


def dropped() -> int:
    """Drop works of large tensors; return how many tensors are still there."""
    tensors = [torch.ones(2000) for _ in range(5)]
    watched = [torch.utils.weak.WeakTensorKeyDictionary() for _ in tensors]
    for tensor, known in zip(tensors, watched, strict=True):
        known[tensor] = True
        dist.all_reduce(tensor, async_op=True)
    del tensor
    tensors.clear()
    dist.barrier()
    gc.collect()
    return sum(len(known) for known in watched)


def test_works_that_were_dropped_keep_no_large_tensors(world: World) -> None:
    assert world.run(dropped) == [0] * SIZE


def other_keepers() -> list[Any]:
    """Ways in which torch keeps works: functional collectives, coalesced ones, batches, ZeRO."""
    functional = torch.distributed._functional_collectives
    group, rank = dist.group.WORLD, dist.get_rank()
    lazy = [functional.all_reduce(torch.full((4,), float(number)), "sum", group) for number in range(3)]
    gc.collect()
    found: list[Any] = [value.sum().item() for value in lazy]
    with _coalescing_manager(group=group, async_ops=True) as coalesced:
        tensors = [torch.ones(length) for length in (3, 1, 7)]
        for tensor in tensors:
            dist.all_reduce(tensor, group=group)
    coalesced.wait()
    found.append(sum(tensor.sum().item() for tensor in tensors))
    received = torch.zeros(2)
    ops = [
        dist.P2POp(dist.isend, torch.full((2,), float(rank)), 1 - rank),
        dist.P2POp(dist.irecv, received, 1 - rank),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    found.append(received.tolist() == [1.0 - rank] * 2)
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.5)
    ddp(torch.full((1, 4), float(rank))).sum().backward()
    optimizer.step()
    sums = torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])
    gathered = [torch.zeros_like(sums) for _ in range(SIZE)]
    dist.all_gather(gathered, sums)
    found.append(torch.equal(gathered[0], gathered[1]))
    return found


def test_works_in_torchs_other_keeping_are_waited_for(world: World) -> None:
    assert world.run(other_keepers) == [[0.0, 8.0, 16.0, 22.0, True, True]] * SIZE


# ---- the values of futures


def nesting(value: Any) -> Any:
    return list(value.shape) if isinstance(value, torch.Tensor) else [nesting(part) for part in value]


def one(length: int = 1) -> torch.Tensor:
    return torch.ones(length)


def parts() -> list[torch.Tensor]:
    return [torch.zeros(1) for _ in range(SIZE)]


def at_root() -> list[torch.Tensor] | None:
    return parts() if dist.get_rank() == 0 else None


COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda group: dist.all_reduce(one(), group=group, async_op=True),
    "all_reduce_coalesced": lambda group: dist.all_reduce_coalesced(
        [one(), one(2)], group=group, async_op=True
    ),
    "reduce": lambda group: dist.reduce(one(), 0, group=group, async_op=True),
    "broadcast": lambda group: dist.broadcast(one(), 0, group=group, async_op=True),
    "all_gather": lambda group: dist.all_gather(parts(), one(), group=group, async_op=True),
    "all_gather_coalesced": lambda group: dist.all_gather_coalesced(
        [[one(), one(2)] for _ in range(SIZE)], [one(), one(2)], group=group, async_op=True
    ),
    "gather": lambda group: dist.gather(one(), at_root(), 0, group=group, async_op=True),
    "scatter": lambda group: dist.scatter(one(), at_root(), 0, group=group, async_op=True),
    "all_to_all": lambda group: dist.all_to_all(parts(), parts(), group=group, async_op=True),
    "all_to_all_single": lambda group: dist.all_to_all_single(
        one(SIZE), one(SIZE), group=group, async_op=True
    ),
    "barrier": lambda group: dist.barrier(group=group, async_op=True),
}  # but for those whose works have no futures with Gloo, and all_gather_single, which has the parts there


@pytest.mark.filterwarnings("ignore::FutureWarning")
def values_beside_gloo() -> dict[str, tuple[Any, Any]]:
    gloo = dist.new_group(backend="gloo")
    found: dict[str, list[Any]] = {}
    for group in (dist.group.WORLD, gloo):
        for name, issue in COLLECTIVES.items():
            work = issue(group)
            future = work.get_future() if isinstance(work, Work) else work
            future.wait()
            values = [nesting(future.value())]
            if isinstance(work, Work):
                work = issue(group)
                work.wait()
                values.append(nesting(work.result()))
            found.setdefault(name, []).append(values)
    dist.destroy_process_group(gloo)
    return {name: (ours, theirs) for name, (ours, theirs) in found.items()}


def test_futures_and_results_are_nested_as_gloos(world: World) -> None:
    for found in world.run(values_beside_gloo):
        for name, (ours, theirs) in found.items():
            assert ours == theirs, name


def values_of_the_rest() -> list[Any]:
    other = 1 - dist.get_rank()
    works = [
        dist.all_gather_into_tensor(one(SIZE), one(), async_op=True),
        dist.reduce_scatter(one(), parts(), async_op=True),
        dist.reduce_scatter_tensor(one(), one(SIZE), async_op=True),
        dist.isend(one(3), other),
        dist.irecv(one(3), other),
    ]
    return [nesting(work.get_future().wait()) for work in works]


def test_futures_that_gloo_has_not_hold_the_tensors_as_nccls(world: World) -> None:
    assert world.run(values_of_the_rest) == [[[[SIZE]], [[1]], [[1]], [[3]], [[3]]]] * SIZE
