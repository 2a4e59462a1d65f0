# SPDX-License-Identifier: Apache-2.0
"""Jobs with parameter servers for tests: worker processes that run functions, and servers beside them.

Processes are forked from the server of ``worlds``, which has torch imported.
"""

import os
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.harness.forked import FORKED
from tests.host_agent.torch.worlds import TIMEOUT_S, WorkerError
from weir.host_agent.torch.parameter_server.job_group import open_store
from weir.host_agent.torch.parameter_server.serve import make_server
from weir.host_agent.torch.parameter_server.slot_server import SlotServer


class Job:
    """``workers`` processes that each run ``train(rank, *args)``, and ``servers`` processes that serve them.

    ``first`` is called in each process before. ``outcomes`` are what they return, workers first; an exception
    that one raised is its outcome.
    """

    def __init__(
        self,
        workers: int,
        servers: int,
        train: Callable[..., Any],
        *args: Any,
        environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
        first: Callable[[], None] | None = None,
    ) -> None:
        self._first = first
        self._started: dict[int, Any] = {}
        self._directory = tempfile.TemporaryDirectory()
        store = Path(self._directory.name) / "store"
        self._pipes: dict[int, Connection] = {}
        self.processes = []
        for rank in range(workers + servers):
            common = {"WEIR_RENDEZVOUS": f"file://{store}", "RANK": str(rank), "WORLD_SIZE": str(workers)}
            state = Path(self._directory.name) / f"state-{rank - workers}"
            work = (train, (rank, *args)) if rank < workers else (_serve, (rank - workers, state))
            self.processes.append(self._start(rank, {**common, **environment(rank)}, *work))

    def _start(self, rank: int, *what: Any) -> Any:
        ours, theirs = FORKED.Pipe()
        process = FORKED.Process(target=_run, args=(theirs, self._first, *what))
        process.start()
        theirs.close()
        self._pipes[rank] = ours
        self._started[rank] = what
        return process

    def kill_and_restart(self, rank: int) -> None:
        """Kill a process as ``kill -9`` does, and start it again."""
        self.processes[rank].kill()
        self.processes[rank].join()
        self.processes[rank] = self._start(rank, *self._started[rank])

    def outcomes(self, ranks: Sequence[int] | None = None) -> list[Any]:
        """Return what processes returned, by default all of them."""
        found = []
        for rank in range(len(self._pipes)) if ranks is None else ranks:
            if not self._pipes[rank].poll(TIMEOUT_S):
                raise WorkerError(f"process {rank} gave no answer within {TIMEOUT_S:g} s")
            found.append(pickle.loads(self._pipes[rank].recv_bytes()))
        return found

    def results(self) -> list[Any]:
        """Return what all processes returned; fails when one raised."""
        outcomes = self.outcomes()
        for rank, outcome in enumerate(outcomes):
            if isinstance(outcome, BaseException):
                raise WorkerError(f"process {rank}: {outcome!r}") from outcome
        return outcomes

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes:
            process.join(TIMEOUT_S)
            if process.is_alive():
                process.kill()
                raise WorkerError(f"process {process.pid} did not end")
        self._directory.cleanup()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _serve(index: int, state: Path) -> tuple[int, int, int] | None:
    """Return the bytes that a synchronous server has sent to the switch and got from it, and how many packets
    it has sent again.
    """
    server = make_server(open_store(None, leads=False), index, state=state)
    server.run()
    if not isinstance(server, SlotServer):
        return None
    stats = server.connection.stats
    return stats.bytes_up, stats.bytes_down, stats.retransmissions


def _run(
    pipe: Connection,
    first: Callable[[], None] | None,
    environment: Mapping[str, str],
    function: Callable[..., Any],
    args: Sequence[Any],
) -> None:
    torch.set_num_threads(1)
    if first is not None:
        first()

    os.environ.update(environment)
    try:
        outcome = function(*args)
    except Exception as error:
        outcome = error
    pipe.send_bytes(pickle.dumps(outcome))  # torch would share a tensor's memory, which ends with the process
