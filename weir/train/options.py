# SPDX-License-Identifier: Apache-2.0
"""Command line options of a training: types, help texts, and how ``train`` and ``compare`` take them."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec

import typer

_Own = ParamSpec("_Own")

_METHOD: Final = "Method"
_NETWORK: Final = "Network"

Workers = Annotated[int, typer.Option(help="Worker processes, 1 to 32.")]
Model = Annotated[
    str,
    typer.Option(
        help="By SGD: resnet18, cnn, mlp, lm (a small language model) or bag (of words). By Adam or AdamW: "
        "gpt, gpt-10m, lstm, unet, gnn, dlrm, vit or autoencoder."
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
        help="all-reduce: every worker gets the sum of the gradients and steps. ps: parameter servers get "
        "the sum, step, and send the changes to all workers.",
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

Encoding = Annotated[
    str | None,
    typer.Option(
        metavar="ENCODING",
        help="Form of the gradients on the wire: auto (planned by cost), dense, blocks:32 to blocks:256 "
        "(skip zero blocks), shared-mask:1 to shared-mask:256 (the workers agree on the values that any "
        "worker sends). Default: the method's own.",
        rich_help_panel=_METHOD,
    ),
]
Density = Annotated[
    float,
    typer.Option(
        help="Share of the values (or blocks) to send, above 0, at most 1, for methods that send a share.",
        rich_help_panel=_METHOD,
    ),
]
Threshold = Annotated[
    float,
    typer.Option(help="For method threshold: smallest magnitude that is sent.", rich_help_panel=_METHOD),
]
Block = Annotated[
    int,
    typer.Option(
        help="Values per block, for methods that choose whole blocks: 32, 64, 128 or 256.",
        rich_help_panel=_METHOD,
    ),
]
WarmupSteps = Annotated[
    int,
    typer.Option(
        metavar="STEPS",
        help="Number of first steps in which the density falls from 0.25 to its target.",
        rich_help_panel=_METHOD,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Parameters whose gradients are sent whole: names such as '*.bias', or 1d for all parameters "
        "with one dimension (biases, norms). Repeatable.",
        rich_help_panel=_METHOD,
    ),
]
LaneBits = Annotated[
    str | None,
    typer.Option(
        metavar="BITS",
        help="Bits of a value on the wire: 32, 16 or 8; several narrow values share a lane. "
        "auto: as few as --lane-error allows. Rounding errors are added to the next step. "
        "Default: auto with dfs, 32 with other methods.",
        rich_help_panel=_METHOD,
    ),
]
LaneError = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="With --lane-bits auto: largest error of an average, relative to the largest of the 256 values "
        "around it.",
        rich_help_panel=_METHOD,
    ),
]
Plugin = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Python file with your own methods, see docs/add-a-method.md. Repeatable.",
        rich_help_panel=_METHOD,
    ),
]
PowerSgdRank = Annotated[
    int,
    typer.Option(
        metavar="RANK", help="For method powersgd: columns of the two thin matrices.", rich_help_panel=_METHOD
    ),
]
LocalSteps = Annotated[
    int,
    typer.Option(
        metavar="STEPS",
        help="For the peer gloo-local: steps between two averages.",
        rich_help_panel=_METHOD,
    ),
]
UpdateBits = Annotated[
    int,
    typer.Option(
        metavar="BITS",
        help="For method compress: bits of a value on its way up, 1, 8, 16 or 32.",
        rich_help_panel=_METHOD,
    ),
]
UpdateShare = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="For method compress: share of the values that are sent at a step, in rotation.",
        rich_help_panel=_METHOD,
    ),
]
OuterSteps = Annotated[
    int | None,
    typer.Option(
        metavar="STEPS",
        help="Steps that each worker makes by itself between two outer steps, which sum how far the workers "
        "have come. Given without --method: method outer. Default: 20.",
        rich_help_panel=_METHOD,
    ),
]
OuterMethod = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="For method outer: the part that is sent. rows: rows in turn, the same of all workers; or a "
        "sparsifier, such as dense or chunk-topk.",
        rich_help_panel=_METHOD,
    ),
]
OuterDensity = Annotated[
    float,
    typer.Option(
        metavar="SHARE", help="For method outer: share of the values to send.", rich_help_panel=_METHOD
    ),
]
OuterBits = Annotated[
    int | None,
    typer.Option(
        metavar="BITS",
        help="For method outer: bits of a value on its way up: 1 (rows alone), 8, 16 or 32. Default: 1 with "
        "rows, else the sparsifier's own.",
        rich_help_panel=_METHOD,
    ),
]
OuterRate = Annotated[
    float,
    typer.Option(metavar="RATE", help="For method outer: rate of outer steps.", rich_help_panel=_METHOD),
]
OuterMomentum = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="For method outer: Nesterov's momentum of outer steps. DiLoCo has 0.9, and a rate of 0.7.",
        rich_help_panel=_METHOD,
    ),
]
OuterDecay = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="For method outer: share that is left after each outer step of what is not sent yet.",
        rich_help_panel=_METHOD,
    ),
]
OuterAhead = Annotated[
    bool,
    typer.Option(
        help="For method outer: keep what is not sent yet in the worker's own weights, not beside them.",
        rich_help_panel=_METHOD,
    ),
]
OuterOverlap = Annotated[
    int,
    typer.Option(
        metavar="STEPS",
        help="For method outer: steps that a worker makes while a sum is under way, below --outer-steps.",
        rich_help_panel=_METHOD,
    ),
]
GroupSize = Annotated[
    int | None,
    typer.Option(
        metavar="WORKERS",
        help="For method ds-sync: number of workers that average their parameters together; default: the "
        "square root of all workers.",
        rich_help_panel=_METHOD,
    ),
]
SwaEpochs = Annotated[
    int,
    typer.Option(
        metavar="EPOCHS",
        help="For method ds-sync: average the parameters of the last EPOCHS epochs; 0: take those of the "
        "last step.",
        rich_help_panel=_METHOD,
    ),
]

Topology = Annotated[
    str,
    typer.Option(
        metavar="SHAPE",
        help="single: one switch. leaf-spine-RxS: R racks, a leaf switch in each, joined by S spines; "
        "the workers are spread over the racks.",
        rich_help_panel=_NETWORK,
    ),
]
Links = Annotated[
    str | None,
    typer.Option(
        metavar="RATE",
        help="Rate of every link in both directions, such as 100mbit; default: no limit.",
        rich_help_panel=_NETWORK,
    ),
]
Loss = Annotated[
    float,
    typer.Option(
        metavar="P",
        help="Share of packets that every link loses in each direction, 0 to 0.5.",
        rich_help_panel=_NETWORK,
    ),
]
Background = Annotated[
    str,
    typer.Option(
        metavar="KIND",
        help="incast: other hosts of the racks burst together towards one worker of each rack. "
        "Needs --links.",
        rich_help_panel=_NETWORK,
    ),
]
BackgroundLoad = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        help="Share of that worker's link that the bursts take on average.",
        rich_help_panel=_NETWORK,
    ),
]
BackgroundDscp = Annotated[
    int,
    typer.Option(
        metavar="DSCP",
        help="DSCP of the bursts, 0 to 63. 0: best effort, which the switches serve after all of Weir's "
        "classes, AF13 (14: back layers, small gradients) to AF41 (34: front layers, large ones).",
        rich_help_panel=_NETWORK,
    ),
]
LossBudget = Annotated[
    float,
    typer.Option(
        metavar="P",
        help="Share of a front layer's gradient that may be missing from its sum; less of back layers and of "
        "large values, so less of the whole. Missing values are added to the next step's gradient. 0: "
        "nothing may be missing. With --consistency ssp:S or async: share of each push.",
        rich_help_panel=_NETWORK,
    ),
]
LossPolicy = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File of weir calibrate with loss budgets by layer and magnitude; replaces --loss-budget.",
        rich_help_panel=_NETWORK,
    ),
]

_TRAINING: Final[Mapping[str, Any]] = {
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
"""The settings of TrainConfig that both commands take, in the order of their help."""


def takes_training_options(command: Callable[_Own, None]) -> Callable[_Own, None]:
    """Give a command every training option in place of its ``**settings``, with TrainConfig's defaults.

    The command's own options come last in the help, but for those of a panel, which come first there.
    """
    from weir.train.config import TrainConfig

    fields = TrainConfig.model_fields
    own = [option for option in inspect.signature(command).parameters.values() if option.name != "settings"]
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None
            if fields[name].is_required() or fields[name].default == ()
            else fields[name].default,
            annotation=option,
        )
        for name, option in _TRAINING.items()
    ]
    first = [option for option in own if _panel(option.annotation)]
    options = [*first, *shared, *(option for option in own if option not in first)]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    return command


def given(context: typer.Context) -> dict[str, Any]:
    """Return the settings that stand on the command line, by name."""
    found: dict[str, Any] = {}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            found[name] = value
    return found


def in_line(names: Iterable[str]) -> str:
    """Return settings as the command line has them: --batch-size, --lr."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _panel(annotation: Any) -> str | None:
    return next(
        (o.rich_help_panel for o in getattr(annotation, "__metadata__", ()) if hasattr(o, "rich_help_panel")),
        None,
    )
