# SPDX-License-Identifier: Apache-2.0
"""A switch with threads beside one without: the same entries and frames, and then the same of everything."""

from collections.abc import Callable, Sequence
from pathlib import Path

from softp4.program.types import Program
from softp4.switch import Switch

Frames = Sequence[tuple[int, bytes]]


def compare(
    program: Program | Path,
    fill: Callable[[Switch], None],
    batches: Sequence[Frames],
    threads: int = 3,
    loose: Sequence[str] = (),
) -> str | None:
    """Run batches of frames through both.

    Returns by what the threads shared them; None if one thread ran them all. Raises AssertionError when
    anything differs: what left, in its order; statistics; cells of registers (but of `loose` ones), counters
    and meters.
    """
    with Switch(program) as alone, Switch(program, threads=threads) as shared:
        for each in (alone, shared):
            fill(each)
        shared.threads.share()
        for now, frames in enumerate(batches):
            expected = [sent for port, frame in frames for sent in alone.process(port, frame, now * 1000)]
            assert shared.process_many(frames, now * 1000) == expected
        assert shared.statistics() == alone.statistics()
        assert shared.assertion_failures() == alone.assertion_failures()
        names = alone.program
        for name, register in names.registers.items():
            if name not in loose:
                cells = range(min(register.size, 4096))
                assert [shared.register(name).read(i) for i in cells] == [
                    alone.register(name).read(i) for i in cells
                ]
        for name, counter in names.counters.items():
            if counter.table is None:
                cells = range(min(counter.size, 256))
                assert [shared.counter(name).read(i) for i in cells] == [
                    alone.counter(name).read(i) for i in cells
                ]
        for name, meter in names.meters.items():
            if meter.table is None:
                cells = range(min(meter.size, 256))
                assert [shared.meter(name).marked(i) for i in cells] == [
                    alone.meter(name).marked(i) for i in cells
                ]
        for name, table in names.tables.items():
            if table.counted:
                for entry in alone.table(name).entries():
                    key = entry.key, entry.priority
                    assert shared.table(name).count(*key) == alone.table(name).count(*key)
        return shared.threads.by
