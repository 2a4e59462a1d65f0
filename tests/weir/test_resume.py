# SPDX-License-Identifier: Apache-2.0
"""A run that goes on from a checkpoint ends as one without a break; finished runs are compared."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.harness.effort import effort
from tests.harness.forked import forked_clusters  # noqa: F401
from tests.weir.test_train import VARIABLES
from tests.weir.test_train import folder as only
from weir.cli import app
from weir.compare.finished import FinishedError, compared
from weir.train import checkpoint
from weir.train.checkpoint import CheckpointError, latest, publish, write_part
from weir.train.config import ConfigError, make_config
from weir.train.resuming import configured, resumed

WORKERS = effort(2, 3)
SHORT = ["--model", "mlp", "--workers", str(WORKERS), "--epochs", "2", "--max-steps", "4", "--density", "0.1"]
SHORT += effort(["--no-reference"], [])
RUNS = effort(1, 2)  # of a training: Weir's, and the reference


def weir(*words: str) -> str:
    """Run ``weir`` in this process, which has torch already; return its output."""
    done = CliRunner().invoke(app, words, env=VARIABLES, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def checksums(out: Path) -> dict[str, str]:
    summary = json.loads((only(out) / "summary.json").read_text())
    assert summary["status"] == "complete"
    return {name: run["replicas"]["checksum"] for name, run in summary["runs"].items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a run without a break is, which wrote checkpoints after 3 and 6 of its 8 steps."""
    out = tmp_path_factory.mktemp("whole") / "runs"
    weir("train", *SHORT, "--method", "dfs", "--set", "save_every=3", "--out", str(out))
    return out


def test_a_run_that_goes_on_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """From the middle of the second epoch, Weir's run and its reference: whose sums depend on their order."""
    assert latest(only(whole) / "checkpoints" / "weir").step == 6
    assert [folder.name for folder in (only(whole) / "checkpoints" / "weir").glob("step-*")] == ["step-6"]
    output = weir("train", "--resume", str(only(whole)), "--out", str(tmp_path / "runs"))
    assert f"going on after step 6 of {only(whole)}\n" in output
    assert checksums(tmp_path / "runs") == checksums(whole)
    steps = [
        json.loads(line)["step"]
        for line in (only(tmp_path / "runs") / "steps.jsonl").read_text().splitlines()
    ]
    assert steps == [7, 8] * RUNS
    runs = json.loads((only(tmp_path / "runs") / "summary.json").read_text())["runs"]
    assert [run["resumed_after_step"] for run in runs.values()] == [6] * RUNS


@pytest.mark.long
def test_a_run_from_a_written_config_ends_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    weir("train", "--config", str(only(whole) / "config.json"), "--out", str(tmp_path / "runs"))
    assert checksums(tmp_path / "runs") == checksums(whole)
    written = [json.loads((only(out) / "config.json").read_text()) for out in (whole, tmp_path / "runs")]
    assert {**written[0], "out": ""} == {**written[1], "out": ""}


def test_a_written_config_has_all_settings_and_options_replace_them(whole: Path) -> None:
    written = only(whole) / "config.json"
    same = make_config(**configured(written, {})).model_dump(mode="json")
    assert same.items() <= json.loads(written.read_text()).items()
    config = configured(written, {"lr": 0.5, "method": "topk"})
    assert make_config(**config).model_dump(include={"lr", "method", "density", "name", "resume"}) == {
        "lr": 0.5, "method": "topk", "density": 0.1, "name": "mlp-topk", "resume": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        *((text, "is not a file of settings") for text in ("[]", '{"hosts": 3}', '{"versions": 3}')),
        ('{"workerz": 3}', "no setting is called 'workerz'; did you mean workers"),
    ],
)
def test_a_file_without_settings_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"--config:? .*config\.json:? {says}"):
        configured(tmp_path / "config.json", {})


def test_compressed_updates_go_on_with_the_same_bits(tmp_path: Path) -> None:
    """Pending parts and moments are in the checkpoint; an evaluation between changes nothing."""
    options = [
        *SHORT,
        "--method",
        "compress",
        "--set",
        "optimizer=adam",
        "--lr",
        "0.01",
        "--set",
        "evaluate_every=2",
    ]
    weir("train", *options, "--set", "save_every=3", "--out", str(tmp_path / "whole"))
    weir("train", "--resume", str(only(tmp_path / "whole")), "--out", str(tmp_path / "rest"))
    assert checksums(tmp_path / "rest") == checksums(tmp_path / "whole")


def test_outer_steps_go_on_with_the_same_bits(tmp_path: Path) -> None:
    """Saved between two sums, and while one is under way; an evaluation between changes nothing."""
    options = [*SHORT, "--set", "outer_steps=2", "--set", "outer_density=0.3", "--set", "outer_overlap=1"]
    options += ["--set", "evaluate_every=2"]
    weir("train", *options, "--set", "save_every=2", "--out", str(tmp_path / "whole"))
    weir("train", "--resume", str(only(tmp_path / "whole")), "--out", str(tmp_path / "rest"))
    assert checksums(tmp_path / "rest") == checksums(tmp_path / "whole")


