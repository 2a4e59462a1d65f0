# SPDX-License-Identifier: Apache-2.0
"""Processes as /proc shows them, for tests that must leave none."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

_MARK = "WEIR_TEST"
_SHARED = ("multiprocessing.", "weir.process.template")  # those of this process serve later tests, too


@contextmanager
def none_after_failure() -> Iterator[None]:
    """Kill what the block started, and what that started, if the block raises.

    A training of 500 epochs would otherwise take the processors from all later tests.
    """
    before, mark = os.environ.get(_MARK, ""), uuid4().hex
    os.environ[_MARK] = mark
    try:
        yield
    except BaseException:
        for pid in marked(f"{_MARK}={mark}"):
            if parent(pid) != os.getpid() or not any(name in command_line(pid) for name in _SHARED):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.environ[_MARK] = before


def children(pid: int) -> dict[int, str]:
    """Living children of a process, and those that a template forked for it: pid -> command line."""
    found = {}
    for child in _all():
        if parent(child) == pid:
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
        pids = tuple(pid for pid in pids if parent(pid) is not None)
        if not pids:
            return
        time.sleep(0.02)
    raise AssertionError(f"still there: {[(pid, command_line(pid)) for pid in pids]}")


def is_alive(pid: int) -> bool:
    """Tell whether a process is there, and not dead and waiting for a process that adopts it."""
    return parent(pid) is not None


def parent(pid: int) -> int | None:
    """Return the parent's pid; None of a process that is gone or dead."""
    try:
        state, found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in "ZX" else int(found)


def marked(variable: str) -> list[int]:
    """Return the ids of the living processes that began with ``NAME=value`` in their environment."""
    return [pid for pid in _all() if variable in variables(pid) and is_alive(pid)]


def variables(pid: int) -> list[str]:
    """Return the ``NAME=value`` that a process began with; none of one that is gone or another user's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return []


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
