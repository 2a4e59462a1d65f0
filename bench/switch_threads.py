# SPDX-License-Identifier: Apache-2.0
"""``weir bench switch --threads``: one soft switch on several threads against the same on one.

Processors are not equally fast for long where they are virtual: a neighbour's load takes half of one for some
milliseconds, or for minutes, and two may be threads of one core for a while, fast as long as the other rests.
So one thread is measured on each of them in turn, right before and right after the switches with several
threads, and what several gain is told as times the mean of these; and as many switches of one thread are
measured at the same time. How it comes out where processors differ, or hinder each other, says more about the
machine than about the switch: only turns in which they were equal, and as fast together, count, whatever came
out of them.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import truediv
from statistics import mean, median
from threading import Barrier
from typing import Final

from rich.console import Console

from softp4.switch import Switch
from weir.bench import native
from weir.bench.switch import JOB, admit, over_rings
from weir.bench.table import show, spread
from weir.p4src import PROGRAM
from weir.report.words import factor

EQUAL: Final = 1.1  # times as fast as the slowest is the fastest, at most
TURNS: Final = 20  # for each that is to count, at most
_FRAMES: Final = 100_000  # of one measurement: 20 ms

console = Console(stderr=True)


@dataclass(frozen=True)
class Turn:
    """Packets per second into a switch: of one thread by processor, before and after, and by threads.

    beside: by a number, packets per second into so many switches of one thread at the same time.
    """

    alone: tuple[float, ...]
    beside: dict[int, float]
    together: dict[int, float]

    @property
    def steady(self) -> bool:
        """Tell whether all processors were equally fast, from the beginning of the turn to its end, and as
        fast at the same time.
        """
        processors = len(self.alone) // 2
        each = [rate / min(count, processors) for count, rate in self.beside.items()]
        return max(self.alone) <= EQUAL * min(*self.alone, *each)

    def gain(self, threads: int) -> float:
        """Return how many times the mean of one thread."""
        return self.together[threads] / mean(self.alone)


def run(threads: Sequence[int], workers: int, slots: int, lanes: int, seconds: float, repeats: int) -> None:
    """Measure one thread and each number of `threads`, in memory and over shared memory, and print."""
    counts = sorted({1, *threads})
    turns = in_memory(counts[1:], workers, slots, lanes, repeats)
    rings: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(repeats):
        for count, rates in rings.items():
            rates.append(over_rings(workers, slots, lanes, seconds, count).packets)
    report(turns, rings, workers, lanes)


def in_memory(threads: Sequence[int], workers: int, slots: int, lanes: int, repeats: int) -> list[Turn]:
    """Return turns until `repeats` of them were steady, or there were `TURNS` times as many.

    Frames of hundreds of rounds, so many that no cache holds them, are handed over two rounds at a time.
    """
    load = native.contributions(JOB, workers, lanes)
    rounds = max(2, _FRAMES // (workers * slots) // 2 * 2)
    processors = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        most = max(threads, default=1)
        pool = stack.enter_context(ThreadPoolExecutor(most))
        singles = [stack.enter_context(Switch(PROGRAM)) for _ in range(most)]
        teams = {count: stack.enter_context(Switch(PROGRAM, threads=count)) for count in threads}
        for switch in (*singles, *teams.values()):
            admit(switch, workers, slots)
        for count, team in teams.items():
            if reasons := team.threads.share().reasons:
                raise RuntimeError(f"{count} threads: {'; '.join(reasons)}")
        began = dict.fromkeys((*singles, *teams.values()), 2)

        def rate(switch: Switch, ready: Barrier | None = None) -> float:
            first = began[switch]
            began[switch] += rounds
            with native.Rounds(load, slots, first, first + rounds) as made:
                if ready is not None:
                    ready.wait()
                return made.into(switch)

        def alone() -> list[float]:
            return [_on(processor, partial(rate, singles[0])) for processor in processors]

        def beside(count: int) -> float:
            ready = Barrier(count, timeout=60)
            where = [processors[number % len(processors)] for number in range(count)]
            rates = [partial(rate, switch, ready) for switch in singles[:count]]
            return sum(pool.map(_on, where, rates))

        def turn() -> Turn:
            before = alone()
            around = {count: beside(count) for count in threads}
            together = {count: rate(team) for count, team in teams.items()}
            return Turn((*before, *alone()), around, together)

        turn()  # warms up
        turns: list[Turn] = []
        while sum(each.steady for each in turns) < repeats and len(turns) < TURNS * repeats:
            turns.append(last := turn())
            rates = [f"one thread {min(last.alone):,.0f} to {max(last.alone):,.0f}"]
            for count, found in last.together.items():
                rates.append(f"{count} side by side {last.beside[count]:,.0f}, {count} threads {found:,.0f}")
            console.print(f"{', '.join(rates)} packets/s{'' if last.steady else '; not counted'}")
    return turns


def _on(processor: int, measure: Callable[[], float]) -> float:
    """Measure with the calling thread on one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        return measure()
    finally:
        os.sched_setaffinity(0, before)


def report(turns: Sequence[Turn], rings: dict[int, list[float]], workers: int, lanes: int) -> None:
    """Print packets per second by place and number of threads: of turns in memory, and over rings."""
    steady = [turn for turn in turns if turn.steady]
    counted = steady or turns
    counts = list(turns[0].together)

    def row(threads: int | str, where: str, rates: Sequence[float], gain: float) -> tuple[str, ...]:
        return f"{threads}, {where}", f"{median(rates):,.0f}", spread(rates), factor(gain)

    rows = [row(1, "in memory, packets in", [mean(turn.alone) for turn in counted], 1)]
    for count in counts:
        besides = [turn.beside[count] for turn in counted]
        gain = median(turn.beside[count] / mean(turn.alone) for turn in counted)
        rows.append(row(f"{count} switches of 1", "in memory, packets in", besides, gain))
        rates = [turn.together[count] for turn in counted]
        rows.append(row(count, "in memory, packets in", rates, median(turn.gain(count) for turn in counted)))
    for count, over in rings.items():
        rows.append(row(count, "shared memory, in and out", over, median(map(truediv, over, rings[1]))))
    every = ", ".join(
        f"{factor(median(turn.gain(count) for turn in turns))} with {count}" for count in counts
    )
    show(
        f"Slot protocol, {workers} workers, {lanes} lanes a packet, by threads of the soft switch",
        ("threads", "packets/s", "spread", "x one thread"),
        rows,
        [
            "In memory, one thread is the mean of it on each processor, before and after the others.",
            f"{len(steady)} of {len(turns)} turns had processors equally fast, one by one and side by side, "
            f"within {EQUAL - 1:.0%}; "
            + ("only they count." if steady else "all count.")
            + (f" Of all turns: {every}." if counts else ""),
            "The load runs in the switch's own process; over shared memory it takes a processor of its own.",
        ],
    )
