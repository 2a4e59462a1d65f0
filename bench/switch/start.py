# SPDX-License-Identifier: Apache-2.0
"""Seconds that ``weir switch`` takes from its command line to the first packet.

Cold: with an empty cache, so that the program is read, written as C and compiled. Warm: as every start after
that. Then the same for programs of more and more actions, which must cost time in proportion.
"""

import copy
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from softp4.control.client import CallFailedError, call
from softp4.native.ring import ShmPort
from softp4.native.scratch import scratch_folder
from weir.bench.case import Run, parameter
from weir.bench.results import Column, Row, Table
from weir.p4src import PROGRAM
from weir.process.child import tied

_TIMEOUT: Final = 600.0  # seconds
_LOOK: Final = 0.005  # seconds between looks
_FRAME: Final = bytes(12) + b"\x88\xb5" + bytes(46)


@dataclass(frozen=True)
class Start:
    """Seconds until the first packet has been through the program, and of processor time until the end."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Parameters:
    """The programs."""

    sizes: tuple[int, ...] = parameter(
        (1, 2, 4, 8), "Sizes of the program, as multiples of the actions of Weir's own.", least=1, most=64
    )


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Start switches with an empty cache, with a full one, and with larger programs."""
    with scratch_folder("weir-start") as folder:
        run.say("Weir's program ...")
        cold = [start(PROGRAM, folder, folder / f"cold{n}") for n in range(run.repeats)]
        warm = [start(PROGRAM, folder, folder / "cold0") for _ in range(run.repeats)]
        rows = [_row("Weir's program, cold", cold), _row("Weir's program, warm", warm)]
        base = json.loads(PROGRAM.read_text())
        for times in given.sizes:
            run.say(f"{times} x its actions ...")
            program = folder / f"actions{times}.json"
            program.write_text(json.dumps(with_actions(base, times)))
            measured = [start(program, folder, folder / f"actions{times}-{n}") for n in range(run.repeats)]
            count = len(json.loads(program.read_text())["actions"])
            rows.append(_row(f"{times} x its actions ({count}), cold", measured, times))
    yield Table(
        "From `weir switch` to the first packet",
        (
            Column("seconds", _seconds),
            Column("processor seconds", _seconds),
            Column("per 1 x", _seconds, "processor seconds over the multiple of the actions"),
        ),
        tuple(rows),
        notes=(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end",),
    )


def _seconds(value: float) -> str:
    return f"{value:.2f}"


def _row(name: str, starts: Sequence[Start], times: int = 1) -> Row:
    cpu = [each.cpu for each in starts]
    each = [used / times for used in cpu]
    return Row(name, {"seconds": [one.wall for one in starts], "processor seconds": cpu, "per 1 x": each})


def start(program: Path, folder: Path, cache: Path) -> Start:
    """Start a switch with a cache of its own, let one frame through, end it. Raises RuntimeError."""
    shm, control = folder / "shm", folder / "control"
    command = [sys.executable, "-m", "softp4", "run", "--program", str(program), "--control", str(control)]
    command += ["--port", "1=shm", "--shm", str(shm), "--log-level", "error"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment.pop("SOFTP4_CACHE", None)
    before, began = _children(), time.monotonic()
    with subprocess.Popen(tied(command), env=environment) as process:
        try:
            while not (shm / "port-1").exists() or not _reached(control, began, process):
                time.sleep(_LOOK)
            with ShmPort(shm, 1) as port:
                port.send(_FRAME)
                while _passed(control) == 0:
                    time.sleep(_LOOK)
            wall = time.monotonic() - began
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    return Start(wall, _children() - before)


def _reached(control: Path, began: float, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None or time.monotonic() - began > _TIMEOUT:
        raise RuntimeError(f"the switch does not start: exit status {process.poll()}")
    try:
        return bool(call(control, "info")["program"])
    except CallFailedError:
        return False


def _passed(control: Path) -> int:
    """Return the number of frames that the program has seen."""
    statistics = call(control, "ports")[0]["statistics"]
    return int(statistics["rx_packets"] - statistics["rx_drops"])


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_actions(program: Any, times: int) -> Any:
    """Return the program (BMv2 JSON) with every table's actions ``times`` times, each copy another action."""
    made = copy.deepcopy(program)
    copies: dict[int, list[tuple[int, str]]] = {}
    unused = max(action["id"] for action in program["actions"]) + 1
    for action in program["actions"]:
        copies[action["id"]] = []
        for number in range(1, times):
            another = copy.deepcopy(action) | {"name": f"{action['name']}_{number}", "id": unused}
            copies[action["id"]].append((unused, another["name"]))
            made["actions"].append(another)
            unused += 1
    for pipeline in made["pipelines"]:
        for table in pipeline["tables"]:
            after = table["next_tables"]
            for identity, name in list(zip(table["action_ids"], table["actions"], strict=True)):
                for another, another_name in copies[identity]:
                    table["action_ids"].append(another)
                    table["actions"].append(another_name)
                    if name in after:
                        after[another_name] = after[name]
    return made
