# SPDX-License-Identifier: Apache-2.0
"""A path to a hub that a sum and CUBIC streams use at the same time: who gets how much of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table
from weir.bench.simulated.paths import Path, simulate_sharing


@dataclass(frozen=True)
class Parameters:
    """The path of the first worker, which the streams use as well; that of the other one is the same."""

    megabits: float = parameter(20.0, "rate", unit="Mbit/s", least=0.1)
    milliseconds: float = parameter(50.0, "round trip", unit="ms", least=0.1)
    buffers: tuple[float, ...] = parameter(
        (0.25, 0.5, 1.0, 2.0), "of a queue, in what the path holds in a round trip", least=0.01
    )
    loss: float = parameter(0.0, "share lost at random in each direction", least=0, most=0.5)
    streams: int = parameter(1, "CUBIC streams", least=1, most=16)
    seconds: float = parameter(20.0, "how long", unit="s", least=1)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Let them share a path in each direction, for each length of its queue."""
    rows = []
    for buffer in parameters.buffers:
        path = Path(parameters.megabits * 1e6, parameters.milliseconds / 1e3, parameters.loss, buffer)
        for up, way in ((True, "to the hub"), (False, "from the hub")):
            name = f"queue of {buffer:g}, {way}"
            run.say(f"{name} ...")
            found = simulate_sharing(path, up=up, streams=parameters.streams, seconds=parameters.seconds)
            figures = {
                "job, Mbit/s": found.job / 1e6,
                "streams, Mbit/s": sum(found.streams) / 1e6,
                "x fair": found.fair,
            }
            rows.append(Row(name, figures))
    yield Table(
        f"A sum beside {parameters.streams} CUBIC streams, {parameters.megabits:g} Mbit/s, "
        f"{parameters.milliseconds:g} ms, {parameters.loss:.1%}, in virtual time",
        (
            Column("job, Mbit/s", lambda rate: f"{rate:.2f}"),
            Column("streams, Mbit/s", lambda rate: f"{rate:.2f}"),
            Column("x fair", lambda factor: f"{factor:.2f}", "the job's part, over an equal one"),
        ),
        tuple(rows),
    )
