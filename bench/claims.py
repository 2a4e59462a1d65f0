# SPDX-License-Identifier: Apache-2.0
"""Headlines of the pages, and the records that they come from.

A claim's words have places for figures. The figures are computed from records, so that a page states nothing
that no run has shown. ``weir bench results`` writes the words between a page's marks::

    <!-- claim NAME -->...<!-- end -->
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from weir.bench.records import Record
from weir.bench.results import Row, Table

Kind = Literal["value", "times", "share", "saved"]

_FORMS: Final = {"value": "{:.3g}", "times": "{:.1f}", "share": "{:.0%}", "saved": "{:.0%}"}


@dataclass(frozen=True)
class Figure:
    """A number of a record, or of each of its settings: then the least and the greatest.

    Attributes:
        record: by name.
        column: of a table.
        contender, against: rows, by how their names begin; against: of the same setting.
        kind: "value": the contender's own. "times": how many times as good as the other. "share": its value
            over the other's. "saved": what is missing of that share.
        where: part of the rows' setting.
        table: part of the table's title.
        form: how a number is printed.
    """

    record: str
    column: str
    contender: str
    against: str = ""
    kind: Kind = "times"
    where: Mapping[str, str] = field(default_factory=dict)
    table: str = ""
    form: str = ""

    def rows(self, record: Record) -> Iterator[tuple[Table, Row, Row | None]]:
        """Yield each row with the one that it is compared with."""
        for table in record.tables:
            if self.table not in table.title or self.column not in (each.name for each in table.columns):
                continue
            for row in _named(self.contender, table.rows):
                if not self.where.items() <= row.setting.items():
                    continue
                if not self.against:
                    yield table, row, None
                for other in _named(self.against, table.rows) if self.against else ():
                    if other.setting == row.setting:
                        yield table, row, other

    def values(self, record: Record) -> list[float]:
        """Return the numbers."""
        found = (self._value(*each) for each in self.rows(record))
        return [value for value in found if value is not None]

    def _value(self, table: Table, row: Row, other: Row | None) -> float | None:
        ours = row.middle(self.column)
        if ours is None or self.kind == "value":
            return ours
        theirs = None if other is None else other.middle(self.column)
        if theirs is None:
            return None
        if self.kind == "times":
            if self.column == table.columns[0].name:
                return table.gain(row, other)
            return theirs / ours
        return ours / theirs if self.kind == "share" else 1 - ours / theirs

    def words(self, record: Record) -> str:
        """Return the number, or the least and the greatest.

        Raises:
            LookupError: the record has no such rows.
        """
        values = self.values(record)
        if not values:
            raise LookupError(f"{self.record}: no {self.column!r} of {self.contender!r}")
        form = self.form or _FORMS[self.kind]
        least, most = (form.format(each).replace("%", " %") for each in (min(values), max(values)))
        return least if least == most else f"{least.removesuffix(' %')} to {most}"


def _named(begin: str, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of this contender; if there is none, of those whose names begin so."""
    exact = [row for row in rows if row.contender == begin]
    return exact or [row for row in rows if row.contender.startswith(begin)]


@dataclass(frozen=True)
class Claim:
    """A headline.

    Attributes:
        title: of its section.
        words: with ``{name}`` for each figure.
        conditions: what was measured, and its limits.
        commands: that make the records which are not there yet; of others, the record knows.
        again: ``weir bench verify`` makes the records again, as nothing in them depends on the machine.
    """

    name: str
    title: str
    words: str
    conditions: str
    figures: Mapping[str, Figure]
    commands: Mapping[str, str] = field(default_factory=dict)
    again: bool = False

    @property
    def records(self) -> tuple[str, ...]:
        """Names of the records."""
        return tuple(dict.fromkeys(figure.record for figure in self.figures.values()))

    def said(self, records: Mapping[str, Record]) -> str | None:
        """Return the words with their figures; None where a record is missing."""
        if any(name not in records for name in self.records):
            return None
        found = {name: each.words(records[each.record]) for name, each in self.figures.items()}
        return self.words.format(**found)


@dataclass(frozen=True)
class Published:
    """A figure of another system's paper.

    Attributes:
        claims: Weir's beside it.
        words: what must be known to compare them, or why there is none.
    """

    number: str
    system: str
    figure: str
    words: str
    claims: Sequence[str] = ()
