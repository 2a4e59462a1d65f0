# SPDX-License-Identifier: Apache-2.0
"""Settings of a training on the command line: their help, and how ``train`` and ``compare`` take them."""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec

import typer
from rich.console import Console
from rich.table import Table

from weir.methods import PLUGIN_HELP
from weir.report.tables import Json, print_json
from weir.train.config import OPTIONS, ConfigError, TrainConfig, as_option

_Own = ParamSpec("_Own")

Workers = Annotated[int, typer.Option(help="Worker processes, 1 to 32.")]
Method = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="What to send; weir methods lists all. dense: every gradient in full. dfs suits models trained "
        "by SGD; for those trained by Adam or AdamW, use compress.",
    ),
]
Model = Annotated[
    str,
    typer.Option(
        help="By SGD: resnet18, cnn, mlp, lm (a small language model) or bag (of words). By Adam or AdamW: "
        "gpt, gpt-10m, gpt2-small, gpt2-medium, lstm, unet, gnn, dlrm, vit or autoencoder."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(help="digits (images) or stdlib (text of Python's library); default: the model's own."),
]
Epochs = Annotated[int, typer.Option(help="Passes over the training data.")]
MaxSteps = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS", help="Largest number of steps in each epoch, not in the run; default: all data."
    ),
]
EvaluateEvery = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Also evaluate on the held-out data every STEPS steps; default: only after each epoch.",
    ),
]
BatchSize = Annotated[int | None, typer.Option(help="Samples per worker and step; default: the model's own.")]
LearningRate = Annotated[float | None, typer.Option(help="Peak learning rate; default: the model's own.")]
ClipNorm = Annotated[
    float | None,
    typer.Option(metavar="NORM", help="Largest norm of gradients; default: the model's own, if any."),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="sgd, momentum (SGD with 0.9), adam or adamw; default: the model's own. Another one needs --lr.",
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        help="all-reduce: every worker gets the sum of the gradients and makes the step. ps: parameter "
        "servers get the sum, make the step, and send the changes to all workers.",
    ),
]
Servers = Annotated[
    int, typer.Option(help="With --mode ps: server processes, each with a shard of the model.")
]
Consistency = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="With --mode ps. sync: every step takes the gradients of all workers. ssp:S: a worker may be "
        "S steps ahead of the slowest. async: no worker waits for another.",
    ),
]
PushFilter = Annotated[
    str,
    typer.Option(
        metavar="RULE",
        help="With --method dense: hold small changes back on the workers. THRESHOLD[:SCHEDULE[:BLOCK]], "
        "such as 0.001:lr. Gradients x learning rate below the threshold add up until they exceed it. "
        "Schedules: constant, lr, sqrt, cbrt, rootA.",
    ),
]
PullFilter = Annotated[
    str,
    typer.Option(metavar="RULE", help="The same for changes on the servers since they last sent them."),
]
Overlap = Annotated[
    bool,
    typer.Option(
        help="With --mode ps, synchronous: push gradients while the backward pass computes those of earlier "
        "layers."
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder in which the run's folder is made.")]
Seed = Annotated[int, typer.Option(help="Seed of the parameters and of the order of the data.")]
Reference = Annotated[
    bool, typer.Option(help="Train a second time over plain Gloo with the same seed, for comparison.")
]
Hosts = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="processes: the workers share memory with the switch, and Gloo runs over loopback. "
        "namespaces: each worker runs in its own network namespace (needs root, or an unprivileged "
        "user namespace), and Gloo runs over the same links on the kernel's bridge. auto: namespaces "
        "where possible.",
    ),
]
Pcap = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Capture all ports of the switch. With several switches, each gets a file with its name "
        "before the suffix. See weir pcap.",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|dynamic",
        help="With --mode ps: placement of the parameters. FILE: a plan of weir partition; trains "
        "--model logistic, fm or deepfm on its data, a worker and a server on each of its machines. "
        "dynamic: blocks of --model begin in equal shares, and move between servers by their traffic.",
    ),
]
SaveEvery = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Write a checkpoint for --resume into the run's folder every STEPS steps; default: none.",
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Continue from the checkpoint in a run's folder, with that run's settings, in a new folder. "
        "Without a loss budget the parameters equal those of an uninterrupted run, bit for bit.",
    ),
]
Name = Annotated[
    str | None, typer.Option(help="Name of the run's folder, after the time; default: model and method.")
]

