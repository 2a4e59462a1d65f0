# SPDX-License-Identifier: Apache-2.0
"""Child processes that never outlive their parent: ``python -m weir.process.child MODULE ARGUMENTS...``.

A child's standard input is a pipe that only the parent holds open. When it closes, because the parent
closed it, ended or was killed, the child asks itself to end (SIGTERM), and insists after a few seconds.
Unlike PR_SET_PDEATHSIG this works on every Unix and does not depend on which thread started the child.

Programs that are not Weir's are ``tied``. A child whose parent died and that cannot end, because a signal has
stopped it, is found by ``weir clean``: its environment says who started it.

This module imports the standard library only, so that a child starts as fast as its module does.
"""

import contextlib
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, Protocol

PARENT: Final = "WEIR_CHILD_PARENT"
"""In the environment of a child: the ``identity`` of the process that started it."""

_GRACE_S: Final = 5.0
_POLL_S: Final = 0.05
_REMOVE: Final = "WEIR_CHILD_REMOVE"
_STOPPED_S: Final = 10.0  # as long as a worker may be silent
BECOME: Final = (sys.executable, "-IS", str(Path(__file__).with_name("become.py")))
"""A command that becomes another one, in namespaces or tied to a parent: see that file."""


class Child(Protocol):
    """A child process: ``subprocess.Popen``, or one that a template forked (:mod:`weir.process.template`)."""

    @property
    def pid(self) -> int:
        """Process id."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """The parent's end of its standard input."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None of a child that runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit status. Raises subprocess.TimeoutExpired."""

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""


class ChildError(RuntimeError):
    """A process that others wait for did not do its work; the message says which, and how it ended."""


def spawn(
    module: str,
    arguments: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str] | None = None,
    stdout: int | IO[bytes] | None = None,
    remove: Path | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start ``python -m module arguments`` as a child of this process.

    It gets its own session, so that Ctrl-C in the terminal reaches the parent alone, who then ends its
    children in order. ``log`` receives its standard error, and its output too unless ``stdout`` says
    otherwise. It imports nothing from the working directory, which may be anybody's. ``environment`` is
    added to the parent's. ``remove``: a directory to delete if the parent dies without having ended the
    child. ``prefix``: a command that becomes the child, such as the ``prefix`` of a namespace.
    """
    added = {**(environment or {}), PARENT: identity(os.getpid())}
    if remove is not None:
        added[_REMOVE] = str(remove)
    with log.open("ab") as out:
        return subprocess.Popen(
            [*prefix, sys.executable, "-P", "-m", "weir.process.child", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=out if stdout is None else stdout,
            stderr=out,
            env={**os.environ, **added},
            start_new_session=True,
        )


def tied(command: Sequence[str]) -> list[str]:
    """Return a command that becomes this one and is killed when this thread ends, or the whole process."""
    return [*BECOME, "--parent", str(os.getpid()), "--", *command]


def end(processes: Sequence[Child], grace_s: float = _GRACE_S) -> None:
    """End these children: SIGTERM to all that still run, SIGKILL to those left after ``grace_s`` seconds."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()


def wait_for_all(processes: Sequence[Child], logs: Sequence[Path]) -> None:
    """Wait until all have ended well, in any order. Raises ChildError for the first one that has not."""
    left = dict(enumerate(processes))
    while left:
        for rank, process in list(left.items()):
            if status := process.poll():
                raise ChildError(f"rank {rank} failed ({how_it_ended(status)}):\n{log_tail(logs[rank])}")
            if status == 0:
                del left[rank]
        time.sleep(_POLL_S)


def log_tail(log: Path, limit: int = 4000) -> str:
    """Return the last ``limit`` characters of a child's log."""
    try:
        return log.read_text(encoding="utf-8", errors="replace")[-limit:].strip()
    except OSError as error:
        return f"(no log: {error})"


def how_it_ended(status: int) -> str:
    """Return an exit status of Popen as text: "exit status 1", "signal SIGKILL"."""
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"


class Lookout:
    """Says of children what has become of them; kills those that a signal has stopped for long."""

    def __init__(self) -> None:
        self._stopped_since: dict[int, float] = {}
        self._killed: set[int] = set()

    def look(self, process: Child) -> str | None:
        """Return how one has ended, as text; None of one that runs."""
        if process.pid in self._killed:
            return f"a signal had stopped it for {_STOPPED_S:g} s"
        if (status := process.poll()) is not None:
            return how_it_ended(status)
        if state(process.pid) != "T":
            self._stopped_since.pop(process.pid, None)
            return None
        since = self._stopped_since.setdefault(process.pid, time.monotonic())
        if time.monotonic() - since < _STOPPED_S:
            return None
        process.kill()  # it could not end with this process
        self._killed.add(process.pid)
        return self.look(process)


def state(pid: int) -> str:
    """Return a process's state, a letter as ps shows it: T is stopped, Z dead. "" of one that is gone."""
    return fields[0] if (fields := _status(pid)) else ""


def identity(pid: int) -> str:
    """Return what tells a process from all others since the machine was started; "" of one that is gone."""
    fields = _status(pid)
    return f"{pid}:{fields[19]}" if fields and fields[0] not in "ZX" else ""


def _status(pid: int) -> list[str]:
    """Return what Linux says of a process in /proc/PID/stat, from its state on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def follow_parent(remove: str | None = None) -> None:
    """End this process when its standard input closes. remove: a directory to delete then."""
    threading.Thread(target=_end_with_parent, args=(remove,), name="parent-watch", daemon=True).start()


def _end_with_parent(remove: str | None) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    if remove:  # first of all: SIGTERM may end this process at once
        shutil.rmtree(remove, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Run the module named on the command line as ``__main__``, until it ends or the parent does."""
    remove = os.environ.pop(_REMOVE, None)
    os.environ.pop(PARENT, None)
    follow_parent(remove)
    module, sys.argv = sys.argv[1], sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
