# SPDX-License-Identifier: Apache-2.0
"""A disk that runs full: a small tmpfs in a mount namespace, which ends with the process that sees it."""

import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

_MOUNT = 'mount -t tmpfs -o size="$1",mode=755 small "$2" && shift 2 && exec "$@"'


def run_on_small_disk(
    folder: Path, size: int, command: Sequence[object], *, timeout: float = 120
) -> "subprocess.CompletedProcess[str]":
    """Run a command that sees ``size`` bytes of room (whole pages) at ``folder``. Needs root.

    What it leaves in the folder is gone with it; `then` copies files out.
    """
    outer = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(size), str(folder)]
    return subprocess.run(
        [*outer, *map(str, command)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def then(command: Sequence[object], *after: object) -> list[str]:
    """Return a command that runs ``command``, then in any case ``after``, with the former's status."""
    first, second = (shlex.join(map(str, words)) for words in (command, after))
    return ["sh", "-c", f"{first}; status=$?; {second}; exit $status"]
