# SPDX-License-Identifier: Apache-2.0
"""The settings of a training run: model, data, method and sizes, checked before anything starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from softp4.runtime.queueing import parse_rate
from weir.methods import find_method, load_plugin
from weir.network import Background, NetworkSpec, parse_shape
from weir.wire.definition import MAX_CHILDREN

if TYPE_CHECKING:
    from weir.host_agent.compression.sparsifiers import SparsifierOptions

Model = Literal[
    "resnet18", "cnn", "mlp", "lm", "bag",
    "gpt", "gpt-10m", "gpt2-small", "gpt2-medium", "lstm", "unet", "gnn", "dlrm", "vit", "autoencoder",
]  # fmt: skip
Data = Literal[
    "digits", "stdlib", "modules", "bytes", "byte-pairs", "scenes", "graphs", "clicks", "restored-digits"
]
OF_THE_COMMAND: Final = frozenset({"resume", "out", "name", "reference", "save_every", "pcap"})
"""Settings that do not change what is trained: a run that goes on may have others."""

OPTIONS: Final = (
    "model", "workers", "method", "plugin", "density", "mode", "consistency", "placement", "epochs",
    "max_steps", "batch_size", "lr", "seed", "reference", "hosts", "topology", "links", "loss_budget", "out",
    "resume",
)  # fmt: skip
"""Settings with an option of their own on the command line. Others need --set or --config.

In the order of the help."""

Optimizer = Literal["sgd", "momentum", "adam", "adamw"]
Hosts = Literal["processes", "namespaces"]
Mode = Literal["all-reduce", "ps"]
DEFAULT_METHOD: Final = "dfs"
OUTER_STEPS: Final = 20
"""Steps between two of method outer's sums, unless told."""


class ConfigError(ValueError):
    """A setting is out of range or two do not fit together; the message names each, and what would do."""


def as_option(setting: str) -> str:
    """Name a setting as the command line takes it.

    Args:
        setting: A field of TrainConfig, or an option's name with underscores.

    Returns:
        Its option, such as "--batch-size", or "--set lane_bits".
    """
    if setting in TrainConfig.model_fields and setting not in OPTIONS:
        return f"--set {setting}"
    return f"--{setting.replace('_', '-')}"


@dataclass(frozen=True)
class Preset:
    """The settings that a model trains with unless told otherwise.

    Attributes:
        samples: how many there are to train on.
        batch_size: samples of a worker and step: images, or for models of words or bytes lines of text.
        lr: of the optimizer, at its peak.
        clip: largest norm of the summed gradient; None: it is not clipped.
        optimizer: torch's.
        metric: on held-out data, by which runs are compared.
    """

    data: Data
    samples: int
    batch_size: int
    lr: float
    clip: float | None = None
    optimizer: Optimizer = "sgd"
    metric: Literal["accuracy", "loss"] = "accuracy"


PRESETS: Final[dict[Model, Preset]] = {
    "resnet18": Preset("digits", 1438, batch_size=16, lr=0.1),
    "cnn": Preset("digits", 1438, batch_size=8, lr=0.3),
    "mlp": Preset("digits", 1438, batch_size=8, lr=0.3),
    "lm": Preset("stdlib", 3584, batch_size=8, lr=15.0, clip=0.25),
    "bag": Preset("modules", 3584, batch_size=16, lr=20.0, clip=0.25),
    "gpt": Preset("bytes", 12288, 8, lr=3e-3, clip=1.0, optimizer="adamw", metric="loss"),
    "gpt-10m": Preset("bytes", 12288, 8, lr=1e-3, clip=1.0, optimizer="adamw", metric="loss"),
    "gpt2-small": Preset("byte-pairs", 6144, 1, lr=6e-4, clip=1.0, optimizer="adamw", metric="loss"),
    "gpt2-medium": Preset("byte-pairs", 6144, 1, lr=3e-4, clip=1.0, optimizer="adamw", metric="loss"),
    "lstm": Preset("bytes", 12288, 8, lr=1e-2, clip=1.0, optimizer="adam", metric="loss"),
    "unet": Preset("scenes", 3584, 4, lr=6e-3, optimizer="adam"),
    "gnn": Preset("graphs", 8192, 4, lr=1e-2, optimizer="adam", metric="loss"),
    "dlrm": Preset("clicks", 262144, 128, lr=1e-2, optimizer="adam", metric="loss"),
    "vit": Preset("digits", 1438, 16, lr=2e-3, clip=1.0, optimizer="adamw"),
    "autoencoder": Preset("restored-digits", 1438, 16, lr=4e-3, optimizer="adam", metric="loss"),
}
SGD_MODELS: Final = tuple(name for name, preset in PRESETS.items() if preset.optimizer == "sgd")
"""The models that are trained by SGD without momentum."""
LARGE_MODELS: Final[tuple[Model, ...]] = ("gpt-10m", "gpt2-small", "gpt2-medium")
"""The models whose training takes minutes or more."""


