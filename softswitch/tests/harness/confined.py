# SPDX-License-Identifier: Apache-2.0
"""Commands that run without some of root's rights, or on a disk that runs full."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

_DROP: Final = """
import ctypes, os, sys
libc, dropped = ctypes.CDLL(None), [int(number) for number in sys.argv[1].split(",")]
for number in dropped:
    libc.prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP: what is executed next cannot have it
head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc.capget(head, sets)
sets[2] = sets[5] = 0  # nor inherit it
libc.capset(head, sets)
os.execvp(sys.argv[2], sys.argv[2:])
"""
# A small tmpfs in a mount namespace, which ends with the process that sees it.
_MOUNT: Final = 'mount -t tmpfs -o size="$1",mode=755 small "$2" && shift 2 && exec "$@"'


class Capability(IntEnum):
    """Rights of root, as capabilities(7) numbers them."""

    NET_ADMIN = 12
    NET_RAW = 13
    SYS_ADMIN = 21
    BPF = 39


def without(*capabilities: Capability) -> list[str]:
    """Return what to put before a command that is to run without these capabilities."""
    return [sys.executable, "-ISc", _DROP, ",".join(str(int(each)) for each in capabilities)]


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