Encoding = Annotated[
    str | None,
    typer.Option(
        metavar="ENCODING",
        help="Form of the gradients on the wire: auto (planned by cost), dense, blocks:32 to blocks:256 "
        "(skip zero blocks), shared-mask:1 to shared-mask:256 (the workers agree on the values that any "
        "worker sends). Default: the method's own.",
    ),
]
Density = Annotated[
    float,
    typer.Option(
        help="Share of the values (or blocks) to send, above 0, at most 1, for methods that send a share.",
    ),
]
Threshold = Annotated[
    float,
    typer.Option(help="For method threshold: smallest magnitude that is sent."),
]
Block = Annotated[
    int,
    typer.Option(
        help="Values per block, for methods that choose whole blocks: 32, 64, 128 or 256.",
    ),
]
WarmupSteps = Annotated[
    int,
    typer.Option(
        metavar="STEPS",
        help="Number of first steps in which the density falls from 0.25 to its target.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Parameters whose gradients are sent whole: names such as '*.bias', or 1d for all parameters "
        "with one dimension (biases, norms). Repeatable.",
    ),
]
LaneBits = Annotated[
    str | None,
    typer.Option(
        metavar="BITS",
        help="Bits of a value on the wire: 32, 16 or 8; several narrow values share a lane. "
        "auto: as few as --lane-error allows. Rounding errors are added to the next step. "
        "Default: auto with dfs, 32 with other methods.",
    ),
]
LaneError = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="With --lane-bits auto: largest error of an average, relative to the largest of the 256 values "
        "around it.",
    ),
]
Plugin = Annotated[list[Path] | None, typer.Option(metavar="FILE", help=PLUGIN_HELP)]
PowerSgdRank = Annotated[
    int,
    typer.Option(metavar="RANK", help="For method powersgd: columns of the two thin matrices."),
]
LocalSteps = Annotated[
    int,
    typer.Option(
        metavar="STEPS",
        help="For the peer gloo-local: steps between two averages.",
    ),
]
UpdateBits = Annotated[
    int,
    typer.Option(
        metavar="BITS",
        help="For method compress: bits of a value on its way up, 1, 8, 16 or 32.",
    ),
]
UpdateShare = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="For method compress: share of the values that are sent at a step, in rotation.",
    ),
]
UpdateMostPending = Annotated[
    float | None,
    typer.Option(
        metavar="STEPS",
        help="For method compress: a bound of harm. While more steps of a worker's own wait than this, steps "
        "send a larger share.",
        show_default="none",
    ),
]
UpdateSampleShare = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="For method compress: share of the mean gradient that is sampled at a step, in rotation, once "
        "40 steps have sampled all of it.",
    ),
]
OuterSteps = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Local steps of each worker between two outer steps. An outer step sums the workers' "
        "progress. Without --method, this selects method outer. Default: 20.",
    ),
]
OuterMethod = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="For method outer: the part that is sent. rows: a rotating set of rows, the same on all "
        "workers; or a sparsifier, such as dense or chunk-topk.",
    ),
]
OuterDensity = Annotated[
    float,
    typer.Option(metavar="SHARE", help="For method outer: share of the values to send."),
]
OuterBits = Annotated[
    int | None,
    typer.Option(
        metavar="BITS",
        help="For method outer: bits of a value on its way up: 1 (only with rows), 8, 16 or 32. Default: 1 "
        "with rows; otherwise the sparsifier's own.",
    ),
]
OuterRate = Annotated[
    float,
    typer.Option(metavar="RATE", help="For method outer: rate of outer steps."),
]
OuterMomentum = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="For method outer: Nesterov's momentum of outer steps. DiLoCo has 0.9, and a rate of 0.7.",
    ),
]
OuterDecay = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="For method outer: the share of unsent values that is kept after each outer step.",
    ),
]
OuterAhead = Annotated[
    bool,
    typer.Option(
        help="For method outer: keep unsent values in the worker's own weights, not in a separate buffer.",
    ),
]
OuterOverlap = Annotated[
    int,
    typer.Option(
        metavar="STEPS",
        help="For method outer: steps that a worker makes while a sum is under way, below outer_steps.",
    ),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        metavar="WORKERS",
        help="For method ds-sync: number of workers that average their parameters together; default: the "
        "square root of all workers.",
    ),
]
SwaEpochs = Annotated[
    int,
    typer.Option(
        metavar="EPOCHS",
        help="For method ds-sync: average the parameters of the last EPOCHS epochs; 0: use the last step's "
        "parameters.",
    ),
]

