# SPDX-License-Identifier: Apache-2.0
"""Options that the benchmarks' commands have in common, and how what they are given is read."""

from typing import TYPE_CHECKING, TypeVar

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


def begin(name: str, doing: str) -> None:
    """Say what goes on, before what takes seconds is imported."""
    typer.echo(f"weir bench {name}: {doing} ...", err=True)
