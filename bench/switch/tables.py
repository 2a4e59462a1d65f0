# SPDX-License-Identifier: Apache-2.0
"""Large tables in the soft switch, beside BMv2 and by their size; and its memory."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from softp4.bench.lookups import ACL, FLOWS, LENGTH, ROUTER, LookupTime, compare, measure
from softp4.codegen.widths import storage_bits
from softp4.native.scratch import scratch_folder
from softp4.program.loader import load_program
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Line, Panel, Plot, Row, Table
from weir.p4src import PROGRAM
from weir.process.child import tied
from weir.process.memory import memory_of

MIB: Final = 1 << 20


@dataclass(frozen=True)
class Parameters:
    """The tables."""

    routes: int = parameter(10_000, "Entries of the router's table.", least=1)
    rules: int = parameter(1_000, "Entries of the access list.", least=1)
    sizes: tuple[int, ...] = parameter(
        (10, 100, 1_000, 10_000, 100_000), "Sizes of tables whose lookup is timed.", least=1, most=1_000_000
    )
    passes: int = parameter(100, "Passes over the frames, of which the fastest counts.", least=1)
    frames: int = parameter(20_000, "Frames through BMv2 in a repetition.", least=1000)


def run(given: Parameters, run: Run) -> Iterator[Table | Plot]:
    """Measure beside BMv2, by size, and the memory. BMv2 takes part when `simple_switch` is on PATH."""
    rows: list[Row] = []
    if not shutil.which("simple_switch"):
        run.say("BMv2 not measured: simple_switch is not on PATH")
    for case, size in ((ROUTER, given.routes), (ACL, given.rules)):
        run.say(f"{case.name}, {size:,} entries ...")
        rates = compare(case, size, given.frames, run.repeats)
        table = {"table": f"{case.name}, {size:,} entries"}
        rows += (Row(name, {"packets/s": values}, table) for name, values in rates.items())
    yield Table(
        f"Packets per second in memory, {LENGTH}-byte frames",
        (Column("packets/s"),),
        tuple(rows),
        peers=("BMv2",),
        better="more",
        notes=(
            "The soft switch gets frames by a call, in one thread; BMv2 (simple_switch) from files in the "
            "page cache, in threads of its own, and what leaves into files counts.",
        ),
    )
    points = []
    for case in (ROUTER, ACL, FLOWS):
        for size in given.sizes:
            points.append(measure(case, size, given.passes))
            run.say(f"{case.name}, {size:,} entries: {points[-1].frame:.0f} ns")
    yield from _by_size(points, given.passes)
    yield _memory()


def _by_size(points: Sequence[LookupTime], passes: int) -> Iterator[Table | Plot]:
    yield Table(
        "The soft switch in memory, by the size of the table",
        (Column("ns a frame"), Column("us to insert an entry")),
        tuple(
            Row(
                f"{point.entries:,} entries",
                {"ns a frame": point.frame, "us to insert an entry": point.insert},
                {"table": point.case},
            )
            for point in points
        ),
        notes=(f"A frame: parse, look up, checksum, deparse; the fastest of {passes} passes.",),
    )
    lines = []
    for case in dict.fromkeys(point.case for point in points):
        mine = [point for point in points if point.case == case]
        lines.append(Line(case, [point.entries for point in mine], [point.frame for point in mine]))
    panel = Panel("", "entries", "ns a frame, in memory", lines, log="x")
    yield Plot("The soft switch by the size of its table", (panel,))


def _memory() -> Table:
    held, declared = held_bytes(PROGRAM), declared_bytes(PROGRAM)
    sizes = {
        "resident": held["VmRSS"],
        "of that, files: libraries, the interpreter": held["RssFile"],
        "of that, its own": held["RssAnon"],
        "registers and counters that the program declares": declared,
        "its own beyond them": held["RssAnon"] - declared,
    }
    return Table(
        "Memory of `weir switch` with Weir's program, two ports and P4Runtime",
        (Column("MiB", "{:.1f}".format),),
        tuple(Row(name, {"MiB": size / MIB}) for name, size in sizes.items()),
    )


def held_bytes(program: Path) -> dict[str, int]:
    """Return what a `weir switch` process holds once it serves P4Runtime, by the names of
    /proc/PID/status.
    """
    with scratch_folder("weir-bench") as folder:
        ready = folder / "ready"
        command = [
            sys.executable,
            "-m",
            "softp4",
            "run",
            "--program",
            str(program),
            "--ready-file",
            str(ready),
        ]
        ports = ["--shm", str(folder), "--port", "1=shm", "--port", "2=shm", "--grpc", "127.0.0.1:0"]
        process = subprocess.Popen(
            tied([*command, *ports]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + 60
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("weir switch does not start")
                time.sleep(0.05)
            return memory_of(process.pid)
        finally:
            process.terminate()
            process.wait(10)


def declared_bytes(program: Path) -> int:
    """Return the registers and indirect counters of a program."""
    loaded = load_program(program)
    registers = sum(each.size * storage_bits(each.bits) // 8 for each in loaded.registers.values())
    return registers + sum(16 * each.size for each in loaded.counters.values())