class TrainConfig(BaseModel):
    """One ``weir train`` run. Frozen; make it with :func:`make_config`, which fills in the model's preset."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: Annotated[int, Field(ge=1, le=MAX_CHILDREN)] = 4
    model: Model = "resnet18"
    data: Data
    optimizer: Optimizer | None = None
    mode: Mode = "all-reduce"
    servers: Annotated[int, Field(ge=1)] = 1
    consistency: str = "sync"
    push_filter: str = "0"
    pull_filter: str = "0"
    overlap: bool = True
    placement: Literal["dynamic"] | None = None
    plugin: tuple[Path, ...] = ()
    method: str = DEFAULT_METHOD
    encoding: str | None = None
    density: Annotated[float, Field(gt=0, le=1)] = 0.05
    threshold: Annotated[float, Field(ge=0)] = 1e-3
    block: Literal[32, 64, 128, 256] = 256
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    exclude: tuple[str, ...] = ()
    lane_bits: Literal[32, 16, 8, "auto"] | None = None
    lane_error: Annotated[float, Field(gt=0, lt=1)] = 0.02
    powersgd_rank: Annotated[int, Field(ge=1)] = 2
    local_steps: Annotated[int, Field(ge=1)] = 10
    update_bits: Literal[1, 8, 16, 32] = 1
    update_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    update_most_pending: Annotated[float, Field(gt=0)] | None = None
    update_sample_share: Annotated[float, Field(gt=0, le=1)] = 0.06
    outer_steps: Annotated[int, Field(ge=1)] | None = None
    outer_method: str = "rows"
    outer_density: Annotated[float, Field(gt=0, le=1)] = 1.0
    outer_bits: Literal[1, 8, 16, 32] | None = None
    outer_rate: Annotated[float, Field(gt=0)] = 1.0
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    outer_decay: Annotated[float, Field(ge=0, le=1)] = 1.0
    outer_ahead: bool = True
    outer_overlap: Annotated[int, Field(ge=0)] = 0
    group_size: Annotated[int, Field(ge=2)] | None = None
    swa_epochs: Annotated[int, Field(ge=0)] = 0
    epochs: Annotated[int, Field(ge=1)] = 3
    max_steps: Annotated[int, Field(ge=1)] | None = None
    evaluate_every: Annotated[int, Field(ge=1)] | None = None
    batch_size: Annotated[int, Field(ge=1)]
    lr: Annotated[float, Field(gt=0)]
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    seed: Annotated[int, Field(ge=0)] = 1
    reference: bool = True
    hosts: Hosts = "processes"
    topology: str = "single"
    links: str | None = None
    loss: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    background: Background = "none"
    background_load: Annotated[float, Field(gt=0, le=1)] = 0.5
    background_dscp: Annotated[int, Field(ge=0, le=63)] = 0
    loss_budget: Annotated[float, Field(ge=0, lt=1)] = 0.0
    loss_policy: Path | None = None
    pcap: Path | None = None
    save_every: Annotated[int, Field(ge=1)] | None = None
    resume: Path | None = None
    out: Path = Path("runs")
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]

    @model_validator(mode="before")
    @classmethod
    def _methods_of_plugins(cls, given: Any) -> Any:
        """Load plugins before any other setting is looked at, also in a worker that is told the settings."""
        for path in given.get("plugin") or ():
            try:
                load_plugin(Path(path))
            except ValueError as error:
                raise ValueError(f"--plugin: {error}") from None
        return given

    @model_validator(mode="after")
    def _data_fits_model(self) -> Self:
        wanted = PRESETS[self.model].data
        if self.data != wanted:
            raise ValueError(f"model {self.model!r} trains on {wanted!r}, not on {self.data!r}")
        return self

    @field_validator("method")
    @classmethod
    def _a_method(cls, name: str) -> str:
        return find_method(name).name

    @field_validator("encoding")
    @classmethod
    def _an_encoding(cls, text: str | None) -> str | None:
        from weir.host_agent.compression.encodings import parse_rule

        if text is not None:
            parse_rule(text)
        return text

    @model_validator(mode="after")
    def _method_can_do_it(self) -> Self:
        kind = find_method(self.method).kind
        if kind == "sparsifier":
            return self
        for option, given in (
            ("--set encoding", self.encoding is not None),
            ("--set exclude", bool(self.exclude)),
            ("--set lane_bits", self.lane_bits is not None and kind != "low rank"),
            ("--loss-budget", self.loss_budget > 0),
            ("--set loss_policy", self.loss_policy is not None),
        ):
            if given:
                raise ValueError(f"{option} does not apply: method {self.method} sends no gradients")
        return self

    @model_validator(mode="after")
    def _outer_steps_can_be_made(self) -> Self:
        if self.method != "outer":
            return self
        from weir.host_agent.compression.outer.stage import OuterSettings
        from weir.host_agent.compression.outer.sums import make_sum
        from weir.host_agent.compression.updates.layout import UpdateLayout

        try:
            OuterSettings(self.outer_steps or OUTER_STEPS, overlap=self.outer_overlap)
            make_sum(UpdateLayout(["any"], [(1,)]), self.outer_method, self.outer_density, self.outer_bits, 0)
        except ValueError as error:
            raise ValueError(f"--method outer: {error}") from None
        return self

    @model_validator(mode="after")
    def _saves_what_can_be_saved(self) -> Self:
        if self.save_every is not None and self.mode == "ps":
            raise ValueError(
                "--set save_every: with --mode ps the servers have the state; see weir server --state"
            )
        if self.save_every is not None and find_method(self.method).kind == "low rank":
            raise ValueError(f"--set save_every: the state of method {self.method} cannot be saved")
        return self

    @model_validator(mode="after")
    def _servers_can_do_it(self) -> Self:
        if self.mode != "ps":
            for option, given in (
                ("--set servers", self.servers > 1),
                ("--consistency", self.consistency != "sync"),
                ("--set push_filter", self.push_filter != "0"),
                ("--set pull_filter", self.pull_filter != "0"),
                ("--placement", self.placement is not None),
            ):
                if given:
                    raise ValueError(f"{option} needs --mode ps")
            return self
        from weir.host_agent.parameter_server.terms import check_flow

        check_flow(self.consistency, self.push_filter, self.pull_filter, self.method)
        for option, given in (
            (f"--consistency {self.consistency}", self.consistency != "sync"),
            (f"--placement {self.placement}", self.placement is not None),
        ):
            if given and (self.encoding is not None or self.lane_bits not in (None, 32)):
                raise ValueError(
                    f"{option}: pushes travel by flows, where values have 32 bits, in the form that costs "
                    "least; leave out --set encoding, --set lane_bits"
                )
            if given and self.in_switches and self.hosts == "processes":
                raise ValueError(
                    f"{option}: flows between processes of one machine take the kernel's loopback, where "
                    "--topology, --set loss and --set background are not: --hosts namespaces has them"
                )
        if find_method(self.method).kind != "sparsifier":
            raise ValueError(f"--mode ps: method {self.method} sends no gradients to servers")
        if self.loss_policy is not None or (self.loss_budget and self.consistency == "sync"):
            raise ValueError(
                "--mode ps: pushes to synchronous servers are lossless; leave out --loss-budget and --set "
                "loss_policy, or use --consistency ssp:S or async with --loss-budget"
            )
        if self.members > MAX_CHILDREN:
            raise ValueError(
                f"--workers {self.workers}, --set servers={self.servers}: at most {MAX_CHILDREN} together"
            )
        return self

    @property
    def trained_by(self) -> Optimizer:
        """Optimizer: the one asked for, else the model's own."""
        return self.optimizer or PRESETS[self.model].optimizer

    @property
    def max_norm(self) -> float | None:
        """Largest norm of gradients: the one asked for, else the model's own; None: any."""
        return self.clip_norm or PRESETS[self.model].clip

    @property
    def in_switches(self) -> bool:
        """Return whether something is asked for that switches alone do."""
        return bool(self.loss) or self.background != "none" or not parse_shape(self.topology).single

    @property
    def queues_in_switches(self) -> bool:
        """Return whether packets wait in the queues of switches, which trim and mark, rather than in token
        buckets of the kernel.
        """
        return self.hosts == "processes" or bool(self.loss) or self.background != "none" or self.lossy

    @field_validator("block", "lane_bits", "update_bits", "outer_bits", mode="before")
    @classmethod
    def _a_number(cls, given: Any) -> Any:
        return int(given) if isinstance(given, str) and given.isdecimal() else given

    @model_validator(mode="after")
    def _lanes_are_wide_enough(self) -> Self:
        if self.lane_bits in (None, 32):
            return self
        from weir.host_agent.compression.exchange import gradient_form

        try:
            gradient_form(self.lane_bits, self.lane_error, self.workers, lossless=not self.lossy)
        except ValueError as error:
            raise ValueError(f"--set lane_bits: {error}") from None
        return self

    @model_validator(mode="after")
    def _encoding_fits_the_method(self) -> Self:
        if self.encoding is None or find_method(self.method).kind != "sparsifier":
            return self
        from weir.host_agent.compression.encodings import parse_rule, prescribed
        from weir.host_agent.compression.sparsifiers import create_sparsifier

        try:
            prescribed(parse_rule(self.encoding), create_sparsifier(self.method, self.sparsifier_options))
        except ValueError as error:
            raise ValueError(f"--set encoding: {error}") from None
        return self

    @field_validator("topology")
    @classmethod
    def _a_topology(cls, text: str) -> str:
        return str(parse_shape(text))

    @model_validator(mode="after")
    def _excludes_something(self) -> Self:
        if self.exclude:
            import torch

            from weir.host_agent.compression.local_gradients import check_patterns
            from weir.train.models import make_model

            with torch.device("meta"):  # names and shapes, no values
                model = make_model(self.model)
            try:
                check_patterns(self.exclude, model)
            except ValueError as error:
                raise ValueError(f"--set {error}") from None
        return self

    @model_validator(mode="after")
    def _data_makes_a_step(self) -> Self:
        samples, a_step = PRESETS[self.model].samples, self.batch_size * self.workers
        if a_step > samples:
            raise ValueError(
                f"--batch-size {self.batch_size}: {samples:,} samples are too few for a step of "
                f"{self.workers} workers x {self.batch_size}; the maximum is "
                f"{max(1, samples // self.workers)}"
            )
        return self

    @field_validator("links")
    @classmethod
    def _a_rate(cls, text: str | None) -> str | None:
        if text is not None:
            parse_rate(text)
        return text

    @model_validator(mode="after")
    def _network_fits(self) -> Self:
        racks = parse_shape(self.topology).racks
        if self.workers < racks:
            raise ValueError(
                f"--workers {self.workers}: {self.topology} has {racks} racks, and each needs a worker"
            )
        if self.background != "none" and self.links is None:
            raise ValueError(
                "--set background: its load is a share of a link's rate: give --links one, such as 100mbit"
            )
        if self.pcap is not None and self.hosts == "namespaces":
            raise ValueError(
                "--hosts namespaces cannot be combined with --set pcap: "
                "capture at the hosts' interfaces with tcpdump"
            )
        if self.loss_policy is not None:
            if self.loss_budget:
                raise ValueError(
                    "--loss-budget, --set loss_policy: give one of them; a policy file has its own budgets"
                )
            if not self.loss_policy.is_file():
                raise ValueError(
                    f"--set loss_policy: there is no file {self.loss_policy}; weir calibrate writes one"
                )
            _check_policy(self.loss_policy, self.model)
        return self

    @property
    def members(self) -> int:
        """Return how many workers and servers there are."""
        return self.workers + (self.servers if self.mode == "ps" else 0)

    @property
    def sparsifier_options(self) -> "SparsifierOptions":
        """Options of the sparsifier."""
        from weir.host_agent.compression.sparsifiers import SparsifierOptions

        return SparsifierOptions(
            density=self.density,
            threshold=self.threshold,
            block=self.block,
            warmup_steps=self.warmup_steps,
            seed=self.seed,
        )

    @property
    def rule(self) -> str | None:
        """Encoding, or the rule that finds one; None where the method has no use for any."""
        from weir.host_agent.compression.sparsifiers import create_sparsifier

        if self.encoding is not None or find_method(self.method).kind != "sparsifier":
            return self.encoding
        return create_sparsifier(self.method, self.sparsifier_options).encoding

    @property
    def network(self) -> NetworkSpec:
        """Network to build on this machine."""
        return NetworkSpec(
            shape=parse_shape(self.topology),
            rate_bps=parse_rate(self.links) if self.links else None,
            loss=self.loss,
            background=self.background,
            load=self.background_load,
            dscp=self.background_dscp,
        )

    @property
    def same_links(self) -> bool:
        """Return whether the reference run has the same links as Weir, so that times may be compared."""
        return self.hosts == "namespaces" or not self.network_matters

    @property
    def lossy(self) -> bool:
        """Return whether any of a gradient may go missing."""
        return self.loss_budget > 0 or self.loss_policy is not None

    @property
    def network_matters(self) -> bool:
        """Return whether there is anything between the workers but one switch with perfect links."""
        network = self.network
        disturbed = network.rate_bps is not None or network.loss > 0  # background needs a rate
        return self.lossy or disturbed or not network.shape.single


