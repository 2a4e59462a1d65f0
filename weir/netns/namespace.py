# SPDX-License-Identifier: Apache-2.0
"""Network namespaces without names: an open file holds each, so that it ends with the process that made it.

Nothing is left behind, however that process ends, and two labs on one machine cannot meet. Needs the right to
administer networks: root's, or that of a user namespace (``gain_root``).
"""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, TypeVar

from weir.netns.netlink import Links
from weir.process.become import CLONE_NEWNET, call, new_network
from weir.process.child import BECOME

_GAINED: Final = "WEIR_USER_NAMESPACE"
_SETTINGS: Final = {
    "ipv6/conf/default/disable_ipv6": "1",
    "bridge/bridge-nf-call-iptables": "0",  # a bridge is to forward frames, and to look no further
}
_T = TypeVar("_T")


class NamespaceError(RuntimeError):
    """A namespace, or a network of them, could not be made; the message says which part and why."""


class Namespace:
    """A network namespace with its loopback interface up; ``links`` changes its interfaces.

    They have no IPv6, which would send packets of its own accord.
    """

    def __init__(self) -> None:
        """Make one. Raises NamespaceError when this process may not."""
        self._file = _in_thread(_make)
        self.links = Links(self.call)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it: it ends, with its interfaces, once no process and no socket is in it."""
        os.close(self._file)

    @property
    def file(self) -> int:
        """Open file that holds it."""
        return self._file

    @property
    def path(self) -> str:
        """Path by which other processes of this user find it while this one holds it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def prefix(self) -> list[str]:
        """Return what to put before a command that is to run in it: a command that becomes the other."""
        return [*BECOME, "--net", self.path, "--"]

    def call(self, function: Callable[[], _T]) -> _T:
        """Return what a function returns when a thread inside calls it; sockets that it makes stay inside."""

        def inside() -> _T:
            call("setns", self._file, CLONE_NEWNET)
            return function()

        return _in_thread(inside)


def why_not() -> str | None:
    """Return why this process cannot make network namespaces, as text; None when it can."""
    try:
        Namespace().close()
    except (NamespaceError, OSError) as error:
        return str(error)
    return None


def gain_root() -> str | None:
    """See to it that this process can make network namespaces.

    Where it may not, but an unprivileged user namespace is available, this program starts again in one, with
    the arguments that it got: the call does not return. So call it first of all.

    Returns:
        None when this process can make namespaces; otherwise why not, as text.
    """
    reason = why_not()
    if reason is None or _GAINED in os.environ:
        return reason
    probe = subprocess.run(
        [*BECOME, "--new-user", "--net", "new", "--", "true"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        return f"{reason}, and user namespaces are not available: {probe.stderr.strip()}"
    sys.stdout.flush()
    sys.stderr.flush()
    command = [*BECOME, "--new-user", "--", sys.executable, *sys.orig_argv[1:]]
    return os.execve(command[0], command, {**os.environ, _GAINED: "1"})


def _make() -> int:
    """Give the calling thread a new network; return the file that holds it."""
    try:
        new_network()
    except OSError as error:
        raise NamespaceError(f"network namespaces need root ({error})") from error
    for name, value in _SETTINGS.items():
        with contextlib.suppress(OSError):  # a kernel without this, a container whose /proc/sys is read-only
            Path("/proc/sys/net", name).write_text(value)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _in_thread(function: Callable[[], _T]) -> _T:
    """Return what a function returns in a thread of its own, whose namespace nobody else shares."""
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
