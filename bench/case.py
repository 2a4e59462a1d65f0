# SPDX-License-Identifier: Apache-2.0
"""A benchmark as data: a case, the parameters that it takes, and what the runner gives it.

A case's module has a frozen dataclass ``Parameters`` and a function ``run``. It is imported when the case is
asked for, not before: a list of all cases costs nothing.
"""

import importlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from weir.bench.results import Plot, Table

T = TypeVar("T")

_WORDS: Final = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


class ParameterError(ValueError):
    """A parameter is not one of the case's, or cannot have this value; the message says what it may be."""


class UnavailableError(RuntimeError):
    """A case cannot be measured on this machine; the message says what it needs."""


@dataclass(frozen=True)
class Limits:
    """Limits of a parameter, or of each number or word of a list, and a description of it.

    above, least, most: of numbers. choices: all that there are.
    """

    about: str
    unit: str
    above: float | None
    least: float | None
    most: float | None
    choices: tuple[str | int, ...]

    def __str__(self) -> str:
        """Return what is allowed, as text."""
        bounds = (("above", self.above), ("at least", self.least), ("at most", self.most))
        words = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
        return ", ".join(map(str, self.choices)) if self.choices else " and ".join(words)

    def check(self, value: Any) -> None:
        """Raise ParameterError for a value that is not allowed, NaN included."""
        if self.choices and value not in self.choices:
            raise ParameterError(f"is one of {self}, not {value!r}")
        if (
            (self.above is not None and not value > self.above)
            or (self.least is not None and not value >= self.least)
            or (self.most is not None and not value <= self.most)
        ):
            raise ParameterError(f"is {self}, not {value:g}")


def parameter(
    default: T,
    about: str,
    *,
    unit: str = "",
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    choices: Iterable[str | int] = (),
) -> T:
    """Return a field of a case's ``Parameters``: a number, a word, yes or no, or a tuple of one of these."""
    limits = Limits(about, unit, above, least, most, tuple(choices))
    return field(default=default, metadata={"limits": limits})


@dataclass(frozen=True)
class Run:
    """Settings that the runner gives a case beside its parameters.

    Attributes:
        repeats: repetitions that count, of every contender; one that warms up comes before them.
        seeds: of all that is random: a run of each contender for each.
        processes: simulations at a time; None: one per core.
        journal: file that keeps every simulation that has ended, see ``weir.bench.grid``.
        plugins: files with methods of one's own.
        say: tells the user how far it is.
        show: tables are printed.
    """

    repeats: int
    seeds: Sequence[int]
    processes: int | None = None
    journal: Path | None = None
    plugins: Sequence[Path] = ()
    say: Callable[[str], None] = lambda _: None
    show: bool = True


@dataclass(frozen=True)
class Floor:
    """A ratio that a small run of a case must reach: pages state it, or a larger one.

    Attributes:
        column: of a table of the case, less of which is better.
        contender, against: rows, by how their names begin: ours, and what it is compared with. Of several
            settings the worst counts.
        least: times that the other's figure is ours, at least.
        values: parameters of the small run.
    """

    column: str
    contender: str
    against: str
    least: float
    values: Mapping[str, str]

    def __str__(self) -> str:
        """Return the column and the two rows as text."""
        return f"{self.column}: {self.contender} against {self.against}"

    def reached(self, tables: Iterable[Table]) -> float | None:
        """Return the ratio; None where no table has both rows."""
        found = [
            theirs / ours
            for table in tables
            for row in table.rows
            for other in table.rows
            if row.contender.startswith(self.contender)
            and other.contender.startswith(self.against)
            and row.setting == other.setting
            and (ours := row.middle(self.column))
            and (theirs := other.middle(self.column)) is not None
        ]
        return min(found, default=None)


@dataclass(frozen=True)
class Case:
    """A benchmark.

    Attributes:
        suite, name: as in ``weir bench run SUITE/NAME``.
        summary: what it measures, against what, in one sentence.
        takes: how long, with its own settings on two idle cores, to an order of magnitude.
        quick: the parameters that try it out in seconds.
        repeats, seeds: how many there are unless the user says otherwise; 0: the case knows no repetitions,
            or nothing in it is random.
        module: of ``Parameters`` and ``run``, in the suite's folder; by itself, the name.
        values: the parameters that differ from the module's own defaults.
        floors: see ``weir bench verify``; none of them may depend on the machine.
        counted: parameters of a small run, of which ``weir bench verify`` looks at nothing but whether the
            mechanisms did something; it is left out where the machine cannot run it.
    """

    suite: str
    name: str
    summary: str
    takes: str
    quick: Mapping[str, str]
    repeats: int = 0
    seeds: int = 0
    module: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    floors: Sequence[Floor] = ()
    counted: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Name by which it is run."""
        return f"{self.suite}/{self.name}"

    def load(self) -> Any:
        """Import and return the module."""
        name = self.module or self.name.replace("-", "_")
        return importlib.import_module(f"weir.bench.{self.suite}.{name}")

    def parameters(self, assigned: Mapping[str, str]) -> Any:
        """Return the case's parameters with these values. Raises ParameterError."""
        return read(self.load().Parameters, {**self.values, **assigned})

    def run(self, parameters: Any, run: Run) -> "Iterable[Table | Plot]":
        """Measure; yield each table, and the picture, as soon as it is complete."""
        outputs: Iterable[Table | Plot] = self.load().run(parameters, run)
        return outputs


def read(kind: Any, assigned: Mapping[str, str]) -> Any:
    """Return a ``Parameters`` with values that were given as text.

    Raises:
        ParameterError: see there.
    """
    known = {each.name: each for each in fields(kind)}
    if unknown := assigned.keys() - known.keys():
        raise ParameterError(f"no parameter {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    hints = typing.get_type_hints(kind)
    values = {}
    for name, text in assigned.items():
        limits: Limits = known[name].metadata["limits"]
        try:
            values[name] = _value(hints[name], text, limits)
        except ParameterError as error:
            raise ParameterError(f"{name} {error}") from None
    try:
        return kind(**values)
    except ValueError as error:
        raise ParameterError(str(error)) from None


def _value(hint: Any, text: str, limits: Limits) -> Any:
    """Return a value of a field's type: of a tuple, a comma-separated list; "none" where that may be."""
    options = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        if text == "none":
            return None
        (hint,) = (option for option in options if option is not type(None))
        options = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return tuple(_single(options[0], part.strip(), limits) for part in text.split(",") if part.strip())
    return _single(hint, text, limits)


def _single(kind: Any, text: str, limits: Limits) -> Any:
    if kind is bool:
        if text not in _WORDS:
            raise ParameterError(f"is yes or no, not {text!r}")
        return _WORDS[text]
    if kind not in (int, float):
        limits.check(text)
        return text
    try:
        value = kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ParameterError(f"is {what}, not {text!r}") from None
    limits.check(value)
    return value


def in_words(value: Any) -> str:
    """Return a parameter's value as the user would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(in_words, value))
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