Topology = Annotated[
    str,
    typer.Option(
        metavar="SHAPE",
        help="single: one switch. leaf-spine-RxS: R racks, a leaf switch in each, joined by S spines; "
        "the workers are spread over the racks.",
    ),
]
Links = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="Rate of every link in both directions, such as 100mbit; default: no limit.",
    ),
]
Loss = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Share of packets that every link loses in each direction, 0 to 0.5.",
    ),
]
Background = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="incast: other hosts of the racks burst together towards one worker of each rack. "
        "Needs --links.",
    ),
]
BackgroundLoad = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Share of that worker's link that the bursts take on average.",
    ),
]
BackgroundDscp = Annotated[
    int,
    typer.Option(
        metavar="DSCP",
        help="DSCP of the bursts, 0 to 63. 0: best effort, which the switches serve after all of Weir's "
        "classes, AF13 (14: back layers, small gradients) to AF41 (34: front layers, large ones).",
    ),
]
LossBudget = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Share of values that may be missing from a front layer's sum (near the input). Back layers and "
        "large values may miss less. Missing values are added to the next step's gradient. 0: nothing "
        "may be missing. With --consistency ssp:S or async: share of each push.",
    ),
]
LossPolicy = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of weir calibrate with loss budgets by layer and magnitude; replaces --loss-budget.",
    ),
]

SHARED: Final[Mapping[str, Any]] = {
    "workers": Workers,
    "model": Model,
    "data": Data,
    "mode": Mode,
    "servers": Servers,
    "consistency": Consistency,
    "push_filter": PushFilter,
    "pull_filter": PullFilter,
    "overlap": Overlap,
    "plugin": Plugin,
    "encoding": Encoding,
    "density": Density,
    "threshold": Threshold,
    "block": Block,
    "warmup_steps": WarmupSteps,
    "exclude": Exclude,
    "lane_bits": LaneBits,
    "lane_error": LaneError,
    "powersgd_rank": PowerSgdRank,
    "local_steps": LocalSteps,
    "update_bits": UpdateBits,
    "update_share": UpdateShare,
    "update_most_pending": UpdateMostPending,
    "update_sample_share": UpdateSampleShare,
    "outer_steps": OuterSteps,
    "outer_method": OuterMethod,
    "outer_density": OuterDensity,
    "outer_bits": OuterBits,
    "outer_rate": OuterRate,
    "outer_momentum": OuterMomentum,
    "outer_decay": OuterDecay,
    "outer_ahead": OuterAhead,
    "outer_overlap": OuterOverlap,
    "group_size": GroupSize,
    "swa_epochs": SwaEpochs,
    "epochs": Epochs,
    "max_steps": MaxSteps,
    "evaluate_every": EvaluateEvery,
    "batch_size": BatchSize,
    "lr": LearningRate,
    "clip_norm": ClipNorm,
    "optimizer": Optimizer,
    "topology": Topology,
    "links": Links,
    "loss": Loss,
    "background": Background,
    "background_load": BackgroundLoad,
    "background_dscp": BackgroundDscp,
    "loss_budget": LossBudget,
    "loss_policy": LossPolicy,
    "out": Out,
}
"""The settings of TrainConfig that ``train`` and ``compare`` take, in the order of their help."""

OF_A_RUN: Final[Mapping[str, Any]] = {
    "method": Method,
    "seed": Seed,
    "hosts": Hosts,
    "placement": Placement,
    "reference": Reference,
    "pcap": Pcap,
    "save_every": SaveEvery,
    "resume": Resume,
    "name": Name,
}
"""Those that ``train`` alone takes."""


def _complete(beginning: str) -> list[str]:
    """Return the settings that begin so, for a shell's completion."""
    return [f"{name}=" for name in _KNOWN if name.startswith(beginning) and name != "resume"]


