# SPDX-License-Identifier: Apache-2.0
"""Records whose figures depend on no machine are made again, and compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weir.bench.case import Run
from weir.bench.claims import Claim
from weir.bench.records import Record
from weir.bench.results import Table
from weir.bench.suites import find

TOLERANCE: Final = 0.02
"""By which a figure may differ: training in float32 differs in last bits between processors."""


@dataclass(frozen=True)
class Moved:
    """A figure's numbers in a record, and made again."""

    claim: Claim
    figure: str
    recorded: Sequence[float]
    found: Sequence[float]

    @property
    def same(self) -> bool:
        """Return whether all are within the tolerance."""
        if len(self.recorded) != len(self.found):
            return False
        pairs = zip(self.recorded, self.found, strict=True)
        return all(abs(one - other) <= TOLERANCE * max(abs(one), abs(other)) for one, other in pairs)


def make_again(claims: Sequence[Claim], records: Mapping[str, Record], run: Run) -> Iterator[Moved]:
    """Run the commands of the claims' records that can be had again; yield each figure."""
    for claim in claims:
        for name in claim.records if claim.again else ():
            if (record := records.get(name)) is None:
                continue
            run.say(f"{record.command} ...")
            (case,) = find(record.case)
            parameters = case.parameters(record.parameters)
            own = replace(run, repeats=record.repeats, seeds=record.seeds)
            tables = [one for one in case.run(parameters, own) if isinstance(one, Table)]
            made = replace(record, tables=tables)
            for figure, each in claim.figures.items():
                if name in each.records:
                    yield Moved(claim, figure, each.values(record), each.values(made))
