# SPDX-License-Identifier: Apache-2.0
"""Room in the file system of shared-memory ports: what is needed, what is free, and what to do about it."""

import os
from pathlib import Path
from typing import Final

PORT_BYTES: Final = 64 + 2 * ((1 << 20) + 3 * 64)
"""Bytes of a port's file: sp4_port_memory in ring.h, whose pages a switch takes when it makes the port."""

_REMEDY: Final = (
    "Free some of it, or make it larger: docker run --shm-size=1g; in Kubernetes, an emptyDir of medium "
    "Memory at /dev/shm; otherwise mount -o remount,size=1g /dev/shm"
)


def is_full(folder: Path, needed: int) -> bool:
    """Tell whether a folder's file system has less room than this many bytes."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize < needed


def no_room(folder: Path, what: str, needed: int) -> str:
    """Return a message: ``what`` needs this many bytes in a folder, and does not get them."""
    found = os.statvfs(folder)
    free, size = (blocks * found.f_frsize for blocks in (found.f_bavail, found.f_blocks))
    return (
        f"{what} needs {_mib(needed)} of shared memory in {folder}, where {_mib(free)} of {_mib(size)} "
        f"are free. {_REMEDY}"
    )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
