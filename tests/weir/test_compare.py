# SPDX-License-Identifier: Apache-2.0
"""``weir methods`` and ``weir compare``: names, figures, and the real thing from end to end."""

import base64
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.harness.commands import WEIR, Command
from tests.harness.effort import effort
from tests.harness.processes import children, wait_until_gone
from tests.weir.test_record import step
from tests.weir.test_train import folder, wait_for_steps
from weir.cli import app
from weir.compare.config import make_comparison
from weir.compare.results import Run, make_rows
from weir.compare.view import notes, result_view
from weir.host_agent.compression.sparsifiers import sparsifier_names
from weir.methods import methods, peers
from weir.train.config import ConfigError
from weir.train.messages import Evaluated, Ready, Sent, WireCounters
from weir.train.record import RunRecord
from weir.train.wirebytes import dense_bytes

BETWEEN = effort((), ("ds-sync",))  # the first methods and the last
STEPS = 40  # enough that the last training is still under way when it is interrupted


def start(out: Path, *options: str) -> Command:
    words = (*WEIR, "compare", "--model", "mlp", "--workers", "2", "--out", out, *options)
    return Command(*words, environment={"COLUMNS": "200"})


# Which methods there are.


def test_every_registered_sparsifier_is_a_method_and_says_what_it_does() -> None:
    done = CliRunner().invoke(app, ["methods", "--json"])
    assert done.exit_code == 0
    listed = {method["name"]: method for method in json.loads(done.output)}
    own = [name for name, method in listed.items() if method["kind"] != "peer"]
    assert set(own) == {*sparsifier_names(), "compress", "ds-sync", "outer", "powersgd"}
    assert own == sorted(own)
    assert listed.keys() - own == peers().keys() >= {"alone", "gloo", "gloo-fp16", "gloo-powersgd"}
    assert all(method["summary"] for method in listed.values())
    assert listed["omnireduce"]["encoding"] == "blocks:256" and listed["ds-sync"]["encoding"] is None
    assert listed["topk"]["promises_density"] and not listed["dense"]["promises_density"]


def test_the_list_for_people_has_a_line_for_each() -> None:
    done = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "150"})
    assert done.exit_code == 0
    for name in methods():
        assert any(line.startswith(f"{name} ") for line in done.output.splitlines())


# What a comparison is told.


def test_all_methods_are_trained_with_one_seed_before_the_next() -> None:
    comparison = make_comparison("dense, topk", seeds=2, model="mlp", density=0.1)
    assert [(method, seed) for method, seed, _ in comparison] == [
        ("dense", 1), ("topk", 1), ("dense", 2), ("topk", 2),
    ]  # fmt: skip
    for method, seed, config in comparison:
        assert (config.method, config.seed, config.density, config.reference) == (method, seed, 0.1, False)
    assert make_comparison("all", seeds=1, model="mlp").methods == tuple(methods())
    assert make_comparison("peers,dense", seeds=1, model="mlp").methods == (*peers(), "dense")


