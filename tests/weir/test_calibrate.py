# SPDX-License-Identifier: Apache-2.0
"""``weir calibrate``: loss is injected where it is said, searches find what holds, policies can be read."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.harness.commands import WEIR, Command
from tests.harness.forked import forked_pools  # noqa: F401
from tests.harness.processes import children, wait_until_gone
from weir.calibrate import report, trial
from weir.calibrate.config import GRID, LENGTHS, QUICK_GRID, make_calibration
from weir.calibrate.runner import Calibration, Check
from weir.calibrate.search import (
    Finding,
    Measurement,
    Question,
    bisect,
    combined,
    policy,
    questions,
    whole_budget,
)
from weir.calibrate.trial import Trial, TrialOutcome
from weir.cli import app
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.host_agent.compression.sparsifiers import base
from weir.train.config import PRESETS, ConfigError, make_config
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

EVERYTHING = ((1.0,) * MAGNITUDE_CLASSES,) * LAYER_CLASSES


# The search.


@given(st.integers(0, len(GRID)), st.floats(0.1, 3))
def test_the_largest_share_that_holds_is_found(held: int, tolerance: float) -> None:
    asked = []

    def measure(p: float) -> Measurement:
        asked.append(p)
        return Measurement(p, (0.9,), p, drop=0.0 if p in GRID[:held] else 2 * tolerance)

    finding = bisect(Question("all", 0, EVERYTHING), GRID, tolerance, measure)
    assert finding.tolerated == (GRID[held - 1] if held else 0)
    assert finding.beyond == (GRID[held] if held < len(GRID) else None)
    assert len(asked) == len(set(asked)) <= len(GRID).bit_length()
    assert [m.p for m in finding.measurements] == sorted(asked)
    assert (finding.at is None) == (held == 0)


def test_exactly_the_tolerance_is_tolerated() -> None:
    def measure(p: float) -> Measurement:
        return Measurement.of(p, [TrialOutcome(0.75, p), TrialOutcome(0.5, p)], [0.625, 0.630])

    finding = bisect(Question("all", 0, EVERYTHING), (0.5,), 0.25, measure)
    assert (finding.tolerated, finding.beyond) == (0.5, None)
    assert finding.measurements[0].drop == pytest.approx(0.25)
    assert bisect(Question("all", 0, EVERYTHING), (0.5,), 0.24, measure).tolerated == 0


def test_each_class_that_the_model_has_is_asked_about() -> None:
    asked = list(questions([0, 1, 3]))
    assert [question.name for question in asked] == [
        "all", "all, not sent again", "layer 0", "layer 1", "layer 3",
        "magnitude 0", "magnitude 1", "magnitude 2",
    ]  # fmt: skip
    assert [question.error_feedback for question in asked] == [True, False] + [True] * 6
    assert [question.error_feedback for question in questions([1], False)] == [True] + [False] * 5
    table = asked[3].losses(0.3).budgets
    assert [sum(row) for row in table] == pytest.approx([0, 0.9, 0, 0])
    assert [row[1] for row in asked[6].losses(0.3).budgets] == [0.3] * LAYER_CLASSES
    assert sum(sum(row) for row in asked[6].losses(0.3).budgets) == pytest.approx(0.3 * LAYER_CLASSES)


def findings(layers: dict[int, float], magnitudes: list[float]) -> list[Finding]:
    found = [Finding(q, layers[q.index], None, ()) for q in questions(list(layers)) if q.kind == "layer"]
    return found + [Finding(q, magnitudes[q.index], None, ()) for q in questions([]) if q.kind == "magnitude"]


def test_a_block_may_lose_what_both_of_its_classes_tolerate() -> None:
    question = combined(findings({0: 0.5, 2: 0.1, 3: 0.3}, [0.9, 0.2, 0.05]))
    assert question.shape[0] == (0.5, 0.2, 0.05)
    assert question.shape[1] == question.shape[2] == (0.1, 0.1, 0.05)  # 1 is absent: the stricter side
    assert question.shape[3] == (0.3, 0.2, 0.05)
    made = policy(Finding(question, 0.5, 1.0, ()), {"seeds": 3})
    assert made.budgets[0] == (0.25, 0.1, 0.025)
    assert made.tensor[0] == pytest.approx((0.25 + 0.1 + 0.025) / 3)
    assert policy(Finding(question, 0.0, 0.05, ()), {}).lossless


# The injected loss.


def tiny(**changes: Any) -> Any:
    options = {"model": "mlp", "workers": 2, "epochs": 1, "max_steps": 6, "method": "dense", "block": 32}
    return make_config(**{**options, **changes})


def losing(p: float, question: str = "all") -> LossPolicy:
    return next(q for q in questions(range(LAYER_CLASSES)) if q.name == question).losses(p)


def test_a_trial_repeats_itself_and_loses_the_share_it_was_told() -> None:
    first, second = (trial.run(Trial(tiny(), losing(0.3))) for _ in range(2))
    assert first == second
    assert first.lost == pytest.approx(0.3, abs=0.01)
    assert trial.run(Trial(tiny(seed=2), losing(0.3))) != first


def test_a_whole_budget_is_lost_of_the_smallest_blocks() -> None:
    question = whole_budget(0.1)
    assert [row[0] for row in question.losses(1).budgets] == pytest.approx([0.3, 0.24, 0.18, 0.12])
    assert all(not any(row[1:]) for row in question.losses(1).budgets)
    train = make_config(model="mlp", workers=2, method="dense", epochs=1, max_steps=4)
    assert 0.02 < trial.run(Trial(train, question.losses(1))).lost < 0.1
    large = whole_budget(0.5).losses(1)
    assert large.budgets[0][0] > large.budgets[0][2] - 1e-9
    assert np.mean(large.budgets, axis=1) == pytest.approx([0.5, 0.4, 0.3, 0.2])


def test_only_blocks_of_the_class_are_lost() -> None:
    shares = [trial.run(Trial(tiny(), losing(0.5, f"layer {layer}"))).lost for layer in range(LAYER_CLASSES)]
    assert sum(shares) == pytest.approx(0.5, abs=0.02)
    shares = [trial.run(Trial(tiny(), losing(0.5, f"magnitude {k}"))).lost for k in range(MAGNITUDE_CLASSES)]
    assert sum(shares) == pytest.approx(0.5, abs=0.02)
    assert min(shares) > 0.1  # about a third of the blocks each


def final(losses: LossPolicy, *, error_feedback: bool = True, **changes: Any) -> list[Any]:
    config = tiny(**changes)
    training = trial._Training(Trial(config, losses, error_feedback), trial.make_task(config))
    training.run()
    return [parameter.detach().clone() for parameter in training.parameters]


def test_no_loss_is_the_same_with_and_without_the_machinery() -> None:
    """A policy that allows loss but loses nothing, against one that needs no residuals and classes."""
    machinery = LossPolicy(
        budgets=((1e-12,) * MAGNITUDE_CLASSES,) * LAYER_CLASSES, tensor=(1.0,) * LAYER_CLASSES
    )
    for with_it, without in zip(final(machinery), final(LossPolicy.from_budget(0)), strict=True):
        assert with_it.equal(without)


def test_losing_everything_leaves_the_parameters_as_they_were() -> None:
    started = trial.make_task(tiny()).model.parameters()
    for before, after in zip(started, final(losing(1.0)), strict=True):
        assert before.equal(after)


def test_error_feedback_makes_up_for_what_was_lost() -> None:
    """With small steps what is delivered late counts the same; what is never delivered does not."""
    options = {"lr": 1e-4, "max_steps": 40}
    lossless, late, never = (
        final(LossPolicy.from_budget(0), **options),
        final(losing(0.5), **options),
        final(losing(0.5), error_feedback=False, **options),
    )
    start = [parameter.detach() for parameter in trial.make_task(tiny()).model.parameters()]

    def distance(one: list[Any], other: list[Any]) -> float:
        return sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True)) ** 0.5

    moved = distance(lossless, start)
    assert distance(late, lossless) < 0.15 * moved
    assert distance(never, lossless) > 0.35 * moved


# The command.


def test_settings_come_from_the_model_unless_given() -> None:
    config = make_calibration(model="cnn", tolerance=1.0)
    assert (config.epochs, config.seeds, config.grid) == (LENGTHS["cnn"].epochs, 3, GRID)
    assert config.out == Path("policy-cnn.json")
    quick = make_calibration(model="cnn", quick=True, workers=2)
    assert (quick.seeds, quick.grid) == (1, QUICK_GRID)
    assert quick.epochs < config.epochs
    assert make_calibration(model="cnn", quick=True, epochs=9, seeds=2).epochs == 9
    assert set(LENGTHS) == {name for name, preset in PRESETS.items() if preset.optimizer == "sgd"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"model": "vgg"}, "--model: .*'mlp'.* not 'vgg'"),
        ({"model": "gpt"}, "--model: calibration trains by SGD: .*mlp.*, not gpt"),
        ({"model": "mlp", "tolerance": 0}, "--tolerance: .* greater than 0, not 0"),
        ({"model": "mlp", "seeds": 0}, "--seeds: .* not 0"),
        ({"model": "mlp", "workers": 33}, "--workers: .* not 33"),
        ({"model": "mlp", "block": 100}, "--set block: .* not 100"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_calibration(**settings)


def test_the_command_writes_a_policy_a_picture_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_REGISTRY", {**base._REGISTRY})
    out = tmp_path / "new" / "policy.json"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import weir.torch\n"
        "@weir.torch.register_sparsifier\n"
        "class Everything(weir.torch.Sparsifier):\n"
        "    name, summary = 'everything', 'All of it.'\n"
        "    def encode(self, gradient, span):\n"
        "        return gradient\n"
    )
    command = ["calibrate", "--model", "mlp", "--quick", "--workers", "2"]
    command += ["--epochs", "1", "--max-steps", "4", "--tolerance", "100", "--policy", str(out)]
    command += ["--processes", "1", "--plugin", str(plugin), "--method", "everything"]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "160"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for words in ("layer class 0 (front)", "magnitude class 2 (large)", "not sent again", "whole tensor"):
        assert words in done.stdout
    assert "One seed: differences in accuracy may be chance" in done.stdout
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    made = LossPolicy.load(out)
    assert not made.lossless  # any accuracy was good enough
    assert made.budgets == ((max(QUICK_GRID),) * MAGNITUDE_CLASSES,) * LAYER_CLASSES
    written = json.loads(out.read_text())["calibration"]
    assert written["settings"]["model"] == "mlp" and written["settings"]["method"] == "everything"
    assert len(written["lossless_accuracies"]) == 1
    assert {finding["lost"] for finding in written["findings"]} == {
        "all", "layer", "magnitude", "policy",
    }  # fmt: skip


def test_the_command_fails_when_a_budget_costs_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of every gradient is lost, and never sent again: nothing is learnt."""
    monkeypatch.chdir(tmp_path)
    command = ["calibrate", "--model", "mlp", "--workers", "2", "--seeds", "1"]
    command += [
        "--epochs",
        "1",
        "--max-steps",
        "60",
        "--processes",
        "1",
        "--loss-budget",
        "1",
        "--no-error-feedback",
    ]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 1, done.output
    assert "never sent again: more than the tolerance" in " ".join(done.stdout.split())
    assert list(tmp_path.iterdir()) == []
    costs = [Measurement(1.0, (0.9,), 0.1, drop) for drop in (0.4, 0.6)]
    config = make_calibration(model="mlp", loss_budget=0.1)
    assert [Check(config, (0.9,), one).tolerated for one in costs] == [True, False]


