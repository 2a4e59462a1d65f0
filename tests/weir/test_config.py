# SPDX-License-Identifier: Apache-2.0
"""Settings are checked before anything starts, and an error names the option and what would do."""

from pathlib import Path

import pytest

from weir.compare.config import make_comparison
from weir.host_agent.compression.loss_policy import LossPolicy
from weir.methods import load_plugin
from weir.network import NetworkSpec
from weir.train.config import PRESETS, ConfigError, make_config
from weir.train.task import make_task
from weir.train.words import training_line


@pytest.mark.parametrize("model", PRESETS)
def test_a_model_brings_its_preset(model: str) -> None:
    config = make_config(model=model)
    assert (config.data, config.batch_size, config.lr) == (
        PRESETS[model].data,
        PRESETS[model].batch_size,
        PRESETS[model].lr,
    )


def test_what_is_given_wins_over_the_preset() -> None:
    assert make_config(model="cnn", batch_size=3, lr=0.5).batch_size == 3
    assert make_config(lane_bits="16").lane_bits == 16


@pytest.mark.parametrize(
    ("given", "named", "remedy"),
    [
        ({"density": 0.0}, "--density", "greater than 0"),
        ({"density": 1.01}, "--density", "less than or equal to 1"),
        ({"density": float("nan")}, "--density", "nan"),
        ({"workers": 0}, "--workers", "greater than or equal to 1"),
        ({"workers": 33}, "--workers", "less than or equal to 32"),
        ({"servers": 2}, "--set servers", "--mode ps"),
        ({"mode": "ps", "workers": 31, "servers": 2}, "--set servers=2", "at most 32 together"),
        ({"mode": "ps", "method": "ds-sync"}, "--mode ps", "no gradients to servers"),
        ({"mode": "ps", "loss_budget": 0.1}, "--mode ps", "leave out --loss-budget"),
        ({"consistency": "async"}, "--consistency", "--mode ps"),
        ({"mode": "ps", "consistency": "ssp"}, "'ssp'", "ssp:S"),
        ({"mode": "ps", "push_filter": "0.1"}, "filter 0.1", "method dense"),
        ({"mode": "ps", "consistency": "async", "pull_filter": "1:log"}, "'1:log'", "sqrt"),
        (
            {"mode": "ps", "method": "dense", "consistency": "async", "loss": 0.1},
            "--consistency async",
            "--hosts namespaces",
        ),
        (
            {"mode": "ps", "method": "dense", "consistency": "ssp:1", "topology": "leaf-spine-2x2"},
            "--consistency ssp:1",
            "--hosts namespaces",
        ),
        ({"block": 100}, "--set block", "32, 64, 128 or 256"),
        ({"method": "best"}, "--method", "topk-block"),
        ({"encoding": "blocks:100"}, "--set encoding", "100"),
        ({"encoding": "dense"}, "--set encoding", "'dfs' needs a mask"),
        ({"method": "powersgd", "encoding": "blocks:64"}, "--set encoding", "powersgd"),
        ({"method": "ds-sync", "exclude": ("1d",)}, "--set exclude", "ds-sync"),
        ({"method": "ds-sync", "loss_budget": 0.1}, "--loss-budget", "ds-sync"),
        ({"lane_bits": "12"}, "--set lane_bits", "32, 16, 8 or 'auto'"),
        ({"lane_bits": "8", "method": "ds-sync"}, "--set lane_bits", "ds-sync"),
        ({"lane_bits": "8", "workers": 12, "loss_budget": 0.1}, "--set lane_bits", "choose 16 or 32"),
        ({"lane_bits": "auto", "lane_error": 0.0}, "--set lane_error", "greater than 0"),
        ({"method": "compress", "lane_bits": "8"}, "--set lane_bits", "compress"),
        ({"method": "compress", "update_share": 0}, "--set update_share", "greater than 0"),
        ({"method": "compress", "update_bits": "4"}, "--set update_bits", "1, 8, 16 or 32"),
        ({"method": "outer", "outer_method": "best"}, "--method outer", "no sparsifier is called 'best'"),
        ({"outer_steps": 4, "outer_overlap": 4}, "--method outer", "overlap=4"),
        ({"outer_steps": 4, "outer_method": "topk", "outer_bits": "1"}, "--method outer", "bits=1"),
        ({"outer_steps": 0}, "--set outer_steps", "greater than or equal to 1"),
        ({"optimizer": "adam"}, "--set optimizer=adam", "give --lr, too; the model's own rate is for sgd"),
        ({"optimizer": "lion", "lr": 0.1}, "--set optimizer", "'sgd', 'momentum', 'adam' or 'adamw'"),
        ({"warmup_steps": -1}, "--set warmup_steps", "greater than or equal to 0"),
        ({"evaluate_every": 0}, "--set evaluate_every", "greater than or equal to 1"),
        ({"model": "vgg"}, "--model", "'resnet18', 'cnn', 'mlp', 'lm', 'bag', 'gpt'"),
        ({"model": "cnn", "data": "stdlib"}, "'cnn'", "'digits'"),
        ({"epochs": 0}, "--epochs", "greater than or equal to 1"),
        ({"batch_size": 0}, "--batch-size", "greater than or equal to 1"),
        ({"name": "a/b"}, "--set name", "'a/b'"),
        ({"topology": "ring"}, "--topology", "leaf-spine-2x2"),
        ({"hosts": "vms"}, "--hosts", "'processes' or 'namespaces'"),
        ({"hosts": "namespaces", "pcap": Path("run.pcapng")}, "--set pcap", "tcpdump"),
        ({"topology": "leaf-spine-4x1", "workers": 3}, "--workers 3", "4 racks"),
        ({"links": "fast"}, "--links", "100mbit"),
        ({"links": "100"}, "--links", "100mbit"),
        ({"exclude": ("*.bais",), "model": "cnn"}, "--set exclude", "layers.0.weight"),
        ({"batch_size": 100_000, "model": "cnn"}, "--batch-size 100000", "the maximum is 359"),
        ({"loss": 0.6}, "--set loss", "less than or equal to 0.5"),
        ({"loss": -0.1}, "--set loss", "greater than or equal to 0"),
        ({"background": "bursts"}, "--set background", "'none' or 'incast'"),
        ({"background": "incast"}, "--set background", "give --links one"),
        ({"background_load": 0}, "--set background_load", "greater than 0"),
        ({"background_dscp": 64}, "--set background_dscp", "less than or equal to 63"),
        ({"loss_budget": 1.0}, "--loss-budget", "less than 1"),
        ({"loss_policy": Path("no/such.json")}, "--set loss_policy", "weir calibrate writes one"),
        ({"loss_policy": Path(__file__), "loss_budget": 0.1}, "--loss-budget", "give one of them"),
    ],
)
def test_a_wrong_setting_is_named(given: dict[str, object], named: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(**given)
    assert named in str(caught.value) and remedy in str(caught.value)


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(workers=0, density=2, model="vgg")
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "--workers",
        "--model",
        "--density",
    ]


