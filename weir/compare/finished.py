# SPDX-License-Identifier: Apache-2.0
"""Finished runs of ``weir train``, read from their summaries, and whether they may be compared."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from softp4.native.json_text import parse_object
from weir.train.config import OF_THE_COMMAND, TrainConfig, in_words
from weir.train.options import in_line
from weir.train.summary import SCHEMA
from weir.train.words import method_words

SUMMARY: Final = "summary.json"
_NAMES: Final = {"weir": "", "gloo": " (Gloo)"}
_SAME: Final = ("model", "data", "workers", "batch_size")
"""Settings in which runs that are compared must not differ: a step of one would be no step of the other."""


class FinishedError(Exception):
    """Runs that cannot be compared. The message names the file, and what is wrong."""


@dataclass(frozen=True)
class Finished:
    """One run of a summary.

    name: of its folder. curve: step and accuracy of each evaluation. Bytes are those of a worker and step.
    """

    name: str
    method: str
    status: str
    steps: int
    resumed_after: int
    accuracy: float | None
    curve: tuple[tuple[int, float], ...]
    bytes_up: float
    bytes_down: float
    step_s: float
    training_s: float

    def as_json(self) -> dict[str, Any]:
        """Return the run for compared.json."""
        return asdict(self)


@dataclass(frozen=True)
class Comparison:
    """Runs that may be compared. differing: settings in which they differ, with the value of each summary."""

    runs: tuple[Finished, ...]
    title: str
    differing: tuple[tuple[str, tuple[str, ...]], ...]


def compared(paths: Sequence[Path]) -> Comparison:
    """Return the comparison of the runs of these folders, or summary files. Raises FinishedError."""
    if len(paths) < 2:
        raise FinishedError(f"cannot compare {paths[0]} alone: give at least two folders")
    if len({path.resolve() for path in paths}) < len(paths):
        raise FinishedError("a run is given twice")
    read = [_read(path) for path in paths]
    configs = [config for _, config, _ in read]
    for (name, config, _), setting in ((one, setting) for one in read[1:] for setting in _SAME):
        first = getattr(configs[0], setting)
        if (own := getattr(config, setting)) != first:
            raise FinishedError(
                f"{name} was trained with {in_line([setting])} {own}, {read[0][0]} with {first}: their "
                f"steps are not alike, so neither bytes nor times of a step can be compared"
            )
    runs = tuple(run for _, _, found in read for run in found)
    config = configs[0]
    title = f"{config.model} on {config.data}, {config.workers} workers, batches of {config.batch_size}"
    return Comparison(runs, title, _differing(configs))


def _differing(configs: Sequence[TrainConfig]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    dumped = [config.model_dump(mode="json", exclude=set(OF_THE_COMMAND)) for config in configs]
    return tuple(
        (name, tuple(str(one[name]) for one in dumped))
        for name in dumped[0]
        if any(one[name] != dumped[0][name] for one in dumped)
    )


def _read(path: Path) -> tuple[str, TrainConfig, list[Finished]]:
    """Return a run's name, its settings, and what was trained with them."""
    file = path / SUMMARY if path.is_dir() else path
    name = (path if path.is_dir() else path.parent).resolve().name
    try:
        summary = parse_object(file.read_bytes())
    except OSError as error:
        raise FinishedError(
            f"cannot read {file}: {error.strerror}; give the folder of a run of weir train, which has ended"
        ) from None
    except ValueError as error:
        raise FinishedError(f"{file} is not a JSON object: {error}") from None
    try:
        if "shares_are_of" in summary:
            raise FinishedError(
                f"{file} comes from weir compare, which has already compared its runs; see its page"
            )
        if summary["schema"] != SCHEMA:
            raise FinishedError(f"{file} has schema {summary['schema']}; this Weir reads {SCHEMA}")
        config = TrainConfig.model_validate(summary["config"])
        runs = [
            _finished(name + _NAMES[which], which, config, run)
            for which, run in summary["runs"].items()
            if run["steps"]
        ]
    except ValidationError as error:
        raise FinishedError(f"{file} has settings that cannot be used:\n{in_words(error)}") from None
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        raise FinishedError(f"{file} is not a summary of weir train") from None
    if not runs:
        raise FinishedError(f"{name} has no finished step")
    return name, config, runs


def _finished(name: str, which: str, config: TrainConfig, run: dict[str, Any]) -> Finished:
    steps, traffic = _count(run["steps"]), run["per_worker"]
    return Finished(
        name=name,
        method="dense, all-reduce" if which == "gloo" else method_words(config),
        status=str(run["status"]),
        steps=steps,
        resumed_after=_count(run.get("resumed_after_step") or 0),
        accuracy=None if run["accuracy"] is None else _number(run["accuracy"]),
        curve=tuple((_count(each["step"]), _number(each["accuracy"])) for each in run["epochs"]),
        bytes_up=_number(traffic["bytes_up"]) / steps,
        bytes_down=_number(traffic["bytes_down"]) / steps,
        step_s=_number(run["step_s_median"]),
        training_s=_number(run["training_s"]),
    )


def _number(value: Any) -> float:
    """Return a number of a file. Raises ValueError, TypeError for anything else."""
    number = float(value)
    if isinstance(value, str | bool) or not math.isfinite(number):
        raise ValueError
    return number


def _count(value: Any) -> int:
    """Return a count in a file. Raises ValueError for anything else."""
    if type(value) is not int or value < 0:
        raise ValueError
    return value