def test_a_checkpoint_that_was_not_finished_is_not_gone_on_from(tmp_path: Path) -> None:
    """Ranks write their parts; only when all have does the list name them, and older ones go."""
    for rank in range(2):
        write_part(tmp_path, 3, rank, {"rank": rank})
    publish(tmp_path, 3, 2)
    write_part(tmp_path, 6, 0, {"rank": 0})  # and the machine stops
    assert latest(tmp_path).step == 3
    assert [latest(tmp_path).part(rank)["rank"] for rank in range(2)] == [0, 1]
    write_part(tmp_path, 6, 1, {"rank": 1})
    publish(tmp_path, 6, 2)
    assert latest(tmp_path).step == 6
    assert [folder.name for folder in tmp_path.glob("step-*")] == ["step-6"]


# ---- what cannot go on


def test_settings_that_the_run_has_already_are_refused(whole: Path) -> None:
    done = CliRunner().invoke(app, ["train", "--resume", str(only(whole)), "--lr", "1", "--epochs", "9"])
    assert done.exit_code == 2
    assert f"--resume: {only(whole)} has its own settings: leave out --epochs, --lr" in done.output


def damaged(whole: Path, folder: Path) -> Path:
    shutil.copytree(only(whole), folder)
    return folder


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("config.json", None, "cannot read .*config.json: No such file"),
        ("config.json", "{", "config.json is not JSON"),
        ("config.json", "[]", "config.json is not a file of settings"),
        ("config.json", '{"workers": 99}', "config.json has settings that cannot be used"),
        (
            "checkpoints/weir/latest.json",
            None,
            "has no checkpoint: weir train --set save_every=STEPS writes them",
        ),
        ("checkpoints/weir/latest.json", "[1]", "latest.json is not a list of a checkpoint's files"),
        (
            "checkpoints/weir/latest.json",
            '{"schema": 1, "step": true, "checksums": ["a"]}',
            "is not a list of",
        ),
        (
            "checkpoints/weir/latest.json",
            '{"schema": 1, "step": 6, "checksums": ["a"]}',
            f"it has 1 workers, not {WORKERS}",
        ),
        ("checkpoints/weir/step-6/rank-1.pt", None, "cannot read .*rank-1.pt: No such file"),
        ("checkpoints/weir/step-6/rank-1.pt", "junk", "rank-1.pt is damaged: its checksum"),
    ],
)
def test_a_damaged_run_does_not_go_on(
    whole: Path, tmp_path: Path, name: str, text: str | None, says: str
) -> None:
    folder = damaged(whole, tmp_path / "run")
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=says):
        resumed(folder, {})


def test_other_versions_are_named(whole: Path, tmp_path: Path) -> None:
    folder = damaged(whole, tmp_path / "run")
    saved = json.loads((folder / "config.json").read_text())
    saved["versions"]["torch"] = "1.0"
    (folder / "config.json").write_text(json.dumps(saved))
    assert (
        f"not bit for bit, as versions differ (torch 1.0 before, {torch.__version__.split('+')[0]}"
        in (resumed(folder, {})[1])
    )


def as_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


