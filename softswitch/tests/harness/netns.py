# SPDX-License-Identifier: Apache-2.0
"""Network namespaces without names, for ports on real interfaces: an open file holds each, and ends it.

Their interfaces are made by iproute2's commands; where these are missing, the test is skipped. Needs root.
"""

import contextlib
import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeVar

import pytest

_CLONE_NEWNET: Final = 0x40000000
_SIOCETHTOOL: Final = 0x8946
_TX_CHECKSUMS: Final = 0x17  # ETHTOOL_STXCSUM
_T = TypeVar("_T")


class Namespace:
    """A network namespace with its loopback interface up, and without IPv6, which would send by itself."""

    def __init__(self) -> None:
        """Make one. Raises OSError when this process may not."""
        if missing := [tool for tool in ("ip", "tc", "nsenter") if shutil.which(tool) is None]:
            pytest.skip(f"needs {' and '.join(missing)} on PATH")
        self._file = _in_thread(_make)
        self.ip("link", "set", "lo", "up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._file)

    @property
    def path(self) -> str:
        """Path by which commands of this user find it while this process holds it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def prefix(self) -> list[str]:
        """Words before a command that make it run in here."""
        return ["nsenter", f"--net={self.path}", "--"]

    def ip(self, *words: str) -> None:
        """Run iproute2's ``ip`` in here."""
        self._run("ip", *words)

    def tc(self, *words: str) -> None:
        """Run iproute2's ``tc`` in here."""
        self._run("tc", *words)

    def add_veth(self, name: str, peer: str, there: "Namespace | None" = None) -> None:
        """Make a pair of interfaces, both up, the second one in another namespace where one is given."""
        home = there or self
        self.ip("link", "add", name, "type", "veth", "peer", "name", peer, "netns", home.path)
        self.set_up(name)
        home.set_up(peer)

    def set_up(self, name: str, up: bool = True) -> None:
        """Bring an interface up, or down."""
        self.ip("link", "set", name, "up" if up else "down")

    def set_mtu(self, name: str, mtu: int) -> None:
        """Set the length of an interface's longest packet."""
        self.ip("link", "set", name, "mtu", str(mtu))

    def compute_checksums(self, name: str) -> None:
        """Let hosts behind an interface write the checksums that they leave to a device otherwise."""

        def change() -> None:
            value = bytearray(struct.pack("II", _TX_CHECKSUMS, 0))
            address = (ctypes.c_char * len(value)).from_buffer(value)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                request = struct.pack("16sP", name.encode(), ctypes.addressof(address))
                fcntl.ioctl(control, _SIOCETHTOOL, request)

        self.call(change)

    def call(self, function: Callable[[], _T]) -> _T:
        """Return a function's result from a thread in here; sockets that it makes stay in here."""

        def inside() -> _T:
            _libc("setns", self._file, _CLONE_NEWNET)
            return function()

        return _in_thread(inside)

    def _run(self, *command: str) -> None:
        done = subprocess.run([*self.prefix, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


def why_not() -> str | None:
    """Return the reason why this process cannot make network namespaces; None when it can."""
    try:
        os.close(_in_thread(_make))
    except OSError as error:
        return f"needs network namespaces: {error}"
    return None


def _make() -> int:
    _libc("unshare", _CLONE_NEWNET)
    with contextlib.suppress(OSError):  # a kernel without IPv6, or a read-only /proc/sys
        Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").write_text("1")
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _libc(name: str, *arguments: int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def _in_thread(function: Callable[[], _T]) -> _T:
    """Return a function's result from a thread of its own, whose namespace is no other's."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
