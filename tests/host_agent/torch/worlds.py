# SPDX-License-Identifier: Apache-2.0
"""Worker processes for tests: real ranks that stay up and run one function after another.

Processes are forked from a server that has torch imported, so that a world starts in a fraction of a second.
"""

import contextlib
import faulthandler
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

import weir.torch
from tests.harness.forked import FORKED
from tests.host_agent.torch.on_device import OnDevice

TIMEOUT_S = 60.0  # of the parent with a world that answers nothing


class WorkerError(AssertionError):
    """A rank raised; carries its traceback."""


class World:
    """``size`` processes in one process group of a backend.

    environment: what rank r's process finds in its environment; by default nothing of Weir's. ranks: those
    that there are, by default all. sizes: how many ranks each says that there are. device: where the tensors
    are that tests make, see ``on_device``; None: as the tests say. backend: of the group. An error of
    init_process_group is the outcome of whatever is run.

    ``run(function, *args)`` calls ``function(*args)`` on every rank at once and returns the results by rank.
    ``dist.get_rank()`` and the like work inside it.
    """

    def __init__(
        self,
        size: int,
        environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
        *,
        timeout_s: float = 30.0,
        ranks: Sequence[int] | None = None,
        sizes: Sequence[int] = (),
        device: str | None = None,
        backend: str = "weir",
    ) -> None:
        self.size = size
        self._directory = tempfile.TemporaryDirectory()
        store = str(Path(self._directory.name) / "store")
        self._pipes, self.processes = [], []
        for rank in range(size) if ranks is None else ranks:
            ours, theirs = FORKED.Pipe()
            process = FORKED.Process(
                target=_serve,
                args=(
                    theirs,
                    Place(
                        store,
                        rank,
                        sizes[rank] if sizes else size,
                        timeout_s,
                        dict(environment(rank)),
                        device,
                        backend,
                    ),
                ),
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Start ``function(*args)`` on every rank."""
        for pipe in self._pipes:
            pipe.send((function, args))

    def outcome(self, rank: int, timeout_s: float = TIMEOUT_S) -> Any:
        """Return what a rank's function returned; an exception that it raised is returned, not raised."""
        pipe: Connection = self._pipes[rank]
        if not pipe.poll(timeout_s):
            raise WorkerError(f"rank {rank} gave no answer within {timeout_s:g} s")
        return pipe.recv()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Run ``function(*args)`` on every rank; fails when any rank raised."""
        self.start(function, *args)
        outcomes = [self.outcome(rank) for rank in range(self.size)]
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, BaseException):
                raise WorkerError(f"rank {rank}: {outcome}\n{''.join(getattr(outcome, '__notes__', []))}")
        return outcomes

    def kill(self) -> None:
        """End every process at once, whatever it waits for."""
        for process in self.processes:
            process.kill()
        self.close()

    def close(self) -> None:
        """End every process cleanly and checks that each did end so."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # the test may have killed that rank
                pipe.send(None)
        for process in self.processes:
            process.join(TIMEOUT_S)
            if process.is_alive():
                stacks = self._stacks(process)
                process.kill()
                raise WorkerError(f"process {process.pid} did not end; its threads:\n{stacks}")
            if process.exitcode not in (0, -signal.SIGKILL):
                raise WorkerError(f"process {process.pid} ended with status {process.exitcode}")
        self._directory.cleanup()

    def _stacks(self, process: ForkServerProcess) -> str:
        """Return what each thread of a living rank does."""
        assert process.pid is not None
        os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        return Path(self._directory.name, f"stacks-{process.pid}").read_text()

    def __enter__(self) -> "World":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Place:
    """Which rank a process is, and of what."""

    store: str
    rank: int
    size: int
    timeout_s: float
    environment: Mapping[str, str]
    device: str | None = None
    backend: str = "weir"


_raising: list[dist.ProcessGroup] = []


def raising() -> dist.ProcessGroup:
    """Return, on a rank, the world's further group that raises for NaN and infinity."""
    if not _raising:
        options = weir.torch.GroupOptions(slots=16, non_finite="raise")
        group = dist.new_group(backend="weir", pg_options=options)
        assert group is not None
        _raising.append(group)
    return _raising[0]


def _serve(pipe: Connection, place: Place) -> None:
    stacks = Path(place.store).with_name(f"stacks-{os.getpid()}").open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    torch.set_num_threads(1)
    os.environ.update(place.environment)
    try:
        dist.init_process_group(
            place.backend,
            store=dist.FileStore(place.store, place.size),
            rank=place.rank,
            world_size=place.size,
            timeout=timedelta(seconds=place.timeout_s),
        )
        failure = None
    except Exception as error:
        failure = error
    while (task := pipe.recv()) is not None:
        function, args = task
        try:
            if failure is not None:
                raise failure
            with OnDevice(place.device) if place.device else contextlib.nullcontext():
                found = function(*args)
            pipe.send(found)
        except Exception as error:
            error.add_note(traceback.format_exc())
            pipe.send(error)
    if dist.is_initialized():
        dist.destroy_process_group()
