# SPDX-License-Identifier: Apache-2.0
"""The suites of benchmarks, and how a case is found in them."""

from collections.abc import Mapping
from typing import Final

from weir.bench import collectives, gradients, simulated, switch, training
from weir.bench.case import Case

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