def _check_policy(path: Path, model: Model) -> None:
    """Raise ValueError for a file that holds no policy, or one that was calibrated for another model."""
    from weir.host_agent.compression.loss_policy import LossPolicy

    try:
        calibration = LossPolicy.load(path).calibration or {}
    except ValueError as error:
        raise ValueError(f"--set loss_policy: {error}") from None
    settings = calibration.get("settings")
    found = settings.get("model", model) if isinstance(settings, dict) else model
    if found != model:
        raise ValueError(
            f"--set loss_policy: {path} was calibrated for {found}, not for {model}: take "
            f"weir calibrate --model {model}, or remove the file's record of its calibration"
        )


def make_config(**given: Any) -> TrainConfig:
    """Return the configuration for these settings; ``None`` means "the model's preset".

    Raises ConfigError with one line per setting that is wrong.
    """
    known = {key: value for key, value in given.items() if value is not None}
    preset = PRESETS.get(known.get("model", "resnet18"))
    if preset is not None:
        if known.get("optimizer", preset.optimizer) != preset.optimizer and "lr" not in known:
            raise ConfigError(
                f"--set optimizer={known['optimizer']}: give --lr, too; the model's own rate is for "
                f"{preset.optimizer}"
            )
        known = {"data": preset.data, "batch_size": preset.batch_size, "lr": preset.lr, **known}
    if "outer_steps" in known:
        known.setdefault("method", "outer")
    elif known.get("method") == "outer":
        known["outer_steps"] = OUTER_STEPS
    known.setdefault("name", f"{known.get('model', 'resnet18')}-{known.get('method', DEFAULT_METHOD)}")
    try:
        return TrainConfig.model_validate(known)
    except ValidationError as error:
        raise ConfigError(in_words(error)) from None


def in_words(error: ValidationError) -> str:
    """Return a line for each setting that is wrong."""
    # What is missing is what an unknown model has no preset for: not the user's omission.
    return "\n".join(_sentence(item) for item in error.errors() if item["type"] != "missing")


def _sentence(item: Any) -> str:
    """Return one pydantic error as the user would name it: the option, what is wrong with it, what was
    given.
    """
    where = f"{as_option(str(item['loc'][0]))}: " if item["loc"] else ""
    message = item["msg"].removeprefix("Value error, ")
    shown = "" if item["type"] == "value_error" else f", not {item['input']!r}"
    return f"{where}{message[0].lower()}{message[1:]}{shown}"
