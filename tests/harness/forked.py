# SPDX-License-Identifier: Apache-2.0
"""Processes forked from one that has imported what takes long: each begins in a fraction of a second."""

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.harness.ports import free_port
from tests.harness.source import source_path
from weir.process.template import Forked, shared_template

FORKED: Final = multiprocessing.get_context("forkserver")
_PRELOADED: Final = [
    "torch",
    "torch._dynamo",  # DistributedDataParallel imports it, which takes seconds
    "pytest",  # modules of tests import it: a sixth of a second in every process
    "weir.torch",
    "weir.cluster",
    "numpy.ma",
    "weir.host_agent.torch.parameter_server.serve",
    "tests.harness.frozen",
]
FORKED.set_forkserver_preload(_PRELOADED)

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
