# SPDX-License-Identifier: Apache-2.0
"""The settings of a calibration, checked before anything starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from weir.methods import find_method
from weir.train.config import SGD_MODELS, ConfigError, Model, TrainConfig, in_words, make_config
from weir.wire.definition import MAX_CHILDREN

OF_SPARSIFIERS: Final = ("block", "threshold", "warmup_steps")
"""Settings of weir train that --set may assign here."""

# Shares of blocks that are tried, by bisection.
GRID: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.9)
QUICK_GRID: Final = (0.1, 0.4, 0.9)


@dataclass(frozen=True)
class Length:
    """The length of a training: until accuracy hardly rises any more, or as near as minutes allow."""

    epochs: int
    max_steps: int | None = None


LENGTHS: Final[dict[Model, Length]] = {
    "mlp": Length(epochs=10),
    "cnn": Length(epochs=4),
    "lm": Length(epochs=1, max_steps=80),
    "bag": Length(epochs=8),
    "resnet18": Length(epochs=2),
}


class CalibrateConfig(BaseModel):
    """One ``weir calibrate`` run. Frozen; make it with :func:`make_calibration`.

    tolerance: points of accuracy, in per cent, that the mean over the seeds may be below that without loss.
    error_feedback: for the questions by class, what is lost is sent again with the next step.
    momentum: of the optimizer, SGD. loss_budget: only this is measured, instead of searching.
    processes: training runs at a time.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Model
    plugin: tuple[Path, ...] = ()
    workers: Annotated[int, Field(ge=1, le=MAX_CHILDREN)] = 4
    seeds: Annotated[int, Field(ge=1)] = 3
    tolerance: Annotated[float, Field(gt=0)] = 0.5
    epochs: Annotated[int, Field(ge=1)]
    max_steps: Annotated[int, Field(ge=1)] | None = None
    method: str = "dense"
    density: Annotated[float, Field(gt=0, le=1)] = 0.05
    block: int = 256
    threshold: float = 1e-3
    warmup_steps: int = 0
    lr: Annotated[float, Field(gt=0)] | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    loss_budget: Annotated[float, Field(gt=0, le=1)] | None = None
    error_feedback: bool = True
    grid: tuple[Annotated[float, Field(gt=0, le=1)], ...] = GRID
    processes: Annotated[int, Field(ge=1)] = 1
    out: Path

    @field_validator("model")
    @classmethod
    def _is_trained_by_sgd(cls, model: Model) -> Model:
        if model not in SGD_MODELS:
            raise ValueError(f"calibration trains by SGD: {', '.join(SGD_MODELS)}, not {model}")
        return model

    @model_validator(mode="after")
    def _can_be_trained(self) -> Self:
        self.training(seed=1)
        if find_method(self.method).kind != "sparsifier":
            raise ValueError(f"--method {self.method}: it sends no gradients of which any could be lost")
        return self

    def training(self, seed: int) -> TrainConfig:
        """Return the run with this seed, as ``weir train`` would be told."""
        return make_config(
            model=self.model,
            plugin=self.plugin,
            workers=self.workers,
            epochs=self.epochs,
            max_steps=self.max_steps,
            method=self.method,
            density=self.density,
            block=self.block,
            threshold=self.threshold,
            warmup_steps=self.warmup_steps,
            lr=self.lr,
            seed=seed,
        )


def make_calibration(*, quick: bool = False, **given: Any) -> CalibrateConfig:
    """Return the configuration for these settings; ``None`` means the model's own.

    quick: one seed, half of the epochs, a coarse grid: to see it work, not to rely on. Raises ConfigError.
    """
    known = {key: value for key, value in given.items() if value is not None}
    length = LENGTHS.get(known.get("model", ""))
    if length is not None:
        known = {"epochs": length.epochs, "max_steps": length.max_steps, **known}
        known.setdefault("out", Path(f"policy-{known['model']}.json"))
    if quick:
        known = {"seeds": 1, "grid": QUICK_GRID, **known}
        if length is not None and given.get("epochs") is None:
            known["epochs"] = max(1, length.epochs // 2)
    try:
        return CalibrateConfig.model_validate(known)
    except ValidationError as error:
        raise ConfigError(in_words(error)) from None
