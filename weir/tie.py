# SPDX-License-Identifier: Apache-2.0
"""Become a command that is killed when its parent ends: ``python tie.py PARENT COMMAND...``.

For programs that are not Weir's, such as BMv2. The kernel sees to it, when the parent's *thread* that started
the command ends; so that must be one that stays.

A file to run, not to import: Python starts it without site-packages in about ten milliseconds.
"""

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Tie this process to the parent, and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
