# SPDX-License-Identifier: Apache-2.0
"""Ways that take the place of the optimizer's step, and the demo's training, over real ranks."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.host_agent.torch.worlds import World
from weir.train.config import make_config
from weir.train.data import learning_rate, share
from weir.train.exchange import make_exchange
from weir.train.messages import WorkerSpec
from weir.train.models import parameter_checksum
from weir.train.steppers import WAYS
from weir.train.task import make_optimizer, make_task, mean_loss

SIZE = 4


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World(SIZE) as world:
        yield world


def checksums() -> tuple[int, int, int, int]:
    """Return those of a model after two steps, at the shared point, after that, and at the end."""
    config = make_config(model="vit", workers=SIZE, method="compress")
    task = make_task(config)
    optimizer = make_optimizer(config, task.model.parameters())
    stepper = WAYS["compress"](task.model, optimizer, dist.group.WORLD, config)  # type: ignore[arg-type]
    train = task.data.train
    for batch in share(len(train), dist.get_rank(), SIZE, 4, 1, 1)[:2]:
        optimizer.zero_grad()
        mean_loss(task.model(train.inputs[batch]), train.targets[batch]).backward()
        stepper.step()
    own = parameter_checksum(task.model)
    with stepper.shared():
        shared = parameter_checksum(task.model)
    after = parameter_checksum(task.model)
    stepper.finish()
    return own, shared, after, parameter_checksum(task.model)


def test_compress_is_evaluated_where_all_workers_agree_and_goes_on_where_each_was(world: World) -> None:
    own, shared, after, end = zip(*world.run(checksums), strict=True)
    assert len(set(shared)) == len(set(end)) == 1
    assert len(set(own)) == SIZE and after == own
    assert shared[0] not in own and end[0] != shared[0]


STEPS, ALL_STEPS = 24, 132  # of the demo


def demo_losses(method: str) -> list[float]:
    """Return this rank's losses in the first steps of the demo, whose warm-up has 13 steps."""
    config = make_config(model="cnn", lr=0.5, clip_norm=1.0, workers=SIZE, method=method, density=0.05)
    task = make_task(config)
    ddp = DistributedDataParallel(task.model)
    spec = WorkerSpec(config=config, backend="weir", init_method="")
    exchange = make_exchange(spec, ddp)
    ddp.register_comm_hook(exchange.state, exchange.hook)
    optimizer = make_optimizer(config, ddp.parameters())
    train, losses = task.data.train, []
    for step, batch in enumerate(
        share(len(train), dist.get_rank(), SIZE, config.batch_size, config.seed, 1)[:STEPS]
    ):
        optimizer.param_groups[0]["lr"] = learning_rate(config.lr, step, ALL_STEPS)
        optimizer.zero_grad()
        loss = mean_loss(ddp(train.inputs[batch]), train.targets[batch])
        loss.backward()
        if (limit := config.max_norm) is not None:
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), limit)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_demos_loss_does_not_jump_after_the_warm_up(world: World) -> None:
    losses = torch.tensor(world.run(demo_losses, "dfs")).mean(0)
    assert losses[-1] < losses[0] - 0.3
    assert max(losses) < losses[0] + 0.3  # a batch harder than others adds as much
