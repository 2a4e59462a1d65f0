# SPDX-License-Identifier: Apache-2.0
"""Options that the benchmarks' commands have in common, and how what they are given is read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from weir.train.config import Model

_Number = TypeVar("_Number", int, float)


def shares(given: float | list[float] | None) -> float | list[float] | None:
    """Return shares as they are; refuse those that are none: 5, 0, NaN."""
    for share in [given] if isinstance(given, float) else given or []:
        if not 0 < share <= 1:
            raise typer.BadParameter(f"is a share, above 0 and at most 1 (1 is all), not {share:g}")
    return given


Workers = Annotated[int, typer.Option(min=1, max=32, help="Number of workers.")]

Density = Annotated[
    float,
    typer.Option(
        callback=shares,
        help="Share of the values (or blocks) to send, above 0, at most 1, with methods that send a share.",
    ),
]

Journal = Annotated[
    Path | None,
    typer.Option(help="File that keeps every run that has ended: the same command goes on from there."),
]


def numbers(kind: type[_Number], text: str, option: str, above: float, most: float) -> list[_Number]:
    """Return a comma-separated list of numbers, above one limit and not above the other."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(above < number <= most for number in found):
        raise typer.BadParameter(f"{option}: numbers above {above:g}, at most {most:g}, not {text!r}")
    return found


def model_of(name: str) -> "Model":
    from weir.train.config import PRESETS

    for model in PRESETS:
        if model == name:
            return model
    raise typer.BadParameter(f"--model: {', '.join(PRESETS)}, not {name!r}")


def models_of(text: str) -> "list[Model]":
    """Return models of a comma-separated list, in the order of their presets."""
    from weir.train.config import PRESETS

    if unknown := set(text.split(",")) - set(PRESETS):
        raise typer.BadParameter(f"--models: {', '.join(PRESETS)}, not {', '.join(sorted(unknown))}")
    return [model for model in PRESETS if model in text.split(",")]


def begin(name: str, doing: str) -> None:
    """Say what goes on, before what takes seconds is imported."""
    typer.echo(f"weir bench {name}: {doing} ...", err=True)
