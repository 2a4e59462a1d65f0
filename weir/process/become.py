# SPDX-License-Identifier: Apache-2.0
"""Become a command elsewhere: ``become.py [--parent PID] [--new-user] [--net FILE|new] -- COMMAND``.

``--parent``: the kernel kills it when that process ends, its parent: for programs that are not Weir's, such
as BMv2. More exactly, when the parent's *thread* that started it ends; so that must be one that stays.
``--new-user`` makes a user namespace in which the caller is root: there an ordinary user may make network
namespaces. ``--net`` enters the network namespace of a file such as ``/proc/PID/fd/3``, or a new one.

It imports nothing of Weir, so that Python runs it without site-packages, in about ten milliseconds.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Final

CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_PR_SET_PDEATHSIG: Final = 1


def _tie(parent: int) -> None:
    """Let the kernel kill this process when its parent ends."""
    call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before
        os.kill(os.getpid(), signal.SIGKILL)


def _become_root() -> None:
    """Enter a user namespace of its own, whose root is the user that calls."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")


def new_network() -> None:
    """Give the calling thread a network namespace of its own, its loopback interface up. Raises OSError."""
    call("unshare", CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def _enter_network(name: str) -> None:
    """Enter the network namespace of a file, or a new one if its loopback can be used."""
    if name == "new":
        new_network()
        return
    handle = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    call("setns", handle, CLONE_NEWNET)
    os.close(handle)


def call(name: str, *arguments: int) -> None:
    """Call a function of the C library that Python 3.11 lacks. Raises OSError."""
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def enter(options: list[str]) -> None:
    """Do what the options say, in their order, to this process. Raises OSError."""
    left = iter(options)
    for option in left:
        match option:
            case "--parent":
                _tie(int(next(left)))
            case "--new-user":
                _become_root()
            case _:
                _enter_network(next(left))


def main() -> None:
    """Do what the options say, in their order, and become the command."""
    split = sys.argv.index("--")
    options, command = sys.argv[1:split], sys.argv[split + 1 :]
    try:
        enter(options)
        os.execvp(command[0], command)
    except OSError as error:
        where = (
            " in namespaces of its own"
            if "--net" in sys.argv[:split] or "--new-user" in sys.argv[:split]
            else ""
        )
        sys.exit(f"{command[0]} cannot run{where}: {error}")


if __name__ == "__main__":
    main()
