# SPDX-License-Identifier: Apache-2.0
"""Commands forked from a process that has imported torch and Weir: each begins in a fraction of a second.

They end as commands do, with what they registered for the interpreter's end. ``/proc`` shows the command line
and the environment of the process that they are forked from.
"""

import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch._dynamo  # noqa: F401 - DistributedDataParallel imports it, which takes seconds

import weir.cli
import weir.cluster
import weir.torch  # noqa: F401
from tests.harness.source import source_path
from weir.process.template import shared_template

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
        template = shared_template(
            __name__, {"PYTHONPATH": source_path()}, Path(self._folder.name) / "import"
        )
        self._child = template.fork(list(map(str, words)), log=self._log, environment=environment or {})
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


def main() -> None:
    """Run the command that ``Command`` was given."""
    # A test run that a shell put in the background ignores SIGINT, and passes that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
