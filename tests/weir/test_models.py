# SPDX-License-Identifier: Apache-2.0
"""The models that nobody tuned for: they learn from their data, and their data are what they say."""

import pytest
import torch

from tests.harness.effort import effort
from weir.train.config import LARGE_MODELS, PRESETS, SGD_MODELS, Model, make_config
from weir.train.data import PAIRS, library_bytes, library_pairs, pairs_of
from weir.train.models import make_model, parameter_count
from weir.train.models.dlrm import ROWS, TABLES, clicks
from weir.train.models.gnn import NODES, graphs
from weir.train.models.gpt import SHAPES, Gpt
from weir.train.models.unet import SHAPES as KINDS
from weir.train.models.unet import scenes
from weir.train.task import DivergedError, evaluate, make_optimizer, make_task, mean_loss

UNTUNED: list[Model] = [name for name in PRESETS if name not in SGD_MODELS]
SMALL = [name for name in UNTUNED if name not in LARGE_MODELS]


@pytest.mark.parametrize("model", SMALL[:: effort(2, 1)])
def test_a_model_learns_by_its_own_optimizer_what_it_is_tested_on(model: Model) -> None:
    config = make_config(model=model, workers=1)
    task = make_task(config)
    train, test = task.data.train, task.data.test
    optimizer = make_optimizer(config, task.model.parameters())
    steps = {"dlrm": 300, "gnn": 60}.get(model, 30)
    batches = torch.arange(len(train))[: steps * config.batch_size].split(config.batch_size)

    def held_out() -> float:
        with torch.no_grad():
            return mean_loss(task.model(test.inputs[:128]), test.targets[:128]).item()

    before = held_out()
    for batch in batches:
        optimizer.zero_grad()
        mean_loss(task.model(train.inputs[batch]), train.targets[batch]).backward()
        optimizer.step()
    assert held_out() < 0.98 * before


@pytest.mark.parametrize("model", UNTUNED)
def test_models_have_the_size_and_the_samples_that_are_documented(model: Model) -> None:
    millions = {
        "gpt": 0.37, "gpt-10m": 10.77, "gpt2-small": 124.44, "gpt2-medium": 354.82, "lstm": 0.41,
        "unet": 0.12, "gnn": 0.05, "dlrm": 0.07, "vit": 0.20, "autoencoder": 0.33,
    }  # fmt: skip
    with torch.device("meta"):  # which takes no memory
        count = parameter_count(make_model(model))
    assert count / 1e6 == pytest.approx(millions[model], abs=0.006)
    assert len(make_task(make_config(model=model)).data.train) == PRESETS[model].samples


def test_pairs_of_bytes_are_tokens_of_gpt2() -> None:
    assert SHAPES["gpt2"].vocabulary == PAIRS
    assert pairs_of(b"\x00\x01\xff\xfe\x07", PAIRS).tolist() == [1, 0xFFFE - PAIRS]
    found = library_pairs()
    assert torch.equal(found.train.inputs[:, 1:], found.train.targets[:, :-1])
    assert len(found.test) == 32


def test_gpt_predicts_a_byte_from_those_before_it_alone() -> None:
    torch.manual_seed(1)
    gpt, text = Gpt(SHAPES["small"]).eval(), library_bytes().test.inputs[:2]
    changed = text.clone()
    changed[:, 40] = 255 - changed[:, 40]
    with torch.no_grad():
        one, other = gpt(text), gpt(changed)
    assert torch.equal(one[:, :40], other[:, :40]) and not torch.equal(one[:, 40:], other[:, 40:])


def test_bytes_have_their_successors_as_targets_and_no_line_is_trained_and_held_out() -> None:
    data = library_bytes()
    assert torch.equal(data.train.inputs[:, 1:], data.train.targets[:, :-1])
    lines = {bytes(line.tolist()) for line in data.train.inputs}
    shared = sum(bytes(line.tolist()) in lines for line in data.test.inputs)
    assert shared < 0.02 * len(data.test)  # lines of nothing but spaces or stars


def test_generated_data_follow_their_rules() -> None:
    drawn = scenes().train.targets
    assert set(drawn.unique().tolist()) == set(range(KINDS + 1))
    assert 0.3 < (drawn > 0).float().mean() < 0.7  # neither class 0 nor the shapes alone are a good answer
    edges, members = graphs().train.inputs[..., :NODES], graphs().train.targets
    same = members[:, :, None] == members[:, None, :]
    assert torch.equal(edges, edges.transpose(1, 2)) and not edges.diagonal(dim1=1, dim2=2).any()
    assert edges[same].mean() > 4 * edges[~same].mean()
    samples = clicks().train
    rows = samples.inputs[:, :TABLES]
    assert torch.equal(rows, rows.round()) and rows.min() >= 0 and rows.max() < ROWS
    assert 0.4 < samples.targets.float().mean() < 0.6


def test_a_loss_that_is_no_number_ends_the_training_with_a_sentence() -> None:
    task = make_task(make_config(model="autoencoder"))
    with torch.no_grad():
        next(task.model.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match="training diverged"):
        evaluate(task.model, task.data.test, 0, 1)
