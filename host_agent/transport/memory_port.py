# SPDX-License-Identifier: Apache-2.0
"""Shared-memory ports that this process has open: each once, for all of its links that lead there.

A port's rings have one reader and one writer, so links to one port share what is native of it
(csrc/shared_port.h).
"""

import ctypes
import errno
import os
import threading
from pathlib import Path
from typing import Final

from softp4.native.ownership import distrust
from softp4.native.ring import layout_problem
from weir.host_agent.transport import bindings


class MemoryPort:
    """One link's hold on a host port in a switch's directory; with the last hold goes the port.

    Args:
        directory: the switch's.
        number: of the port.

    Attributes:
        handle: address of the C ``weir_shared_port``, valid until ``close``.

    Raises:
        OSError: the port cannot be opened; the message says why.
    """

    def __init__(self, directory: Path | str, number: int) -> None:
        self._path = Path(directory) / f"port-{number}"
        with _lock:
            if self._path not in _open:
                _open[self._path] = _Open(_opened(self._path, number))
            _open[self._path].holds += 1
            self.handle: Final = _open[self._path].handle

    def close(self) -> None:
        """Let go; to be called once, when nothing native uses the handle any more."""
        with _lock:
            port = _open[self._path]
            port.holds -= 1
            if not port.holds:
                del _open[self._path]
                bindings.library().weir_shared_close(port.handle)


class _Open:
    """A port that is open."""

    def __init__(self, handle: int) -> None:
        self.handle, self.holds = handle, 0


_lock: Final = threading.Lock()
_open: Final[dict[Path, _Open]] = {}


def _opened(path: Path, number: int) -> int:
    """Return the handle of a port that is opened; OSError, saying why, where it cannot be."""
    bell = path.with_name("bell")
    handle: int | None = bindings.library().weir_shared_open(os.fsencode(bell), os.fsencode(path))
    if handle:
        return handle
    code = ctypes.get_errno()
    hint = {
        errno.ENOENT: f"no switch made it: start one with `--port {number}=shm` in that directory",
        errno.EACCES: "it belongs to another user: run the switch as this one",
    }.get(code, os.strerror(code))
    if code == errno.EPROTO:
        hint = layout_problem(path)
    if code == errno.EPERM:
        why = distrust(path.lstat()) or distrust(bell.lstat())
        hint = f"{why or hint}, and run the switch as this user"
    raise OSError(code, f"cannot open the shared-memory port {path}: {hint}")


def spin_ns() -> int:
    """Return for how many nanoseconds threads look for work before they sleep (ring.h)."""
    return int(bindings.library().weir_shm_spin_ns())
