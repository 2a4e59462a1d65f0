# SPDX-License-Identifier: Apache-2.0
"""``weir bench tables``: large tables in the soft switch, beside BMv2 and by their size; and its memory."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console

from softp4.codegen.widths import storage_bits
from softp4.native.scratch import scratch_folder
from softp4.program.loader import load_program
from softp4.state.entry import Entry
from softp4.switch import Switch
from weir.bench import bmv2_files, native
from weir.bench.rules import PORTS, Packet, filtered, filters, flows, routed, routes, strangers
from weir.bench.table import show, spread
from weir.bench.tables_plot import draw
from weir.p4src import PROGRAM
from weir.process.child import tied

P4: Final = Path(__file__).resolve().parent / "p4"
LENGTH: Final = 64  # bytes of a frame
FRAMES: Final = 8192  # different ones, for the soft switch
MIB: Final = 1 << 20

console = Console(stderr=True)


@dataclass(frozen=True)
class Case:
    """A program with one table, what is in it, and the packets that meet it."""

    name: str
    program: Path
    table: str
    entries: Callable[[int, int], list[Entry]]
    packets: Callable[[Sequence[Entry], int, int], list[Packet]]


def _flow_entries(count: int, seed: int) -> list[Entry]:
    return flows(strangers(count, seed))


def _flow_packets(entries: Sequence[Entry], count: int, seed: int) -> list[Packet]:
    known = strangers(len(entries), seed - 1)
    return (known * (count // len(known) + 1))[:count]


ROUTER: Final = Case("IPv4 routes (LPM)", P4 / "router.json", "In.routes", routes, routed)
ACL: Final = Case("ACL (ternary, ranges)", P4 / "acl.json", "In.acl", filters, filtered)
FLOWS: Final = Case("flows (exact)", P4 / "flows.json", "In.flows", _flow_entries, _flow_packets)


@dataclass(frozen=True)
class LookupTime:
    """Nanoseconds a frame through the soft switch, and microseconds to insert an entry."""

    case: str
    entries: int
    frame: float
    insert: float


def run(
    route_count: int, rule_count: int, sizes: Sequence[int], frames: int, repeats: int, plot: Path
) -> None:
    """Measure, print and draw. BMv2 takes part when `simple_switch` is on PATH."""
    _against_bmv2(((ROUTER, route_count), (ACL, rule_count)), frames, repeats)
    points = [measure(case, size) for case in (ROUTER, ACL, FLOWS) for size in sizes]
    show(
        "The soft switch in memory, by the size of the table",
        ("table", "entries", "ns a frame", "us to insert an entry"),
        [(p.case, f"{p.entries:,}", f"{p.frame:.0f}", f"{p.insert:.1f}") for p in points],
        [f"A frame: parse, look up, checksum, deparse; the fastest of 100 passes. Drawn in {plot}."],
    )
    draw(plot, points)
    _memory()


def measure(case: Case, size: int, passes: int = 100) -> LookupTime:
    """Return one table of so many entries; the fastest pass, for another process takes time and cache."""
    entries = case.entries(size, 1)
    with Switch(case.program) as switch:
        start = time.perf_counter()
        for entry in entries:
            switch.table(case.table).insert(entry)
        insert = time.perf_counter() - start
        data = b"".join(packet.frame(LENGTH) for packet in case.packets(entries, FRAMES, 2))
        times = [native.frame_time(switch, data, LENGTH, 1)[0] for _ in range(passes)]
    console.print(f"{case.name}, {size} entries: {min(times):.0f} ns")
    return LookupTime(case.name, size, min(times), 1e6 * insert / size)


# -- against BMv2 ------------------------------------------------------------------------------------------


def _against_bmv2(cases: Sequence[tuple[Case, int]], frames: int, repeats: int) -> None:
    rows = []
    for case, size in cases:
        entries = case.entries(size, 1)
        packets = case.packets(entries, max(frames, FRAMES), 2)
        rates = compare(case, entries, [packet.frame(LENGTH) for packet in packets], frames, repeats)
        bmv2 = median(rates["BMv2"]) if rates["BMv2"] else None
        for name, values in rates.items():
            if values:
                against = f"{median(values) / bmv2:.0f}" if bmv2 else "-"
                title = f"{name}, {case.name}, {size:,} entries"
                rows.append((title, f"{median(values):,.0f}", spread(values), against))
    notes = [
        "The soft switch gets frames by a call, in one thread; BMv2 (simple_switch) from files in the page "
        "cache, in threads of its own, and what leaves into files counts."
    ]
    if not shutil.which("simple_switch"):
        notes.append("BMv2 not measured: simple_switch is not on PATH")
    show(
        f"Packets per second in memory, {LENGTH}-byte frames",
        ("switch, table", "packets/s", "spread", "x BMv2"),
        rows,
        notes,
    )


def compare(
    case: Case, entries: Sequence[Entry], frames: Sequence[bytes], bmv2_frames: int, repeats: int
) -> dict[str, list[float]]:
    """Return packets per second of both; they take turns."""
    rates: dict[str, list[float]] = {"soft switch": [], "BMv2": []}
    data = b"".join(frames[:FRAMES])
    with Switch(case.program) as switch, scratch_folder("bench") as folder:
        for entry in entries:
            switch.table(case.table).insert(entry)
        for repeat in range(repeats + 1):
            took, left = native.frame_time(switch, data, LENGTH, 20)
            if left == 0:
                raise RuntimeError(f"{case.name}: nothing leaves the soft switch")
            if repeat:  # the first one warms up
                rates["soft switch"].append(1e9 / took)
                if shutil.which("simple_switch"):
                    program = bmv2_files.with_entries(case.program, case.table, entries)
                    rates["BMv2"].append(bmv2_files.rate(program, frames[:bmv2_frames], PORTS, folder))
    return rates


# -- memory --------------------------------------------------------------------------------------------------


def _memory() -> None:
    held, declared = held_bytes(PROGRAM), declared_bytes(PROGRAM)
    rows = [
        ("resident", held["VmRSS"]),
        ("of that, files: libraries, the interpreter", held["RssFile"]),
        ("of that, its own", held["RssAnon"]),
        ("registers and counters that the program declares", declared),
        ("its own beyond them", held["RssAnon"] - declared),
    ]
    show(
        "Memory of `weir switch` with Weir's program, two ports and P4Runtime",
        ("", "MiB"),
        [(name, f"{size / MIB:.1f}") for name, size in rows],
    )


def held_bytes(program: Path) -> dict[str, int]:
    """Return what a `weir switch` process holds once it serves P4Runtime, by the names of
    /proc/PID/status.
    """
    with scratch_folder("bench") as folder:
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
            status = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            process.terminate()
            process.wait(10)
    lines = (line.split() for line in status.splitlines())
    return {words[0][:-1]: 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


def declared_bytes(program: Path) -> int:
    """Return the registers and indirect counters of a program."""
    loaded = load_program(program)
    registers = sum(each.size * storage_bits(each.bits) // 8 for each in loaded.registers.values())
    return registers + sum(16 * each.size for each in loaded.counters.values())