@given(st.integers(0, 1 << 20), st.integers(0, 7))
def test_no_flipped_bit_is_loaded(place: int, bit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        files: dict[Path, bytes] = {}
        patch.setattr(checkpoint, "_read", lambda path: files[path])
        patch.setattr(Path, "mkdir", lambda *_args, **_named: None)
        patch.setattr(checkpoint, "write_atomically", lambda path, data: files.update({path: as_bytes(data)}))
        patch.setattr(Path, "exists", lambda path: path in files)
        folder = Path("/nowhere")
        write_part(folder, 3, 0, {"model": torch.arange(5.0)})
        publish(folder, 3, 1)
        assert torch.equal(latest(folder).part(0)["model"], torch.arange(5.0))
        path = folder / "step-3" / "rank-0.pt"
        data = bytearray(files[path])
        data[place % len(data)] ^= 1 << bit
        files[path] = bytes(data)
        with pytest.raises(CheckpointError, match="is damaged"):
            latest(folder).part(0)


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"mode": "ps", "method": "dense"}, "--set save_every: with --mode ps the servers have the state"),
        ({"method": "powersgd"}, "--set save_every: the state of method powersgd cannot be saved"),
    ],
)
def test_what_is_not_saved_is_refused_at_once(given_: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_config(model="mlp", save_every=3, **given_)


# ---- finished runs side by side


def summary(folder: Path, runs: Sequence[str] = ("weir",), **config: Any) -> Path:
    """Write a summary of a run of 10 steps; return the run's folder."""
    folder.mkdir()
    made = make_config(model=config.pop("model", "mlp"), **config)
    run = {
        "status": "complete", "steps": 10, "accuracy": 0.9, "training_s": 2.0, "step_s_median": 0.2,
        "per_worker": {"bytes_up": 1000, "bytes_down": 4000}, "resumed_after_step": None,
        "epochs": [{"step": 5, "accuracy": 0.5}, {"step": 10, "accuracy": 0.9}],
    }  # fmt: skip
    (folder / "summary.json").write_text(
        json.dumps(
            {
                "schema": 1,
                "status": "complete",
                "config": made.model_dump(mode="json"),
                "runs": dict.fromkeys(runs, run),
            }
        )
    )
    return folder


def test_finished_runs_are_set_side_by_side(whole: Path, tmp_path: Path) -> None:
    other = summary(tmp_path / "other", ("weir", "gloo"), workers=WORKERS, density=0.2)
    done = CliRunner().invoke(
        app,
        ["compare", str(only(whole)), str(other), "--out", str(tmp_path / "out")],
        env={"COLUMNS": "200"},
    )
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == f"mlp on digits, {WORKERS} workers, batches of 8"
    [row, reference] = [" ".join(line.split()) for line in lines if line.startswith("other ")]
    assert "90.0 % 10 100 B" in row
    assert reference.startswith("other (Gloo) dense, all-reduce 90.0 % 10 100 B")
    assert "density: 0.1, 0.2" in " ".join(done.output.split())
    folder = only(tmp_path / "out")
    assert (folder / "compared.png").read_bytes().startswith(b"\x89PNG")
    figures, name = json.loads((folder / "compared.json").read_text()), only(whole).name
    assert [run["name"] for run in figures["runs"]] == [
        *[name, f"{name} (Gloo)"][:RUNS], "other", "other (Gloo)",
    ]  # fmt: skip
    assert figures["runs"][-1]["bytes_up"] == 100.0
    arguments = ["compare", str(only(whole)), str(other), "--out", str(tmp_path / "again"), "--json"]
    printed = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert printed.pop("folder").startswith(str(tmp_path / "again"))
    assert printed == figures


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model": "cnn"}, r"b was trained with --model cnn, a with mlp: their steps are not alike"),
        ({"workers": 3}, r"b was trained with --workers 3, a with 4"),
        ({"batch_size": 16}, r"b was trained with --batch-size 16, a with 8"),
    ],
)
def test_runs_whose_steps_are_not_alike_are_refused(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(FinishedError, match=says):
        compared([summary(tmp_path / "a"), summary(tmp_path / "b", **config)])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, r"cannot read .*summary.json: No such file or directory; give the folder of a run"),
        ("{", "is not a JSON object"),
        ("[]", "is not a JSON object"),
        ("{}", "is not a summary of weir train"),
        ('{"schema": 9}', "has schema 9; this Weir reads 1"),
        ('{"schema": 1, "config": {"workers": -1}}', "has settings that cannot be used"),
        ('{"schema": 1, "shares_are_of": ""}', "comes from weir compare"),
    ],
)
def test_a_file_that_is_no_summary_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    bad = summary(tmp_path / "b")
    (bad / "summary.json").unlink()
    if text is not None:
        (bad / "summary.json").write_text(text)
    with pytest.raises(FinishedError, match=says):
        compared([summary(tmp_path / "a"), bad])


@pytest.mark.parametrize("value", [float("nan"), "1", True, None, [], {}])
@pytest.mark.parametrize("name", ["step_s_median", "training_s", "steps"])
def test_a_number_that_is_none_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    bad = summary(tmp_path / "b") / "summary.json"
    data = json.loads(bad.read_text())
    data["runs"]["weir"][name] = value
    bad.write_text(json.dumps(data))
    if name == "steps" and not value:
        with pytest.raises(FinishedError, match="b has no finished step"):
            compared([summary(tmp_path / "a"), bad])
        return
    with pytest.raises(FinishedError, match=r"is not a summary of weir train|NaN is no number of JSON"):
        compared([summary(tmp_path / "a"), bad])


def test_one_run_and_the_same_twice_are_no_comparison(tmp_path: Path) -> None:
    one = summary(tmp_path / "a")
    for runs, says in (([one], "cannot compare .* alone"), ([one, one], "a run is given twice")):
        with pytest.raises(FinishedError, match=says):
            compared(runs)


def test_settings_of_a_training_do_not_go_with_finished_runs(tmp_path: Path) -> None:
    runs = [str(summary(tmp_path / name)) for name in "ab"]
    done = CliRunner().invoke(app, ["compare", *runs, "--lr", "0.1"])
    assert done.exit_code == 2
    assert "weir compare: --lr: finished runs keep their settings" in done.output
