# SPDX-License-Identifier: Apache-2.0
"""The suites of benchmarks, how a case is found in them, and whether the cases keep their floors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from weir.bench import collectives, gradients, simulated, switch, training
from weir.bench.case import Case, Floor, Run, UnavailableError
from weir.bench.results import Table

SUITES: Final[Mapping[str, tuple[Case, ...]]] = {
    "switch": switch.CASES,
    "collectives": collectives.CASES,
    "training": training.CASES,
    "gradients": gradients.CASES,
    "simulated": simulated.CASES,
}


class UnknownCaseError(ValueError):
    """There is no such suite or case; the message says what there is."""


def find(name: str) -> tuple[Case, ...]:
    """Return the cases of ``SUITE``, or the one of ``SUITE/CASE``.

    Raises:
        UnknownCaseError: see there.
    """
    suite, _, case = name.partition("/")
    if suite not in SUITES:
        raise UnknownCaseError(f"there is no suite {suite!r}; there are {', '.join(SUITES)}")
    if not case:
        return SUITES[suite]
    found = tuple(each for each in SUITES[suite] if each.name == case)
    if not found:
        names = ", ".join(each.name for each in SUITES[suite])
        raise UnknownCaseError(f"there is no case {case!r} in {suite}; there are {names}")
    return found


@dataclass(frozen=True)
class Verdict:
    """A floor, and the ratio of this run. reached: None: a row was missing."""

    case: Case
    floor: Floor
    reached: float | None

    @property
    def kept(self) -> bool:
        """Return whether the ratio reaches its floor."""
        return self.reached is not None and self.reached >= self.floor.least


def verify(cases: Sequence[Case], run: Run) -> Iterator[Verdict | str]:
    """Run each case once for all floors with the same parameters.

    Yields:
        Verdicts, and sentences as of ``problems``.
    """
    for case in cases:
        if case.counted:
            yield from _idle(case, run)
        for values, floors in groupby(case.floors, key=lambda floor: dict(floor.values)):
            run.say(f"{case.path} {' '.join(f'{name}={value}' for name, value in values.items())}")
            tables = [one for one in case.run(case.parameters(values), run) if isinstance(one, Table)]
            for floor in floors:
                yield Verdict(case, floor, floor.reached(tables))
            yield from problems(case, tables)


def _idle(case: Case, run: Run) -> Iterator[str]:
    """Run the case once for its counts. Yield sentences as of ``problems``."""
    run.say(f"{case.path} {' '.join(f'{name}={value}' for name, value in case.counted.items())}")
    try:
        outputs = list(case.run(case.parameters(case.counted), replace(run, repeats=1)))
    except UnavailableError as error:
        run.say(f"{case.path}: {error}")
        return
    yield from problems(case, (one for one in outputs if isinstance(one, Table)))


def problems(case: Case, tables: Iterable[Table]) -> Iterator[str]:
    """Yield a sentence for each mechanism that did nothing, and each figure that cannot be."""
    for table in tables:
        yield from (f"{case.path}: a mechanism did nothing: {idle}" for idle in table.idle)
        yield from (f"{case.path}: more than is possible: {row}" for row in table.impossible)
