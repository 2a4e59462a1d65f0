# SPDX-License-Identifier: Apache-2.0
"""Processor time: of this process, of others, and of the whole machine.

What a kernel does with packets in softirqs is charged to the process that it interrupts, most often the
sender or the receiver, or to none when the processor idles. So the time of processes leaves some of a kernel
bridge's work out; that of the machine holds all of it, and whatever else runs there.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_BUSY: Final = (0, 1, 2, 5, 6)  # of /proc/stat: user, nice, system, irq, softirq; not idle, iowait, steal
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_OF_PROCESS: Final = 2  # the clock of all threads of a process: CPUCLOCK_SCHED of linux/posix-timers.h


@dataclass(frozen=True)
class ProcessorTime:
    """Seconds of processor time since some beginning; differences of two of them mean something.

    own: of this process. others: of the processes that were asked about. machine: of all its processors, busy
    with anything, in the kernel's ticks of 1 to 10 ms.
    """

    own: float
    others: float
    machine: float

    @classmethod
    def now(cls, others: Iterable[int] = ()) -> Self:
        """Return the time until now. others: process ids. Raises ProcessLookupError for one that has
        ended.
        """
        return cls(time.process_time(), sum(map(process_seconds, others)), machine_seconds())

    def __sub__(self, before: Self) -> "ProcessorTime":
        return ProcessorTime(
            self.own - before.own, self.others - before.others, self.machine - before.machine
        )


def process_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process, also of those that have ended.

    Raises ProcessLookupError when there is no such process.
    """
    try:
        return time.clock_gettime((~pid << 3) | _OF_PROCESS)
    except OSError as error:
        raise ProcessLookupError(f"no such process: {pid}") from error


def machine_seconds() -> float:
    """Return how long this machine's processors have been busy, all together."""
    total = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    return sum(int(total[kind]) for kind in _BUSY) / _TICKS