def test_what_a_method_has_no_use_for_is_left_out_for_it() -> None:
    given = {"encoding": "blocks:64", "exclude": ["1d"], "loss_budget": 0.1}
    comparison = make_comparison("topk,powersgd,ds-sync", seeds=1, model="mlp", **given)
    told = {method: (config.encoding, config.exclude, config.loss_budget) for method, _, config in comparison}
    assert told == {
        "topk": ("blocks:64", ("1d",), 0.1), "powersgd": (None, (), 0.0), "ds-sync": (None, (), 0.0),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("names", "given", "complaint"),
    [
        ("", {}, "--methods: name at least one"),
        ("dense,best", {}, "--methods: no such method: 'best'; the methods are .*dense"),
        ("topk,dense,topk", {}, "--methods: topk is named twice"),
        ("all,dense", {}, "--methods: dense is named twice"),
        ("dense", {"seeds": 0}, "--seeds: .* not 0"),
        ("dense", {"workers": 33}, "--workers: .* not 33"),
    ],
)
def test_wrong_settings_are_named(names: str, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_comparison(names, **{"seeds": 1, "model": "mlp", **given})


# The figures.


def run(method: str, seed: int, accuracy: float, up: tuple[int, int], sent: tuple[Sent, Sent]) -> Run:
    """Return two workers, one step."""
    comparison = make_comparison(method, seeds=seed, model="mlp", workers=2)
    record = RunRecord("weir", range(2), epochs=1)
    for rank in range(2):
        record.add(Ready(rank, parameters=1000, steps_per_epoch=1, samples=10, traffic_source="here"))
        traffic = WireCounters(bytes_up=up[rank], bytes_down=2 * up[rank])
        record.add(step(rank, 1, traffic=traffic, sent=sent[rank]))
        record.add(Evaluated(rank, 1, 0.5, accuracy, step=1, checksum=7))
    record.status = "complete"
    return Run(method, seed, comparison.trainings[method, seed], record)


def test_figures_are_of_all_seeds_and_shares_of_dense_training() -> None:
    comparison = make_comparison("dense,topk", seeds=2, model="mlp", workers=2)
    whole = (Sent(), Sent())
    chosen = (
        Sent(density=0.01, chosen=10, values=10, union=18, selection_s=0.002),
        Sent(density=0.03, chosen=30, values=30, union=18, selection_s=0.004),
    )
    runs = [
        run("dense", 1, 0.9, (1000, 3000), whole),
        run("topk", 1, 0.8, (100, 300), chosen),
        run("dense", 2, 0.9, (1000, 3000), whole),
        run("topk", 2, 0.9, (200, 200), chosen),
    ]
    dense, topk = make_rows(comparison, runs)
    assert (dense.up_of_dense, dense.down_of_dense, dense.build_up, dense.selection_s) == (1, 1, None, None)
    assert (topk.bytes_up, topk.bytes_down, topk.up_of_dense) == (200, 400, 0.1)
    assert topk.accuracy == pytest.approx(0.85) and topk.spread == pytest.approx(0.05 * 2**0.5)
    assert topk.density == pytest.approx(0.02) and topk.selection_s == pytest.approx(0.003)
    assert topk.build_up == pytest.approx(18 / 20) and topk.imbalance == pytest.approx(30 / 20)
    assert (topk.status, topk.step_s) == ("complete", pytest.approx(0.2))
    for width in (150, 60):
        console = Console(width=width)
        with console.capture() as capture:
            console.print(result_view(comparison, [dense, topk]))
        for words in ("85.0 ± 7.1 %", "200 B", "10.0 %", "1.50x", "topk"):
            assert words in capture.get()


def test_without_dense_training_shares_are_of_what_it_would_cost() -> None:
    comparison = make_comparison("topk", seeds=1, model="mlp", workers=2)
    (row,) = make_rows(comparison, [run("topk", 1, 0.9, (100, 100), (Sent(), Sent()))])
    assert row.up_of_dense is not None and 0 < row.up_of_dense < 100 / 4000


def test_notes_say_what_cannot_be_concluded_from_peers_and_what_suits_no_adam() -> None:
    def said(names: str, **given: Any) -> str:
        return "\n".join(notes(make_comparison(names, seeds=1, workers=2, **given), []))

    plain = said("dense,topk,gloo", model="mlp")
    assert "loopback" not in plain and "holds gradients back" not in plain
    assert "loopback" in said("dense,gloo", model="mlp", links="100mbit")
    for given, optimizer in (
        ({"model": "gpt"}, "AdamW"),
        ({"model": "gnn"}, "Adam"),
        ({"model": "mlp", "optimizer": "adam", "lr": 0.01}, "Adam"),
    ):
        words = f"--method topk holds gradients back, and {optimizer} divides by their history"
        assert words in said("dense,topk", **given) and "Use --method compress" in said("topk", **given)
    momentum = said("topk-block", model="mlp", optimizer="momentum", lr=0.03)
    assert "--method topk-block holds gradients back, and SGD repeats those that come late" in momentum
    filtered = said("dense", model="gpt", mode="ps", push_filter="0.003:lr")
    assert "--set push_filter=0.003:lr holds gradients back, and AdamW" in filtered
    assert "AdamW" not in said("dense,powersgd,ds-sync,gloo,compress", model="gpt")
    assert "holds gradients back" not in said("topk", model="gpt", optimizer="sgd", lr=0.1)


@pytest.mark.parametrize("dense", ["dense", "gloo"])
def test_the_share_of_denses_gain_over_one_worker_is_of_the_models_own_metric(dense: str) -> None:
    """Accuracy of the mlp; without one worker alone, or without a gain, there is none, and a note says so."""
    whole = (Sent(), Sent())
    reached = {"topk": 0.8, dense: 0.9, "alone": 0.7}
    comparison = make_comparison(",".join(reached), seeds=1, model="mlp", workers=2)
    runs = [run(name, 1, accuracy, (100, 100), whole) for name, accuracy in reached.items()]
    rows = make_rows(comparison, runs)
    assert [row.kept for row in rows] == pytest.approx([0.5, 1, 0])
    assert rows[0].loss == 0.5  # all have this one: no gain by it
    floorless = make_rows(comparison, runs[:2])
    assert [row.kept for row in floorless] == [None, None]
    assert any("needs --methods alone" in note for note in notes(comparison, floorless))
    level = make_rows(comparison, [run(name, 1, 0.9, (100, 100), whole) for name in reached])
    assert [row.kept for row in level] == [None] * 3
    assert any("there is none here" in note for note in notes(comparison, level))


# From end to end.


def test_methods_are_trained_side_by_side_until_somebody_interrupts(tmp_path: Path) -> None:
    """All but one to the end, then Ctrl-C in the last: no process is left, nothing that is known is lost."""
    names = ["powersgd", "gloo-powersgd", *BETWEEN, "dense"]
    before = STEPS * (len(names) - 1)
    options = ("--epochs", "1", "--max-steps", str(STEPS))
    with start(tmp_path, "--methods", ",".join(names), *options) as process:
        # Some of the last, as the traffic of a step that is cut short counts for those that were done.
        wait_for_steps(tmp_path, before + 5, limit_s=240)
        started = children(process.pid)
        process.send_signal(signal.SIGINT)
        output = process.said(60)
    wait_until_gone(*started)
    assert process.returncode == 130 and "Traceback" not in output, output
    number = len(names)
    last_words = (f"training {number} of {number}: dense, seed 1", f"{names[-2]}, seed 1: complete")
    for words in (*last_words, "build-up", "written to"):
        assert words in output
    where = folder(tmp_path)
    told = json.loads((where / "compare.json").read_text())
    assert (told["status"], told["shares_are_of"]) == ("interrupted", "the method dense, measured")
    low_rank, torchs, *averaged, dense = (told["methods"][name] for name in names)
    assert dense["status"] == "interrupted" and low_rank["status"] == "complete"
    assert dense["up_of_dense"] == 1 and 0 < low_rank["up_of_dense"] < 0.8
    assert low_rank["density"] < 0.6 and low_rank["bytes_up"] < torchs["bytes_up"]
    assert all(one["up_of_dense"] > 0.8 and one["density"] == 1 for one in averaged)
    *complete, last = told["runs"]
    assert (last["method"], last["status"]) == ("dense", "interrupted") and 0 < last["steps"] <= STEPS
    ours, torchs = (run["epochs"][-1]["loss"] for run in complete[:2])
    assert ours == pytest.approx(torchs, rel=1e-4)
    for run, in_steps in zip(complete, (True, True, *(None for _ in BETWEEN)), strict=True):
        assert (run["status"], run["steps"]) == ("complete", STEPS)
        assert run["replicas"] == {"identical_after_every_step": in_steps, "identical_at_end": True}
    lines = [json.loads(line) for line in (where / "steps.jsonl").read_text().splitlines()]
    assert [(line["method"], line["step"]) for line in lines[: before + 1]] == [
        *((name, number) for name in names[:-1] for number in range(1, STEPS + 1)), ("dense", 1),
    ]  # fmt: skip
    picture = (where / "compare.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    page = (where / "compare.html").read_text()
    assert base64.b64encode(picture).decode() in page and "powersgd, rank 2" in page


@pytest.mark.long
def test_peers_send_what_they_are_known_to_and_powersgd_and_whole_updates_equal_them(tmp_path: Path) -> None:
    names = "gloo,gloo-bf16,gloo-local,alone,gloo-powersgd,powersgd,compress,outer"
    options = ("--epochs", "1", "--max-steps", "20", "--set", "local_steps=1", "--set", "update_bits=32")
    options += ("--set", "outer_steps=1", "--set", "outer_bits=32")
    with start(tmp_path, "--methods", names, *options) as process:
        output = process.said(300)
    assert process.returncode == 0, output
    told = json.loads((folder(tmp_path) / "compare.json").read_text())
    up = {name: row["bytes_up"] for name, row in told["methods"].items()}
    loss = {run["method"]: run["epochs"][-1]["loss"] for run in told["runs"]}
    assert all(run["replicas"]["identical_at_end"] for run in told["runs"])
    assert up["alone"] == 0
    assert up["gloo-bf16"] == pytest.approx(up["gloo"] / 2, rel=0.1)
    assert loss["gloo-bf16"] == pytest.approx(loss["gloo"], rel=0.02)
    # The mean of parameters after a step of SGD each is a step along the mean gradient.
    assert loss["gloo-local"] == pytest.approx(loss["gloo"], rel=1e-4)
    assert loss["alone"] != pytest.approx(loss["gloo"], rel=1e-3)
    # At full width nothing is pending after a step.
    assert loss["compress"] == pytest.approx(loss["gloo"], rel=1e-4)
    assert loss["outer"] == pytest.approx(loss["gloo"], rel=1e-4)
    assert loss["powersgd"] == pytest.approx(loss["gloo-powersgd"], rel=1e-4)
    assert loss["powersgd"] != pytest.approx(loss["gloo"], rel=1e-3)
    assert up["powersgd"] < up["gloo-powersgd"] < up["gloo"] / 2


def test_weir_train_says_who_runs_a_peer() -> None:
    done = CliRunner().invoke(app, ["train", "--model", "mlp", "--method", "gloo-fp16"])
    assert done.exit_code == 2 and "weir compare" in done.output


@pytest.mark.long
def test_narrow_lanes_of_powersgds_factors_take_fewer_bytes_and_replicas_stay_alike(tmp_path: Path) -> None:
    found = {}
    for bits in ("32", "8"):
        options = (
            "--model",
            "cnn",
            "--methods",
            "powersgd",
            "--set",
            "powersgd_rank=4",
            "--set",
            f"lane_bits={bits}",
        )
        with start(tmp_path / bits, *options, "--epochs", "1", "--max-steps", "30") as process:
            output = process.said(300)
        assert process.returncode == 0, output
        (found[bits],) = json.loads((folder(tmp_path / bits) / "compare.json").read_text())["runs"]
        assert found[bits]["replicas"] == {"identical_after_every_step": True, "identical_at_end": True}
    # Two of the 30 steps send all, and the vectors are always whole.
    dense = 2 * dense_bytes(found["32"]["parameters"])
    up = {bits: run["per_worker"]["bytes_up"] - dense for bits, run in found.items()}
    assert up["8"] < 0.5 * up["32"]
    loss = {bits: run["epochs"][-1]["loss"] for bits, run in found.items()}
    assert loss["8"] != loss["32"] and loss["8"] < loss["32"] + 0.1
