# SPDX-License-Identifier: Apache-2.0
"""A command started as users start it: what it says, which processes come of it, how it ends, what it leaves.

Its processes, and theirs, are found by a mark in their environment, whichever session they are in and
a process that adopts them. What it may leave lies in folders of its own, but for shared memory and network
namespaces: these are noted while its processes have them.
"""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from tests.harness.processes import command_line, marked, name, variables

WEIR: Final = (sys.executable, "-m", "weir")
TORCHRUN: Final = (sys.executable, "-m", "torch.distributed.run", "--standalone")
TIMEOUT_S: Final = 120.0  # until a wait counts as one that never ends

_MARK: Final = "WEIR_TEST_RUN"
_MEMORY: Final = re.compile(r"/dev/shm/weir-[^/\s]+")
_POLL_S: Final = 0.05
# A test run that a shell put in the background ignores SIGINT, and passes that on.
_INTERRUPTIBLE: Final = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_T = TypeVar("_T")


class Started:
    """A command that runs, or has run; its working directory is ``folder``/work.

    Its temporary files and sockets are in ``folder``, which has a short path for that (``short_path``);
    ``environment`` says so, and what else it was told, but for the mark.
    """

    def __init__(self, folder: Path, *command: object, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._mark = f"{_MARK}={secrets.token_hex(8)}"
        self._log, self._temporary = folder / "said", folder / "tmp"
        self._memory: set[Path] = set()
        self._namespaces: dict[str, int] = {}  # by name, held open: else the next one gets the same number
        for each in (folder / "work", self._temporary):
            each.mkdir(exist_ok=True)
        mark = dict([self._mark.split("=")])
        private = {"TMPDIR": str(self._temporary), "XDG_RUNTIME_DIR": str(self._temporary), "COLUMNS": "200"}
        self.environment = {**os.environ, **private, **(environment or {})}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-ISc", _INTERRUPTIBLE, *map(str, command)],
                cwd=folder / "work",
                env={**self.environment, **mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        """Return what it has printed so far."""
        return self._log.read_text(errors="replace")

    def processes(self) -> dict[int, str]:
        """Return the command lines of all its living processes, by id."""
        found = {pid: command_line(pid) for pid in marked(self._mark)}
        for pid, line in found.items():
            self._memory.update(map(Path, _MEMORY.findall(line)))
            with suppress(OSError):
                self._hold_namespace(pid)
        return found

    def find(self, pattern: str, **environment: object) -> int:
        """Return that of its processes whose command line or name has the pattern, once it is there.

        ``environment``: what its environment has besides, such as RANK. That of a template's children is the
        template's: their names tell them apart.
        """
        wanted = {f"{name}={value}" for name, value in environment.items()}

        def look() -> int | None:
            lines = self.processes().items()
            found = [pid for pid, line in lines if re.search(pattern, f"{line} {name(pid)}")]
            return next((pid for pid in found if wanted <= set(variables(pid))), None)

        return self.until(look, f"a process of {pattern!r} {environment}")

    def wait_for(self, pattern: str, timeout_s: float = TIMEOUT_S) -> None:
        """Return when it has said something that has the pattern."""
        self.until(lambda: re.search(pattern, self.said), f"{pattern!r} to be said", timeout_s)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Return its exit status. AssertionError with what it said if it does not end."""
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        raise AssertionError(f"it has not ended after {timeout_s:g} s; it runs {self._state()}")

    def until(self, look: Callable[[], _T | None], words: str, timeout_s: float = TIMEOUT_S) -> _T:
        """Return what ``look`` does once that is true. AssertionError if that cannot come or does not."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.process.poll() is not None and not self.processes()
            if found := look():
                return found
            assert not ended, f"it ended while the test waited for {words}; it said:\n{self.said}"
            assert time.monotonic() < deadline, (
                f"the test waited in vain for {words}; it runs {self._state()}"
            )
            time.sleep(_POLL_S)

    def left(self, timeout_s: float = 30.0) -> list[str]:
        """Return, as text, what it leaves: processes after a while, namespaces, memory, folders."""
        deadline = time.monotonic() + timeout_s
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        found = [f"process {pid}: {line}" for pid, line in alive.items()]
        others = self._namespaces.keys() - {_namespace("self")}
        found += [f"network namespace {name}" for name in sorted(others & _namespaces())]
        found += [f"shared memory {path}" for path in sorted(self._memory) if path.exists()]
        return found + [f"folder {path}" for path in sorted(self._temporary.glob("weir-*")) if path.is_dir()]

    def kill(self) -> None:
        """End whatever of it still runs, for the test's own end."""
        for pid in marked(self._mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        while self._namespaces:
            os.close(self._namespaces.popitem()[1])

    def _hold_namespace(self, pid: int) -> None:
        held = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        if self._namespaces.setdefault(str(Path(f"/proc/self/fd/{held}").readlink()), held) != held:
            os.close(held)

    def _state(self) -> str:
        lines = "\n".join(f"  {pid} {line}" for pid, line in self.processes().items())
        return f"these processes:\n{lines}\nand said:\n{self.said}"


@contextmanager
def started(
    folder: Path, *command: object, environment: Mapping[str, str] | None = None
) -> Iterator[Started]:
    """Yield a started command, of which nothing runs when the block has ended."""
    running = Started(folder, *command, environment=environment)
    try:
        yield running
    finally:
        running.kill()


def _namespace(pid: str) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def _namespaces() -> set[str]:
    """Return the network namespaces that processes of this machine are in."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                found.add(_namespace(entry.name))
    return found