def test_an_interrupt_ends_every_process(tmp_path: Path) -> None:
    words = (*WEIR, "calibrate", "--model", "mlp", "--processes", "2")
    with Command(*words, "--policy", tmp_path / "policy.json") as process:
        while len(started := children(process.pid)) < 3:  # two that train, and what keeps track of them
            assert process.returncode is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        said = process.said()
    assert (process.returncode, "interrupted; nothing was written" in said) == (130, True), said
    wait_until_gone(*started)
    assert list(tmp_path.iterdir()) == []


def test_the_command_refuses_wrong_options() -> None:
    done = CliRunner().invoke(app, ["calibrate", "--model", "vgg"])
    assert done.exit_code == 2
    assert "weir calibrate: --model" in done.stderr


# Nothing found.


def intolerant(layers: float, magnitudes: float, whole: float, seeds: int = 1) -> Calibration:
    """Return a calibration in which classes tolerate these shares, and all at once this scale of them."""
    config = make_calibration(model="mlp", quick=True, seeds=seeds)
    found = findings(dict.fromkeys(range(LAYER_CLASSES), layers), [magnitudes] * MAGNITUDE_CLASSES)
    at_once = Finding(combined(found), whole, None, ())
    return Calibration(config, (0.9,) * seeds, (10,) * LAYER_CLASSES, tuple(found), at_once)


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ((0.0, 0.0, 0.0), "no class tolerated the loss of 10% of its blocks, the least that was tried"),
        ((0.4, 0.0, 1.0), "a class that tolerated no loss: magnitude class 0 (small), magnitude class 1"),
        ((0.0, 0.4, 1.0), "a class that tolerated no loss: layer class 0 (front), layer class 1"),
        ((0.4, 0.4, 0.0), "tolerated some loss one by one, but not all at once"),
    ],
)
def test_a_calibration_that_finds_nothing_says_why(shares: tuple[float, float, float], says: str) -> None:
    done = intolerant(*shares)
    assert done.policy.lossless
    assert says in report.nothing(done)
    assert "none is written to policy-mlp.json" in report.nothing(done)
    assert "more --seeds" in report.nothing(done)
    assert "more --seeds" not in report.nothing(intolerant(*shares, seeds=3))


def test_the_command_writes_no_policy_that_allows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.calibrate.runner.calibrate", lambda *_: intolerant(0.0, 0.0, 0.0))
    out = tmp_path / "policy.json"
    out.write_text("an earlier one")
    done = CliRunner().invoke(app, ["calibrate", "--model", "mlp", "--quick", "--policy", str(out)])
    assert done.exit_code == 1
    assert "weir calibrate: no class tolerated" in done.output
    assert out.read_text() == "an earlier one"
    assert not out.with_suffix(".png").exists()


def test_a_policy_that_allows_something_is_not_complained_about() -> None:
    assert not intolerant(0.4, 0.4, 1.0).policy.lossless
