# SPDX-License-Identifier: Apache-2.0
"""Table entries written to, and read from, the soft switch and BMv2 over P4Runtime."""

from collections.abc import Iterator
from dataclasses import dataclass

from softp4.bench.requests import BMV2, PROGRAMS, WORK, compare, contenders
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table


@dataclass(frozen=True)
class Parameters:
    """The requests."""

    entries: int = parameter(10_000, "Entries of the table.", least=1)
    batch: int = parameter(200, "Updates in a Write.", least=1)


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure each program; BMv2 only when it is on PATH, said if not."""
    if BMV2 not in contenders():
        run.say("BMv2 not measured: simple_switch_grpc is not on PATH")
    for name, case in PROGRAMS.items():
        run.say(f"{name} ...")
        rates = compare(case, given.entries, given.batch, run.repeats)
        yield Table(
            f"P4Runtime: {name}; {given.entries:,} entries, {given.batch} in a Write",
            (Column("entries/s"),),
            tuple(
                Row(kind, {"entries/s": [one[work] for one in rates[kind]]}, {"work": work})
                for work in WORK
                for kind in rates
            ),
            peers=tuple(kind for kind in rates if kind == BMV2),
            better="more",
        )
