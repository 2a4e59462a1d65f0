# SPDX-License-Identifier: Apache-2.0
"""One soft switch on several threads against the same on one.

Processors are not equally fast for long where they are virtual: a neighbour's load takes half of one for some
milliseconds, or for minutes, and two may be threads of one core for a while, fast as long as the other rests.
So one thread is measured on each of them in turn, right before and right after the switches with several
threads, and the gain of several is stated as times the mean of these; and as many switches of one thread are
measured at the same time. How it comes out where processors differ, or hinder each other, says more about the
machine than about the switch: only turns in which they were equal, and as fast together, count, whatever came
out of them.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from threading import Barrier
from typing import Final

from softp4.bench.contenders import take_turns
from softp4.switch import Switch
from weir.bench.case import Run, parameter
from weir.bench.report import factor
from weir.bench.results import Column, Row, Table
from weir.bench.switch import native, rate
from weir.bench.switch.rate import JOB, admit
from weir.p4src import PROGRAM

EQUAL: Final = 1.1  # times as fast as the slowest is the fastest, at most


@dataclass(frozen=True)
class Turn:
    """Packets per second into a switch: of one thread by processor, before and after, and by threads.

    beside: by a number, packets per second into this many switches of one thread at the same time.
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


@dataclass(frozen=True)
class Parameters(rate.Parameters):
    """The load, and the numbers of threads."""

    threads: tuple[int, ...] = parameter((2,), "Threads, compared with one.", least=2, most=64)
    frames: int = parameter(100_000, "Frames of one measurement in memory: 20 ms.", least=1000)
    turns: int = parameter(20, "Turns for each that is to count, at most.", least=1)


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure one thread and each number of threads, in memory and over shared memory."""
    yield of_turns(in_memory(given, run), given)
    rings = {_words(count): partial(_over_rings, given, count) for count in sorted({1, *given.threads})}
    yield _table("over shared memory, in and out", given, take_turns(rings, run.repeats, warm_up=False), ())


def _over_rings(given: Parameters, threads: int) -> float:
    return rate.over_rings(given.workers, given.slots, given.lanes, given.seconds, threads).packets


def _words(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _table(where: str, given: Parameters, rates: Mapping[str, list[float]], notes: tuple[str, ...]) -> Table:
    return Table(
        f"Slot protocol, {given.workers} workers, {given.lanes} lanes a packet, "
        f"by threads of the soft switch, {where}",
        (Column("packets/s"),),
        tuple(Row(name, {"packets/s": found}) for name, found in rates.items()),
        peers=(_words(1),),
        better="more",
        notes=(
            *notes,
            "the load runs in the switch's own process, over shared memory on a processor of its own",
        ),
    )


def in_memory(given: Parameters, run: Run) -> list[Turn]:
    """Return turns until as many as repetitions were steady, or there were ``turns`` times as many.

    Frames of hundreds of rounds, more than any cache holds, are handed over two rounds at a time.
    """
    threads, workers, slots = sorted({*given.threads}), given.workers, given.slots
    load = native.contributions(JOB, workers, given.lanes)
    rounds = max(2, given.frames // (workers * slots) // 2 * 2)
    processors = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        most = max(threads, default=1)
        pool = stack.enter_context(ThreadPoolExecutor(most))
        singles = [stack.enter_context(Switch(PROGRAM)) for _ in range(most)]
        groups = {count: stack.enter_context(Switch(PROGRAM, threads=count)) for count in threads}
        for switch in (*singles, *groups.values()):
            admit(switch, workers, slots)
        for count, group in groups.items():
            if reasons := group.threads.share().reasons:
                raise RuntimeError(f"{count} threads: {'; '.join(reasons)}")
        began = dict.fromkeys((*singles, *groups.values()), 2)

        def speed(switch: Switch, ready: Barrier | None = None) -> float:
            first = began[switch]
            began[switch] += rounds
            with native.Rounds(load, slots, first, first + rounds) as made:
                if ready is not None:
                    ready.wait()
                return made.into(switch)

        def alone() -> list[float]:
            return [_on(processor, partial(speed, singles[0])) for processor in processors]

        def beside(count: int) -> float:
            ready = Barrier(count, timeout=60)
            where = [processors[number % len(processors)] for number in range(count)]
            rates = [partial(speed, switch, ready) for switch in singles[:count]]
            return sum(pool.map(_on, where, rates))

        def turn() -> Turn:
            before = alone()
            around = {count: beside(count) for count in threads}
            together = {count: speed(group) for count, group in groups.items()}
            return Turn((*before, *alone()), around, together)

        turn()  # warms up
        turns: list[Turn] = []
        while sum(each.steady for each in turns) < run.repeats and len(turns) < given.turns * run.repeats:
            turns.append(last := turn())
            rates = [f"one thread {min(last.alone):,.0f} to {max(last.alone):,.0f}"]
            for count, found in last.together.items():
                rates.append(f"{count} side by side {last.beside[count]:,.0f}, {count} threads {found:,.0f}")
            run.say(f"{', '.join(rates)} packets/s{'' if last.steady else '; not counted'}")
    return turns


def _on(processor: int, measure: Callable[[], float]) -> float:
    """Measure with the calling thread on one processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        return measure()
    finally:
        os.sched_setaffinity(0, before)


def of_turns(turns: Sequence[Turn], given: Parameters) -> Table:
    """Return the table of turns; one thread is the mean of it on each processor, before and after."""
    steady = [turn for turn in turns if turn.steady]
    counted = steady or turns
    rates = {_words(1): [mean(turn.alone) for turn in counted]}
    for count in turns[0].together:
        rates[f"{count} switches of 1"] = [turn.beside[count] for turn in counted]
        rates[_words(count)] = [turn.together[count] for turn in counted]
    every = ", ".join(
        f"{factor(median(turn.gain(count) for turn in turns))} with {count}" for count in turns[0].together
    )
    note = (
        f"{len(steady)} of {len(turns)} turns had processors equally fast, one by one and side by side, "
        f"within {EQUAL - 1:.0%}; {'only they count' if steady else 'all count'}. Of all turns: {every}."
    )
    return _table("in memory, packets in", given, rates, (note,))
