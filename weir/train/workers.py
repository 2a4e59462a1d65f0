# SPDX-License-Identifier: Apache-2.0
"""The worker processes of one run, as a stream of what they say and how they end."""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from weir.process.child import end, how_it_ended, log_tail
from weir.process.template import Forked, shared_template
from weir.train.folder import writing
from weir.train.messages import Failed, Finished, Message, decode

_GRACE_S = 3.0


@dataclass(frozen=True)
class Exited:
    """A worker's process is over; ``reason`` is None when it had said that it finished."""

    rank: int
    reason: str | None


class Workers:
    """Started worker processes. A context manager: none is left when it ends.

    One thread per worker reads its pipe, so that no worker ever waits for the launcher.
    """

    def __init__(
        self,
        spec: str,
        ranks: Iterable[int],
        size: int,
        environment: Mapping[int, Mapping[str, str]],
        logs: Path,
        prefix: Callable[[int], Sequence[str]] = lambda _rank: (),
        module: str = "weir.train.worker",
    ) -> None:
        """Start ``ranks`` of a group of ``size``.

        spec: a WorkerSpec as JSON. environment: what each rank's environment has besides this process's.
        logs: directory for what they print, worker-<rank>.log. prefix: a command that becomes a rank's
        process, such as the ``prefix`` of a namespace. module: what the ranks run.
        """
        with writing(logs):
            logs.mkdir(parents=True, exist_ok=True)
        self._events: queue.SimpleQueue[Message | Exited] = queue.SimpleQueue()
        self._processes: dict[int, Forked] = {}
        self._readers: list[threading.Thread] = []
        members = list(ranks)
        self._template = shared_template(module, worker_environment(), logs / f"worker-{members[0]}.log")
        try:
            for rank in members:
                added = {**environment[rank], "RANK": str(rank), "WORLD_SIZE": str(size)}
                self._start(rank, spec, added, logs / f"worker-{rank}.log", prefix(rank))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def next_event(self, timeout_s: float) -> Message | Exited | None:
        """Return what a worker said, or that it ended; None when nothing happens for that long."""
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=timeout_s)
        return None

    def stop(self) -> None:
        """End all that still run."""
        end(list(self._processes.values()), _GRACE_S)
        for reader in self._readers:
            reader.join()

    def _start(
        self, rank: int, spec: str, environment: Mapping[str, str], log: Path, prefix: Sequence[str]
    ) -> None:
        with writing(log):
            log.touch()
        process = self._template.fork([spec], log=log, environment=environment, pipe=True, prefix=prefix)
        self._processes[rank] = process
        reader = threading.Thread(target=self._read, args=(rank, process, log), name=f"worker-{rank}")
        reader.start()
        self._readers.append(reader)

    def _read(self, rank: int, process: Forked, log: Path) -> None:
        """Pass on every line of one worker, then how it ended."""
        assert process.stdout is not None
        said_why = False
        for line in process.stdout:
            try:
                message = decode(line.decode())
            except ValueError:  # half a line: it was killed while it wrote
                continue
            if message.rank != rank:
                continue
            said_why = said_why or isinstance(message, Failed | Finished)
            self._events.put(message)
        status = process.wait()
        reason = None
        if not said_why:
            reason = f"{how_it_ended(status)}\n{log_tail(log)}".strip()
        self._events.put(Exited(rank, reason))


def worker_environment() -> dict[str, str]:
    """Return what every worker's environment says, whichever backend: Gloo stays on loopback, one thread
    each.
    """
    return {
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
