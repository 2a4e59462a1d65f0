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
    """A number of records; of several settings, or of several records, the least and the greatest.

    Attributes:
        records: by name.
        column: of a table, by how its name begins.
        contender, against: rows, by how their names begin; against: of the same setting.
        kind: "value": the contender's own. "times": how many times as good as the other. "share": its value
            over the other's. "saved": what is missing of that share.
        where: part of the rows' setting, by name: the values that count.
        table: part of the table's title.
        form: how a number is printed.
    """

    records: tuple[str, ...]
    column: str
    contender: str
    against: str = ""
    kind: Kind = "times"
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    table: str = ""
    form: str = ""

    def rows(self, record: Record) -> Iterator[tuple[Table, Row, Row | None]]:
        """Yield each row with the one that it is compared with."""
        for table in record.tables:
            if self.table not in table.title or not self._column(table):
                continue
            for row in _named(self.contender, table.rows):
                if any(row.setting.get(name) not in wanted for name, wanted in self.where.items()):
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
        column = self._column(table)
        ours = row.middle(column)
        if ours is None or self.kind == "value":
            return ours
        theirs = None if other is None else other.middle(column)
        if theirs is None:
            return None
        if self.kind == "times":
            if column == table.columns[0].name:
                return table.gain(row, other)
            return theirs / ours
        return ours / theirs if self.kind == "share" else 1 - ours / theirs

    def _column(self, table: Table) -> str:
        """Return the column's whole name; empty if the table has none."""
        return next((each.name for each in table.columns if each.name.startswith(self.column)), "")

    def words(self, records: Mapping[str, Record]) -> str:
        """Return the number, or the least and the greatest.

        Raises:
            LookupError: a record has no such rows.
        """
        found = [self.values(records[name]) for name in self.records]
        values = [value for each in found for value in each]
        if not all(found):
            raise LookupError(f"{', '.join(self.records)}: no {self.column!r} of {self.contender!r}")
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
        commands: that make the records, by their names.
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
        return tuple(dict.fromkeys(name for each in self.figures.values() for name in each.records))

    def said(self, records: Mapping[str, Record]) -> str:
        """Return the words with their figures. Raises LookupError for a record that is missing."""
        for name in self.records:
            if name not in records:
                raise LookupError(f"no record {name!r}: {self.commands[name]} --record {name} makes it")
        found = {name: each.words(records) for name, each in self.figures.items()}
        return self.words.format(**found)


@dataclass(frozen=True)
class Published:
    """A figure of another system's paper.

    Attributes:
        claims: Weir's beside it.
        words: what must be known to compare them, or why there is none.
        twin: what Weir's is compared with.
        counter: that shows that the mechanism acted.
        command: prints the figure; empty where a claim has the command, or where there is no figure.
    """

    number: str
    system: str
    figure: str
    words: str
    claims: Sequence[str] = ()
    twin: str = ""
    counter: str = ""
    command: str = ""
