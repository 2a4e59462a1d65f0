# SPDX-License-Identifier: Apache-2.0
"""Owners and modes of what is about to be run, mapped or believed: no other user may have written it.

What belongs to this process's user or to root, and what nobody else may write to, is trusted; anything else
is refused, whatever user this process has. What is looked at is open already, so that nobody can put another
thing in its place between the look and the use. ring.h does the same for the memory of ports, in C.
"""

import contextlib
import os
import pwd
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class OwnershipError(PermissionError):
    """Another user could have written something, or did; ``strerror`` says who or how, and what to do."""


def distrust(found: os.stat_result) -> str:
    """Return why another user could have written what this is the state of; empty when none could."""
    if not is_trusted_user(found.st_uid):
        return f"it belongs to {user_name(found.st_uid)}: remove it"
    if found.st_mode & _OTHERS_WRITE and not stat.S_ISLNK(found.st_mode):
        return f"others than its owner may write to it (mode {stat.S_IMODE(found.st_mode):04o}): chmod go-w"
    return ""


def is_trusted_user(user: int) -> bool:
    """Tell whether a user is this process's, or root."""
    return user in (0, os.geteuid())


def user_name(user: int) -> str:
    """Return a user in a message: ``user nobody (65534)``."""
    try:
        return f"user {pwd.getpwuid(user).pw_name} ({user})"
    except KeyError:
        return f"user {user}"


def peer(connection: socket.socket) -> int:
    """Return the user whose process is at the other end of a Unix socket."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


@contextlib.contextmanager
def trusted_folder(path: Path) -> Iterator[Path]:
    """Yield a path of a folder in which nobody else can put anything; it leads there as long as the block
    lasts, even if somebody else can rename a folder above it.

    Raises:
        OwnershipError: somebody else can.
        OSError: there is no such folder, or it cannot be read.
    """
    if why := distrust(path.lstat()):  # a link that somebody else made leads where he wants
        raise _error(why, path)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if why := distrust(os.fstat(folder)):
            raise _error(why, path)
        yield _lasting_path(folder)
    finally:
        os.close(folder)


def read_trusted(path: Path) -> bytes:
    """Return the content of a regular file that nobody else could have written.

    Raises:
        OwnershipError: somebody else could.
        OSError: there is no such file, or it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        why = distrust(found) if stat.S_ISREG(found.st_mode) else "it is not a regular file"
        if why:
            raise _error(why, path)
        return file.read()


def _lasting_path(folder: int) -> Path:
    """Return the path of an open folder; where somebody else owns one above it, a path by way of /proc."""
    link = Path(f"/proc/{os.getpid()}/fd/{folder}")  # of this process, for children as well
    path = link.readlink()
    return path if all(_stays(above.lstat()) for above in path.parents) else link


def _stays(above: os.stat_result) -> bool:
    """Tell whether nobody else can rename what is in a folder."""
    sticky = above.st_mode & stat.S_ISVTX
    return is_trusted_user(above.st_uid) and (sticky != 0 or not above.st_mode & _OTHERS_WRITE)


def _error(why: str, path: Path) -> OwnershipError:
    return OwnershipError(1, why, str(path))