def test_flows_take_a_network_of_namespaces_whose_switches_have_the_queues() -> None:
    flows = {
        "mode": "ps",
        "method": "dense",
        "consistency": "ssp:2",
        "hosts": "namespaces",
        "links": "50mbit",
    }
    for given in ({}, {"topology": "leaf-spine-2x2"}):
        assert not make_config(**flows, **given).queues_in_switches
    for given in ({"loss": 0.01}, {"background": "incast"}, {"loss_budget": 0.1}):
        assert make_config(**flows, **given).queues_in_switches


def test_the_network_is_one_perfect_switch_unless_asked_otherwise() -> None:
    assert not make_config().network_matters
    assert make_config().network == NetworkSpec()
    for given in ({"topology": "leaf-spine-2x2"}, {"links": "1gbit"}, {"loss": 0.01}, {"loss_budget": 0.1}):
        assert make_config(**given).network_matters
    network = make_config(topology="leaf-spine-2x3", links="100mbit", loss=0.01, background="incast").network
    assert (network.shape.racks, network.shape.spines, network.rate_bps) == (2, 3, 10**8)
    assert (network.loss, network.background, network.load) == (0.01, "incast", 0.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "dense"}, "mlp on digits, 4 workers, dense, encoding auto"),
        ({"method": "topk", "density": 0.01}, "mlp on digits, 4 workers, topk, density 0.01, encoding auto"),
        (
            {"method": "omnireduce", "block": 64, "exclude": ["1d"]},
            "mlp on digits, 4 workers, omnireduce, density 0.05, block 64, encoding blocks:64, whole: 1d",
        ),
        (
            {"method": "threshold", "threshold": 0.5, "encoding": "shared-mask:4"},
            "mlp on digits, 4 workers, threshold, threshold 0.5, encoding shared-mask:4",
        ),
        ({"method": "powersgd", "powersgd_rank": 3}, "mlp on digits, 4 workers, powersgd, rank 3"),
        ({"method": "ds-sync", "workers": 8}, "mlp on digits, 8 workers, ds-sync"),
        (
            {"method": "compress", "update_share": 0.5},
            "mlp on digits, 4 workers, compress, bits 1, share 0.5, sampled 0.06",
        ),
        (
            {"method": "compress", "optimizer": "adamw", "lr": 0.01},
            "mlp on digits, 4 workers, compress, bits 1, share 1, sampled 0.06, by adamw",
        ),
        (
            {"outer_steps": 8, "outer_method": "dense", "outer_momentum": 0.9},
            "mlp on digits, 4 workers, outer, steps of its own 8, sending dense, density 1, outer rate 1, "
            "outer momentum 0.9, decay 1, steps beside a sum 0",
        ),
    ],
)
def test_a_run_is_told_in_one_line_with_the_settings_its_method_reads(
    given: dict[str, object], words: str
) -> None:
    assert training_line(make_config(model="mlp", **given)) == words