Assigned = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        autocompletion=_complete,
        help="Any setting, also one without an option here: weir settings lists all. Repeatable.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Settings from a file, YAML or JSON; the config.json of a run repeats that run. Options and "
        "--set replace them.",
    ),
]


_KNOWN: Final = {**SHARED, **OF_A_RUN}
_FIELDS: Final = TrainConfig.model_fields
_NO_SETTINGS: Final = frozenset({"assigned", "config", "as_json"})


def takes(names: Collection[str]) -> Callable[[Callable[_Own, None]], Callable[_Own, None]]:
    """Give a command options for settings, and --set, --config and --json, in place of its ``**settings``.

    Args:
        names: Settings that the command takes. Those in ``OPTIONS`` get an option with TrainConfig's default.

    Returns:
        A decorator. The command's own options come first in the help.
    """

    def decorate(command: Callable[_Own, None]) -> Callable[_Own, None]:
        own = [each for each in inspect.signature(command).parameters.values() if each.name != "settings"]
        options = [
            *own,
            *(_parameter(name, _KNOWN[name], _default(name)) for name in OPTIONS if name in names),
            _parameter("assigned", Assigned),
            _parameter("config", ConfigFile),
            _parameter("as_json", Json, default=False),
        ]
        command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in options}
        return command

    return decorate


def _parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default(name: str) -> Any:
    field = _FIELDS[name]
    return None if field.is_required() or field.default == () else field.default


def given(context: typer.Context, names: Collection[str]) -> dict[str, Any]:
    """Return the settings on the command line, by name.

    Args:
        context: The command's.
        names: Settings that --set may assign.

    Returns:
        Values of options and of --set. Values of --set are text, or tuples of text: TrainConfig parses them.
        The command's own options are among them; --set, --config and --json are not.

    Raises:
        ConfigError: --set has no value, names no setting, or repeats one.
    """
    found: dict[str, Any] = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in _NO_SETTINGS:
            found[name] = value
    by_set = assigned(context, names)
    if twice := sorted(found.keys() & by_set.keys()):
        raise ConfigError(f"--set {twice[0]}: the command line sets it twice")
    return found | by_set


def assigned(context: typer.Context, names: Collection[str]) -> dict[str, Any]:
    """Return the settings of --set, by name; arguments and errors as of ``given``."""
    found: dict[str, Any] = {}
    for text in context.params.get("assigned") or ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ConfigError(f"--set {text}: write NAME=VALUE")
        check_name(name, names, "--set")
        if name in found:
            raise ConfigError(f"--set {name}: the command line sets it twice")
        found[name] = tuple(value.split(",")) if _FIELDS[name].default == () else value
    return found


def check_name(name: str, names: Collection[str], where: str) -> None:
    """Refuse an unknown setting.

    Args:
        name: The name that was given.
        names: Names of the settings that there are.
        where: Its place: an option, a file.

    Raises:
        ConfigError: There is no such setting. The message has similar names.
    """
    if name not in names:
        near = difflib.get_close_matches(name, names)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ConfigError(f"{where}: no setting is called {name!r}{hint} (weir settings lists all)")


def settings() -> list[dict[str, Any]]:
    """Return the settings of training.

    Returns:
        For each setting its name, option (None: it has none), default, meaning, and whether ``train`` alone
        takes it.
    """
    return [
        {
            "setting": name,
            "option": as_option(name) if name in OPTIONS else None,
            "default": None if _default(name) is None else str(_default(name)),
            "meaning": next(iter(annotation.__metadata__)).help,
            "train_alone": name in OF_A_RUN,
        }
        for name, annotation in sorted(_KNOWN.items())
        if name != "resume"
    ]


def list_settings(as_json: Json = False) -> None:
    """List the settings of weir train and weir compare, which --set and --config take.

    Settings with an option of their own are listed by its name.
    """
    if as_json:
        print_json(settings())
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True, style="bold green")
    table.add_column("default", no_wrap=True)
    table.add_column("meaning", ratio=1)
    for row in settings():
        table.add_row(row["option"] or row["setting"], row["default"] or "–", row["meaning"])
    Console().print(table)


def in_line(names: Iterable[str]) -> str:
    """Join names of settings as the command line has them: "--batch-size, --set lane_bits"."""
    return ", ".join(map(as_option, names))
