# SPDX-License-Identifier: Apache-2.0
"""Every rank trains on its own part of the same data; models take that data; replicas can be compared."""

import pytest
import torch

from weir.train.config import make_config
from weir.train.data import LINE, OUTPUTS, WORDS, learning_rate, share, stdlib
from weir.train.models import parameter_checksum
from weir.train.task import make_task, mean_loss


@pytest.mark.parametrize(("samples", "workers", "batch"), [(100, 4, 3), (64, 1, 64), (97, 8, 2)])
def test_ranks_share_an_epoch_without_overlap(samples: int, workers: int, batch: int) -> None:
    parts = [share(samples, rank, workers, batch, seed=5, epoch=2) for rank in range(workers)]
    assert {len(part) for part in parts} == {samples // (workers * batch)}
    seen = torch.cat([indices for part in parts for indices in part])
    assert len(seen.unique()) == len(seen) and int(seen.max()) < samples


def test_epochs_and_seeds_order_the_data_differently() -> None:
    def first(seed: int, epoch: int) -> list[int]:
        return share(1000, 0, 1, 16, seed, epoch)[0].tolist()

    assert first(1, 1) == first(1, 1)
    assert first(1, 1) != first(1, 2) != first(2, 2)


def test_too_few_samples_for_one_step_is_an_error_that_says_so() -> None:
    with pytest.raises(
        ValueError, match="10 samples are too few for a step of 4 workers x 16: use a smaller --batch-size"
    ):
        share(10, 0, 4, 16, seed=1, epoch=1)


@pytest.mark.parametrize("model", ["cnn", "resnet18", "lm", "bag"])
def test_models_are_equal_for_equal_seeds_and_learn_from_their_data(model: str) -> None:
    config = make_config(model=model, seed=3)
    task = make_task(config)
    same, other = make_task(config), make_task(make_config(model=model, seed=4))
    assert parameter_checksum(task.model) == parameter_checksum(same.model)
    assert parameter_checksum(task.model) != parameter_checksum(other.model)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.05)
    inputs, targets = task.data.train.inputs[:8], task.data.train.targets[:8]
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = mean_loss(task.model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_the_language_models_gradient_is_sparse_in_whole_blocks() -> None:
    task = make_task(make_config(model="lm"))
    batch = slice(0, 8)
    mean_loss(task.model(task.data.train.inputs[batch]), task.data.train.targets[batch]).backward()
    gradient = task.model.embedding.weight.grad.flatten()
    blocks = gradient.view(-1, 256).any(dim=1)
    assert blocks.float().mean() < 0.05


def test_the_text_is_the_same_every_time_and_in_range() -> None:
    data = stdlib()
    assert torch.equal(data.train.inputs, stdlib().train.inputs)
    assert data.train.inputs.shape[1] == LINE - 1
    assert int(data.train.inputs.max()) < WORDS and int(data.train.targets.max()) < OUTPUTS
    # A target is the next word, unless that is too rare to be predicted.
    shifted = torch.where(data.train.inputs[:, 1:] < OUTPUTS, data.train.inputs[:, 1:], 0)
    assert torch.equal(data.train.targets[:, :-1], shifted)


def test_a_checksum_sees_one_bit_and_one_swap() -> None:
    model = make_task(make_config(model="cnn")).model
    before = parameter_checksum(model)
    weight = model.layers[0].weight.detach().flatten()
    weight.view(torch.int32)[7] ^= 1
    assert parameter_checksum(model) != before
    weight.view(torch.int32)[7] ^= 1
    assert parameter_checksum(model) == before
    weight[[2, 3]] = weight[[3, 2]]
    assert parameter_checksum(model) != before


def test_the_learning_rate_rises_then_falls() -> None:
    rates = [learning_rate(1.0, step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[9] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[-1] > 0.1
