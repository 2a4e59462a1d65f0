# SPDX-License-Identifier: Apache-2.0
"""Records of benchmarks that the pages quote: of one run each, with its command, its date and the machine.

``weir bench run CASE --record NAME`` writes ``bench/records/NAME.json``.
"""

import json
import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from weir.bench import report
from weir.bench.case import Case, Run, in_words
from weir.bench.results import Column, Row, Table

FOLDER: Final = Path(__file__).parent / "records"


@dataclass(frozen=True)
class Record:
    """One run of a case.

    Attributes:
        command: line that repeats it.
        parameters: of the case, as text.
        machine: processor, processors, and how busy they were.
        texts: of each table the heads and the cells, as they were shown.
    """

    name: str
    case: str
    command: str
    parameters: Mapping[str, str]
    repeats: int
    seeds: Sequence[int]
    date: str
    machine: Mapping[str, Any]
    tables: Sequence[Table]
    texts: Sequence[tuple[list[str], list[list[str]]]]


def command_of(case: Case, assigned: Mapping[str, str], run: Run) -> str:
    """Return the command of a run, without the files that it writes."""
    words = ["weir", "bench", "run", case.path]
    if case.repeats and run.repeats != case.repeats:
        words += ["--repeats", str(run.repeats)]
    if case.seeds and len(run.seeds) != case.seeds:
        words += ["--seeds", str(len(run.seeds))]
    if case.seeds and run.seeds[0] != 1:
        words += ["--seed", str(run.seeds[0])]
    return shlex.join([*words, *(word for each in assigned.items() for word in ("--set", "=".join(each)))])


def write(
    name: str, case: Case, assigned: Mapping[str, str], run: Run, tables: Sequence[Table], load: float
) -> Path:
    """Write a run's record and return its path. load: of the machine when the run began."""
    from weir.train.folder import write_json

    parameters = case.parameters(assigned)
    shown = [report.cells(table) for table in tables]
    content = report.as_json(case.path, parameters, run.repeats, run.seeds, tables) | {
        "command": command_of(case, assigned, run),
        "parameters": {name: in_words(value) for name, value in vars(parameters).items()},
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {
            "processor": _processor(),
            "processors": len(os.sched_getaffinity(0)),
            "load before": round(load, 1),
            "kernel": platform.release().partition("-")[0],
        },
        "shown": [{"heads": heads, "rows": rows} for heads, rows in shown],
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    write_json(path, content)
    return path


def read_all(folder: Path = FOLDER) -> dict[str, Record]:
    """Return all records by name."""
    return {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}


def _read(path: Path) -> Record:
    found = json.loads(path.read_text(encoding="utf-8"))
    same = ("case", "command", "parameters", "repeats", "seeds", "date", "machine")
    return Record(
        name=path.stem,
        **{each: found[each] for each in same},
        tables=[_table(each) for each in found["tables"]],
        texts=[(each["heads"], each["rows"]) for each in found["shown"]],
    )


def _table(found: Mapping[str, Any]) -> Table:
    rows = tuple(
        Row(
            **{each: row[each] for each in ("contender", "values", "setting", "twin", "counts", "floor")},
        )
        for row in found["rows"]
    )
    names = dict.fromkeys([*found["columns"], *(name for row in rows for name in row.values)])
    return Table(
        found["title"], tuple(map(Column, names)), rows, better=found["better"], notes=tuple(found["notes"])
    )


def _processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
