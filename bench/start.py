# SPDX-License-Identifier: Apache-2.0
"""``weir bench start``: how long ``weir switch`` takes from its command line to the first packet.

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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from softp4.control.client import CallFailedError, call
from softp4.native.ring import ShmPort
from softp4.native.scratch import scratch_folder
from weir.bench.table import show
from weir.p4src import PROGRAM
from weir.process.child import tied

_PATIENCE: Final = 600.0  # seconds
_LOOK: Final = 0.005  # seconds between looks
_FRAME: Final = bytes(12) + b"\x88\xb5" + bytes(46)


@dataclass(frozen=True)
class Start:
    """Seconds until the first packet has been through the program, and of processor time until the end."""

    wall: float
    cpu: float


def run(repeats: int, sizes: tuple[int, ...]) -> None:
    """Measure and print."""
    with scratch_folder("start") as folder:
        rows = []
        cold = [start(PROGRAM, folder, folder / f"cold{n}") for n in range(repeats)]
        warm = [start(PROGRAM, folder, folder / "cold0") for _ in range(repeats)]
        rows += [_row("Weir's program, cold", cold), _row("Weir's program, warm", warm)]
        base = json.loads(PROGRAM.read_text())
        for times in sizes:
            program = folder / f"actions{times}.json"
            program.write_text(json.dumps(with_actions(base, times)))
            measured = [start(program, folder, folder / f"actions{times}-{n}") for n in range(repeats)]
            count = len(json.loads(program.read_text())["actions"])
            rows.append(_row(f"{times} x its actions ({count}), cold", measured, times))
    show(
        "From `weir switch` to the first packet",
        ("start", "seconds", "processor seconds", "of them per 1 x"),
        rows,
        [f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end. Medians of {repeats}."],
    )


def _row(name: str, starts: list[Start], times: int = 1) -> tuple[str, ...]:
    cpu = median(each.cpu for each in starts)
    return name, f"{median(each.wall for each in starts):.2f}", f"{cpu:.2f}", f"{cpu / times:.2f}"


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
    if process.poll() is not None or time.monotonic() - began > _PATIENCE:
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
