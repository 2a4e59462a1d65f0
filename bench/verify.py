# SPDX-License-Identifier: Apache-2.0
"""Runs cases small, and holds their ratios against the floors that stand with the cases."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from weir.bench.case import Case, Floor, Run
from weir.bench.results import Table


@dataclass(frozen=True)
class Verdict:
    """A floor, and the ratio of this run. reached: None: a row was missing."""

    case: Case
    floor: Floor
    reached: float | None

    @property
    def kept(self) -> bool:
        """Whether the ratio is no lower than its floor."""
        return self.reached is not None and self.reached >= self.floor.least


def verify(cases: Sequence[Case], run: Run) -> Iterator[Verdict | str]:
    """Run each case once for all floors with the same parameters.

    Yields:
        Verdicts, and a sentence for each mechanism that did nothing.
    """
    for case in cases:
        for values, floors in groupby(case.floors, key=lambda floor: dict(floor.values)):
            run.say(f"{case.path} {' '.join(f'{name}={value}' for name, value in values.items())}")
            tables = [one for one in case.run(case.parameters(values), run) if isinstance(one, Table)]
            for floor in floors:
                yield Verdict(case, floor, floor.reached(tables))
            for table in tables:
                yield from (f"{case.path}: a mechanism did nothing: {idle}" for idle in table.idle)
