# SPDX-License-Identifier: Apache-2.0
"""Addresses of control channels: sockets in a directory of the user's own."""

import contextlib
import os
import re
import socket
import stat
import tempfile
from pathlib import Path
from typing import Final

from softp4.native.ownership import user_name

_NAME: Final = re.compile(r"switch-(\d+)\.sock")


class ControlAddressError(Exception):
    """The directory or the socket cannot be used. The message says why."""


def folder() -> Path:
    """Return ``$XDG_RUNTIME_DIR/softp4``, or ``softp4-UID`` under the directory for temporary files."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "softp4"
    return Path(tempfile.gettempdir()) / f"softp4-{os.getuid()}"


def own_socket() -> Path:
    """Return the socket of a switch in this process; makes the directory.

    Raises ControlAddressError when somebody else could get at what is in there.
    """
    where = folder()
    try:
        where.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ControlAddressError(f"control directory {where}: {error.strerror}") from error
    _require_own(where)
    return where / f"switch-{os.getpid()}.sock"


def _require_own(where: Path) -> None:
    """Raise ControlAddressError when somebody else could get at what is in a directory."""
    try:
        found = where.lstat()
    except OSError as error:
        raise ControlAddressError(f"control directory {where}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ControlAddressError(
            f"control directory {where} is not a directory of yours alone (mode 0700), but of "
            f"{user_name(found.st_uid)}, mode {stat.S_IMODE(found.st_mode):04o}: remove it, or choose "
            f"another by XDG_RUNTIME_DIR"
        )


def _sockets() -> list[Path]:
    """Return what looks like a switch's socket in the directory, which may not be there; errors as of
    ``running``.
    """
    where = folder()
    if not os.path.lexists(where):
        return []
    _require_own(where)
    return sorted(path for path in where.iterdir() if _NAME.fullmatch(path.name))


def running() -> dict[int, Path]:
    """Return the sockets of all switches of this user, by process id. What killed ones left behind is
    removed.

    Raises ControlAddressError when somebody else could get at what is in the directory.
    """
    found = {}
    for path in _sockets():
        if match := _NAME.fullmatch(path.name):
            if answers(path):
                found[int(match[1])] = path
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
    return dict(sorted(found.items()))


def abandoned_sockets() -> list[Path]:
    """Return the sockets that nobody answers at any more, and whose process has ended; errors as of
    ``running``.
    """
    return [
        path
        for path in _sockets()
        if (match := _NAME.fullmatch(path.name))
        and not Path("/proc", match[1]).exists()
        and not answers(path)
    ]


def answers(path: Path) -> bool:
    """Return whether somebody listens at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True