def test_steps_of_its_own_make_the_method_outer_unless_another_is_given() -> None:
    def found(**given: object) -> tuple[str, int | None]:
        config = make_config(model="mlp", **given)
        return config.method, config.outer_steps

    assert found(outer_steps=8) == ("outer", 8)
    assert found(method="outer") == ("outer", 20)
    assert found() == ("dfs", None)
    assert found(outer_steps=8, method="dense")[0] == "dense"


def test_another_models_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    found = LossPolicy.from_budget(0.1).model_copy(update={"calibration": {"settings": {"model": "mlp"}}})
    found.save(path)
    make_config(model="mlp", loss_policy=path)
    with pytest.raises(ConfigError, match="calibrated for mlp, not for cnn: take weir calibrate --model cnn"):
        make_config(model="cnn", loss_policy=path)
    LossPolicy.from_budget(0.1).save(path)  # of no model in particular
    make_config(model="cnn", loss_policy=path)


@pytest.mark.parametrize("model", ["cnn", "lm", "bag"])
def test_a_preset_knows_how_many_samples_there_are(model: str) -> None:
    assert len(make_task(make_config(model=model)).data.train) == PRESETS[model].samples


def test_what_a_plugin_must_be(tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty.py", tmp_path / "broken.py"
    empty.write_text("x = 1\n")
    broken.write_text("import no_such_module\n")
    for path, says in (
        (tmp_path / "none.py", "no such file"),
        (empty, "registers no method"),
        (broken, "ModuleNotFoundError: No module named 'no_such_module'"),
    ):
        with pytest.raises(ConfigError, match=f"--plugin: .*{says}"):
            make_config(plugin=[path])
        with pytest.raises(ConfigError, match=f"--plugin: .*{says}"):
            make_comparison("dense", seeds=1, plugin=[path])


ENCODE = "def encode(self, gradient, span): return gradient"


@pytest.mark.parametrize(
    ("base", "body", "says"),
    [
        ("Sparsifier", ["name = 'mine'", ENCODE], "has no summary"),
        ("Sparsifier", ["summary = 'Mine.'", ENCODE], "has no name"),
        ("Sparsifier", ["name, summary = 'mine', 'Mine.'"], "has no encode"),
        ("Sparsifier", ["name, summary = 'my,ne', 'Mine.'", ENCODE], "is called 'my,ne': a name is made of"),
        ("Sparsifier", ["name, summary = 'topk', 'Mine.'", ENCODE], "is called 'topk', as another method is"),
        (
            "Sparsifier",
            ["name, summary = 'mine', 'Mine.'", "def encode(self, gradient): return gradient"],
            r"has no function encode\(self, gradient, span\), but another encode",
        ),
        (
            "Sparsifier",
            ["name, summary = 'mine', 'Mine.'", ENCODE, "def decode(self): return None"],
            r"has no function decode\(self, total\), but another decode",
        ),
        (
            "Sparsifier",
            ["name, summary = 'mine', 'Mine.'", ENCODE, "def __init__(self, options): missing"],
            "cannot be made",
        ),
        ("SparsifierOptions", ["name, summary = 'mine', 'Mine.'", ENCODE], "is no subclass of"),
    ],
)
def test_an_incomplete_plugin_is_refused_by_file_and_class(
    tmp_path: Path, base: str, body: list[str], says: str
) -> None:
    path = tmp_path / "plugin.py"
    lines = ["import weir.torch", "@weir.torch.register_sparsifier", f"class Mine(weir.torch.{base}):"]
    path.write_text("\n".join([*lines, *(f"    {line}" for line in body)]))
    with pytest.raises(ValueError, match=rf"plugin\.py: class Mine {says}"):
        load_plugin(path)
