# SPDX-License-Identifier: Apache-2.0
"""Instructions that a packet costs the soft switch, by what they are for.

Counted by valgrind's callgrind, so that no other load disturbs it: two runs of the same load in memory, of
which one is longer; the difference is the packets'. Callgrind begins with the load: Python's start and the
switch's would take it minutes. Compiled for AVX2, as valgrind knows no AVX-512. Also the hand-written C
aggregator (csrc/aggregator.c), which does less: it has one job and no traffic classes, queues, racks, losses,
counters or other traffic.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from softp4.codegen.module import generate
from softp4.native.scratch import scratch_folder
from softp4.program.loader import load_program
from softp4.switch import Switch
from weir.bench.case import Run, UnavailableError, parameter
from weir.bench.results import Column, Row, Table
from weir.bench.switch import native
from weir.bench.switch.rate import JOB, admit
from weir.p4src import PROGRAM
from weir.process.child import tied

WORKERS: Final = 4
SLOTS: Final = 64
SHORT: Final = 20  # rounds of every slot, in the shorter run
TARGET: Final = "-march=x86-64-v3 -g -DCOUNTED"

_TABLES: Final = ("key[", "sw_lookup", "fallback", "e->", "switch (action)", "case ")
_PARTS: Final = (  # of the generated functions; the first that fits
    ("actions", r"action_"),
    ("parser", r"parse|get_|forget_|clear"),
    ("checksums", r"calculation_|checksums|update_checksums"),
    ("deparser, sending", r"put_|deparse|send"),
    ("replicas: what egress starts from", r"save|restore|replicate|leave"),
)
_REST: Final = "the rest: metadata cleared, calls, statistics"


@dataclass(frozen=True)
class Parameters:
    """The packets."""

    lanes: tuple[int, ...] = parameter((64, 256), "Lanes a packet.", choices=range(32, 257, 32))
    rounds: int = parameter(200, "Rounds of every slot by which one run is longer.", least=1)


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Count. Raises UnavailableError without valgrind."""
    if not shutil.which("valgrind"):
        raise UnavailableError("valgrind is not on PATH: install it (for example `apt install valgrind`)")
    text = generate(load_program(PROGRAM), False).splitlines()
    parts: dict[int, Counter[str]] = {}
    yardstick: dict[int, float] = {}
    for lanes in given.lanes:
        run.say(f"counting: {lanes} lanes")
        parts[lanes] = _by_part(_per_packet("soft", lanes, given.rounds), text)
        yardstick[lanes] = sum(_per_packet("c", lanes, given.rounds).values())
    everything = sum(parts.values(), Counter[str]()).most_common()
    counts: dict[str, list[float]] = {
        part: [found[part] for found in parts.values()] for part, _ in everything
    }
    counts["soft switch, all"] = [sum(found.values()) for found in parts.values()]
    counts["hand-written C aggregator"] = list(yardstick.values())
    columns = tuple(Column(f"{lanes} lanes", "{:,.0f}".format) for lanes in given.lanes)
    heads = [column.name for column in columns]
    yield Table(
        f"Instructions a packet, {WORKERS} workers, in memory",
        columns,
        tuple(Row(name, dict(zip(heads, found, strict=True))) for name, found in counts.items()),
        notes=("one result goes out for each packet that comes in; compiled for AVX2; counted by callgrind",),
    )


def load(which: str, lanes: int, rounds: int) -> None:
    """Run, under callgrind, rounds of every slot through the soft switch or the C aggregator."""
    packets = native.contributions(JOB, WORKERS, lanes)
    if which == "c":
        native.in_memory(native.Aggregator(JOB, WORKERS, SLOTS), packets, SLOTS, 1, 1 + rounds)
        return
    with Switch(PROGRAM) as switch:
        admit(switch, WORKERS, SLOTS)
        native.in_memory(switch, packets, SLOTS, 1, 1 + rounds)


SourceLine = tuple[str, int]  # file, line


def _per_packet(which: str, lanes: int, more: int) -> Counter[SourceLine]:
    """Return instructions of a packet by source line."""
    short, long = (_count(which, lanes, rounds) for rounds in (SHORT, SHORT + more))
    packets = more * SLOTS * WORKERS
    # Below a hundredth it is what the interpreter did differently the second time.
    counts = {place: (count - short[place]) / packets for place, count in long.items()}
    return Counter({place: count for place, count in counts.items() if _ours(place[0]) and count > 0.01})


def _ours(file: str) -> bool:
    return any(
        part in file for part in ("program.c", "softswitch/softp4/runtime/", "bench/switch/csrc/aggregator.c")
    )


def _count(which: str, lanes: int, rounds: int) -> Counter[SourceLine]:
    with scratch_folder("weir-count") as folder:
        out = folder / "callgrind.out"
        call = f"from weir.bench.switch.instructions import load; load({which!r}, {lanes}, {rounds})"
        environment = os.environ | {"SOFTP4_CFLAGS": TARGET}
        tool = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            f"--callgrind-out-file={out}",
            "--dump-line=yes",
        ]
        done = subprocess.run(
            tied([*tool, sys.executable, "-c", call]),
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"valgrind failed:\n{done.stderr[-2000:]}")
        return read_callgrind(out.read_text())


def read_callgrind(text: str) -> Counter[SourceLine]:
    """Return each source line's own cost in a profile (callgrind's format, without instruction addresses)."""
    names: dict[str, str] = {}
    counts: Counter[SourceLine] = Counter()
    file, line, of_call = "", 0, False
    for row in text.splitlines():
        if found := re.match(r"(fl|fi|fe|cfi|cfl)=\((\d+)\)(?: (.*))?$", row):
            kind, number, name = found.groups()
            if name:
                names[number] = name
            if kind in {"fl", "fi", "fe"}:
                file = names[number]
        elif row.startswith("calls="):
            of_call = True  # the next row is what the called function cost
        elif found := re.match(r"(\*|[+-]?\d+) (\d+)$", row):
            where, cost = found.groups()
            if where != "*":
                line = line + int(where) if where[0] in "+-" else int(where)
            if not of_call:
                counts[file, line] += int(cost)
            of_call = False
    return counts


def _by_part(counts: Counter[SourceLine], text: Sequence[str]) -> Counter[str]:
    """Return the number of instructions by what they are for. `text`: the generated program."""
    functions = _functions(text)
    parts: Counter[str] = Counter()
    for (file, line), count in counts.items():
        name = Path(file).name
        if name == "lookup.h":
            parts["tables"] += count
        elif name == "packet.h":
            parts["bytes' order, in parser and deparser"] += count
        elif name == "program.c":
            parts[_part(functions[line - 1], text[line - 1])] += count
        else:
            parts[_REST] += count
    return parts


def _functions(text: Sequence[str]) -> list[str]:
    """Return the function of each line."""
    found, current = [], ""
    for line in text:
        if (start := re.match(r"(?:SW_INLINE|SW_HOT|static)\b.*?(\w+)\(", line)) and "=" not in line:
            current = start[1]
        found.append(current)
    return found


def _part(function: str, line: str) -> str:
    if function in {"ingress", "egress"}:
        return "tables" if any(word in line for word in _TABLES) else "conditions of ingress and egress"
    return next((part for part, names in _PARTS if re.match(names, function)), _REST)
