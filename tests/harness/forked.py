# SPDX-License-Identifier: Apache-2.0
"""Processes forked from one that has imported what takes long: each begins in a fraction of a second."""

import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Final

import pytest

from tests.harness.base import FORKSERVER, fork_with_files
from tests.harness.ports import free_port
from tests.harness.source import source_path
from weir.process.template import Forked, shared_template

FORKED: Final = multiprocessing.get_context("forkserver")


class _FromBase(forkserver.ForkServer):
    """The server that these processes are forked by, itself forked from one that has imported all."""

    _child: Forked | None = None

    def ensure_running(self) -> None:
        with self._lock:  # type: ignore[attr-defined]
            if self._child is not None and self._child.poll() is None:
                return
            resource_tracker.ensure_running()
            with socket.socket(socket.AF_UNIX) as listener, tempfile.TemporaryDirectory() as folder:
                listener.bind("")
                listener.listen()
                alive, self._forkserver_alive_fd = os.pipe()
                files = [listener.fileno(), alive, 1, 2]
                self._child = fork_with_files([FORKSERVER], files, Path(folder) / "log", {})
                self._forkserver_address = listener.getsockname()
                os.close(alive)


if sys.version_info < (3, 14):  # later ones have a key besides
    forkserver._forkserver.__class__ = _FromBase  # type: ignore[attr-defined]
else:
    FORKED.set_forkserver_preload(["tests.harness.imported"])

_TIMEOUT_S: Final = 120.0


def run_ranks(
    number: int, script: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run a script on this many ranks, as torchrun does, in its folder; return what all of them print.

    Args:
        number: of ranks.
        script: a file of Python.
        arguments: of the script.
        environment: added to this process's.
    """
    place = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with tempfile.NamedTemporaryFile() as said:
        ranks = [
            FORKED.Process(
                target=_run,
                args=(script, arguments, {**(environment or {}), **place, "RANK": str(rank)}, said.name),
            )
            for rank in range(number)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(_TIMEOUT_S)
            rank.kill()  # one that has not ended
            rank.join()
        text = Path(said.name).read_text()
    assert not any(rank.exitcode for rank in ranks), text
    return text


def _run(script: Path, arguments: tuple[str, ...], place: dict[str, str], said: str) -> None:
    output = os.open(said, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.update(place)
    os.chdir(script.parent)
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


@pytest.fixture(scope="module", autouse=True)
def forked_clusters() -> Iterator[None]:
    """Fork switches and controllers of this process's local clusters, in tests of whoever imports this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.cluster.spawn", _fork)
        yield


@pytest.fixture(scope="module", autouse=True)
def forked_pools() -> Iterator[None]:
    """Fork the processes of pools (``weir.process.pool``), in tests of whoever imports this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weir.process.pool._METHOD", "forkserver")
        yield


def _fork(program: str, arguments: Sequence[str], *, log: Path, remove: Path) -> Forked:
    """Start a program as ``weir.process.child.spawn`` does, except that nothing removes ``remove``."""
    template = shared_template("tests.harness.programs", {"PYTHONPATH": source_path()}, log)
    return template.fork([program, *arguments], log=log, environment={})
