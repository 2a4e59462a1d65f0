# SPDX-License-Identifier: Apache-2.0
"""Commands forked from a process that has imported torch and Weir: each begins in a fraction of a second.

They end as commands do, with what they registered for the interpreter's end. ``/proc`` shows the command line
and the environment of the process that they are forked from.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.harness.base import base

WEIR: Final = ("-m", "weir")


class Command:
    """``python WORDS``, started; what it prints to either stream is one text.

    Args:
        words: ``-m`` and a module, or a script; and its arguments.
        environment: added to this process's.
    """

    def __init__(self, *words: object, environment: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "said"
        self._child = base().fork(list(map(str, words)), log=self._log, environment=environment or {})
        self.pid = self._child.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None of a command that runs."""
        return self._child.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to a command that runs."""
        os.kill(self.pid, number)

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_exception: object) -> None:
        """End what still runs, with what it has started."""
        self._child.kill()

    def said(self, timeout_s: float = 120.0) -> str:
        """Return what it printed, once it has ended. Raises subprocess.TimeoutExpired."""
        self._child.wait(timeout_s)
        return self._log.read_text()
