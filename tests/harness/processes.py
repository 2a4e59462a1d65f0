# SPDX-License-Identifier: Apache-2.0
"""Processes as /proc shows them, for tests that must leave none."""

import time
from pathlib import Path


def children(pid: int) -> dict[int, str]:
    """Living children of a process, and those that a template forked for it: pid -> command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _parent(entry) == pid:
            child = int(entry.name)
            found[child] = command_line(child)
            if "weir.process.template" in found[child]:
                found.update(children(child))
    return found


def name(pid: int) -> str:
    """What ps and top call it; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def command_line(pid: int) -> str:
    """Its words with spaces between; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_until_gone(*pids: int) -> None:
    """Until each is gone, or dead and waiting for a process that adopts it."""
    for _ in range(1500):
        pids = tuple(pid for pid in pids if _parent(Path(f"/proc/{pid}")) is not None)
        if not pids:
            return
        time.sleep(0.02)
    raise AssertionError(f"still there: {[(pid, command_line(pid)) for pid in pids]}")


def is_alive(pid: int) -> bool:
    """Tell whether a process is there, and not dead and waiting for a process that adopts it."""
    return _parent(Path(f"/proc/{pid}")) is not None


def _parent(entry: Path) -> int | None:
    """Return the parent's pid; None of a process that is gone or dead."""
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(parent)
