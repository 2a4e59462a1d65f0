# SPDX-License-Identifier: Apache-2.0
"""The directory of a switch's shared-memory ports: one switch at a time, nothing left behind."""

import contextlib
import fcntl
import os
from pathlib import Path

from softp4.dataplane.ports import PortError
from softp4.native.ownership import OwnershipError, trusted_folder


class ShmDirectory:
    """Makes ``path`` if need be and locks it; files that a killed switch left in it are removed.

    Raises PortError when another switch serves the directory, another user owns it or may write to it, or it
    cannot be made.

    Attributes:
        path: leads to the directory until it is closed, even if somebody renames a folder above it.
    """

    def __init__(self, path: Path) -> None:
        self._given, self._made = path, not path.exists()
        with contextlib.ExitStack() as held:
            try:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path = held.enter_context(trusted_folder(path))
                self._lock_path = self.path / "lock"
                lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PortError(f"shared-memory directory {path}: another switch serves it") from None
            except OwnershipError as error:
                raise PortError(
                    f"shared-memory directory {path}: {error.strerror}, or choose a folder that does not "
                    f"exist yet"
                ) from error
            except OSError as error:
                raise PortError(f"shared-memory directory {path}: {error.strerror}") from error
            self._held: contextlib.ExitStack | None = held.pop_all()
        self._remove_ports()

    def _remove_ports(self) -> None:
        for file in [self.path / "bell", *self.path.glob("port-*")]:
            file.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what is in the directory of the switch's, and the directory if it was made here."""
        if self._held is None:
            return
        self._remove_ports()
        self._lock_path.unlink(missing_ok=True)
        if self._made and not any(self.path.iterdir()):
            self._given.rmdir()
        self._held.close()
        self._held = None
