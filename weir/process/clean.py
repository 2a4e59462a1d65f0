# SPDX-License-Identifier: Apache-2.0
"""``weir clean``: what killed processes of Weir's have left on this machine, found and removed."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from softp4.control.address import ControlAddressError, abandoned_sockets
from softp4.native.build import cache_dir
from softp4.native.scratch import abandoned, is_free
from weir.cluster import MEMORY
from weir.process.child import PARENT, identity

_PROC: Final = Path("/proc")
_STARTERS: Final = ("weir.process.child", "weir.process.template")  # run a module
_GRACE_S: Final = 6.0  # a child whose parent has just died ends by itself within five


@dataclass(frozen=True)
class Leftover:
    """One thing that is left, as text, and how to remove it."""

    words: str
    remove: Callable[[], object]


def clean(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
) -> None:
    """Remove leftovers of this user's killed Weir processes from this machine, and report them.

    Leftovers are children whose parent is dead and that cannot end by themselves, with their network
    namespaces; folders in shared memory, among the temporary files and in the cache; locks in the cache;
    control sockets of switches. The command never touches anything that a living process uses, nor results in
    runs/.
    """
    left = False
    for leftover in _leftovers():
        left = True
        try:
            if not dry_run:
                leftover.remove()
        except OSError as error:
            typer.echo(f"weir clean: cannot remove {leftover.words}: {error.strerror}", err=True)
            raise typer.Exit(1) from None
        typer.echo(f"{'found' if dry_run else 'removed'}: {leftover.words}")
    if not left:
        typer.echo("no leftovers of killed Weir processes")


def _leftovers() -> Iterator[Leftover]:
    """Yield processes first: they hold the rest."""
    for pid, words in sorted(_orphans().items()):
        yield Leftover(words, partial(_end, pid, identity(pid)))
    for parent in dict.fromkeys((MEMORY, Path(tempfile.gettempdir()), cache_dir())):
        for folder in abandoned(parent, "weir", "softp4"):
            yield Leftover(f"folder {folder}", partial(shutil.rmtree, folder))
    for lock in sorted(cache_dir().glob("*.lock")):
        if is_free(lock):
            yield Leftover(f"lock {lock}", partial(lock.unlink, missing_ok=True))
    with contextlib.suppress(ControlAddressError):  # what is in another user's directory is his
        for socket in abandoned_sockets():
            yield Leftover(f"socket {socket}", partial(socket.unlink, missing_ok=True))


def _orphans() -> dict[int, str]:
    """Return this user's children of Weir's whose parent is dead, as text, by process id."""
    found = {}
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid() and _is_orphan(entry):
                found[int(entry.name)] = f"process {entry.name} ({_module(entry)}){_where(entry)}"
    return found


def _is_orphan(entry: Path) -> bool:
    """Tell whether the process that started this one, by its environment, has ended. Not of zombies."""
    name = f"{PARENT}=".encode()
    words = (entry / "environ").read_bytes().split(b"\0")
    parent = next((word.removeprefix(name).decode() for word in words if word.startswith(name)), "")
    if not parent or not _sees_same_processes(entry) or not identity(int(entry.name)):
        return False
    return identity(int(parent.partition(":")[0])) != parent


def _sees_same_processes(entry: Path) -> bool:
    """Tell whether process ids mean the same to a process as here: it is in no other container."""
    return (entry / "ns" / "pid").readlink() == (_PROC / "self" / "ns" / "pid").readlink()


def _module(entry: Path) -> str:
    """Return what a child of Weir's does: the module that it runs, or its program."""
    words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    starters = [place for place, word in enumerate(words[:-2]) if word in _STARTERS]
    return words[starters[0] + 1] if starters else words[0]


def _where(entry: Path) -> str:
    there = (entry / "ns" / "net").readlink()
    same = there == (_PROC / "self" / "ns" / "net").readlink()
    return "" if same else f", which holds the network namespace {there}"


def _end(pid: int, who: str) -> None:
    """End a process: SIGTERM, and SIGKILL if it is still there after a while."""
    with contextlib.suppress(ProcessLookupError):
        for number in (signal.SIGTERM, signal.SIGKILL):
            if identity(pid) == who:
                os.kill(pid, number)
            deadline = time.monotonic() + _GRACE_S
            while identity(pid) == who and time.monotonic() < deadline:
                time.sleep(0.05)
