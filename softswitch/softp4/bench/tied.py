# SPDX-License-Identifier: Apache-2.0
"""Processes that end with the one that started them: ``tied.py PID COMMAND...`` becomes the command.

The kernel kills it when its parent ends. More exactly, when the parent's *thread* that started it ends; so
that must be one that stays. Python runs this file without site-packages, in about ten milliseconds.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def tied(command: Sequence[str]) -> list[str]:
    """Return a command that becomes this one and is killed when this thread ends, or the whole process."""
    return [sys.executable, "-IS", __file__, str(os.getpid()), *command]


def main() -> None:
    """Become the command."""
    parent, *command = sys.argv[1:]
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit("the kernel does not tie a process to its parent")
    if os.getppid() != int(parent):  # it ended before
        sys.exit(1)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot run: {error}")


if __name__ == "__main__":
    main()
