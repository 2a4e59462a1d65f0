# SPDX-License-Identifier: Apache-2.0
"""The directory of a switch's shared-memory ports: one switch at a time, nothing left behind."""

import fcntl
import os
from pathlib import Path

from weir.softswitch.dataplane.ports import PortError


class ShmDirectory:
    """Makes ``path`` if need be and locks it; files that a killed switch left in it are removed.

    Raises PortError when another switch serves the directory, or it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path / "lock"
        try:
            self._made = not path.exists()
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock: int | None = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PortError(f"shared-memory directory {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise PortError(f"shared-memory directory {path}: another switch serves it") from None
        self._remove_ports()

    def _remove_ports(self) -> None:
        for file in [self.path / "bell", *self.path.glob("port-*")]:
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what is in the directory of the switch's, and the directory if it was made here."""
        if self._lock is None:
            return
        self._remove_ports()
        self._lock_path.unlink(missing_ok=True)
        if self._made and not any(self.path.iterdir()):
            self.path.rmdir()
        os.close(self._lock)
        self._lock = None
