# SPDX-License-Identifier: Apache-2.0
"""Results of a benchmark: rows with every repetition, and what follows from them.

A comparison states what it is worth: beside a contender's figures stand its peers in the same setting, its
twin (the same without the mechanism), what the mechanism did, and the best that is possible.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal, TypeAlias

MOST: Final = 1.02
"""Share of what is possible that a row may reach: clocks of real links are off by so much."""

Scalar: TypeAlias = str | int | float | bool | None
Value: TypeAlias = Scalar | list[float]
"""One value, or that of every repetition or seed."""


def plain(value: float) -> str:
    """Return a number with three digits, or all before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float) -> str:
    """Return a share in per cent, with one decimal."""
    return f"{value:.1%}"


@dataclass(frozen=True)
class Column:
    """A quantity.

    name: its head, with its unit. show: how one number is printed. note: what it is, where that is not plain.
    """

    name: str
    show: Callable[[float], str] = plain
    note: str = ""


@dataclass(frozen=True)
class Row:
    """Results of one contender in one setting.

    Attributes:
        contender: as text.
        values: by column.
        setting: what tells this row from others of the same contender.
        twin: the contender that is the same without the mechanism.
        counts: what the mechanism did, by name; a benchmark fails where it did nothing (0).
        floor: the best value of the first column that is possible.
    """

    contender: str
    values: Mapping[str, Value]
    setting: Mapping[str, Scalar] = field(default_factory=dict)
    twin: str = ""
    counts: Mapping[str, float] = field(default_factory=dict)
    floor: float | None = None

    def middle(self, column: str) -> float | None:
        """Return a column's median; None where there is no number."""
        value = self.values.get(column)
        if isinstance(value, list):
            return median(value)
        return None if isinstance(value, str) or value is None else float(value)

    @property
    def label(self) -> str:
        """Setting and contender, as text."""
        return ", ".join(
            [*(str(each) for each in self.setting.values() if each not in ("", None)), self.contender]
        )


@dataclass(frozen=True)
class Table:
    """Rows that are compared by their first column.

    Attributes:
        peers: contenders with which every other one is compared in the same setting.
        better: whether less of the first column is better, or more.
        floor: what a row's floor is, as text; heads the column of the share that was reached.
        notes: what must be known to read the table.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    peers: tuple[str, ...] = ()
    better: Literal["less", "more"] = "less"
    floor: str = ""
    notes: tuple[str, ...] = ()

    def beside(self, row: Row, contender: str) -> Row | None:
        """Return another contender's row in the same setting."""
        found = (one for one in self.rows if one.contender == contender and one.setting == row.setting)
        return next(found, None)

    def gain(self, row: Row, other: Row | None) -> float | None:
        """Return how many times as good as another a row is; None where there is nothing to compare.

        Rows with as many repetitions as each other have taken turns: then it is the median of the turns.
        """
        name = self.columns[0].name
        if other is None:
            return None
        ours, theirs = row.values.get(name), other.values.get(name)
        if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
            pairs = list(zip(ours, theirs, strict=True))
        else:
            one, two = row.middle(name), other.middle(name)
            if one is None or two is None:
                return None
            pairs = [(one, two)]
        if self.better == "less":
            pairs = [(theirs, ours) for ours, theirs in pairs]
        return median(more / less for more, less in pairs) if all(less for _, less in pairs) else None

    def of_floor(self, row: Row) -> float | None:
        """Return the share of what is possible that a row has reached."""
        middle = row.middle(self.columns[0].name)
        if middle is None or row.floor is None or not middle or not row.floor:
            return None
        return row.floor / middle if self.better == "less" else middle / row.floor

    @property
    def impossible(self) -> list[str]:
        """Rows that are better than what is possible, as text: what was measured or the floor is wrong."""
        shares = ((row, self.of_floor(row)) for row in self.rows)
        return [
            f"{row.label}: {share:.1%} of {self.floor}" for row, share in shares if share and share > MOST
        ]

    @property
    def idle(self) -> list[str]:
        """Mechanisms that did nothing, as text."""
        return [f"{row.label}: no {name}" for row in self.rows for name, n in row.counts.items() if not n]


@dataclass(frozen=True)
class Line:
    """A line of a picture. style: matplotlib's; "steps": a distribution function."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    style: str = "o-"
    colour: str | None = None


@dataclass(frozen=True)
class Panel:
    """Axes with lines. log: the logarithmic axes, "", "x", "y" or "xy". marks: heights of dotted lines."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log: str = ""
    marks: Sequence[float] = ()


@dataclass(frozen=True)
class Plot:
    """A picture: panels beside each other."""

    title: str
    panels: Sequence[Panel]
