# SPDX-License-Identifier: Apache-2.0
"""One training run: workers are started on a deployment, listened to until they are done, and ended."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from weir.train.deployment import Deployment
from weir.train.messages import Evaluated, Failed
from weir.train.record import RunRecord, StepSummary
from weir.train.spec import WorkerSpec
from weir.train.watch import NetworkWatch
from weir.train.workers import Exited, Workers

_TICK_S: Final = 0.2
_CAUSE_S: Final = 1.0  # how long further failures are listened to, to tell a cause from its consequences

News = Callable[[RunRecord, StepSummary | Evaluated], None]


class WorkerError(RuntimeError):
    """A worker failed or vanished; the message says which, and ends with its traceback or log."""


def run_workers(
    spec: WorkerSpec,
    deployment: Deployment,
    record: RunRecord,
    logs: Path,
    news: News,
    look: Callable[[NetworkWatch], None] | None = None,
) -> None:
    """Train as ``spec`` says with the ranks of ``deployment``, to the end.

    record: takes in what they say; it is complete when this returns. logs: folder for what they print. news:
    is told each step and each evaluation. look: is shown what the switches count, several times a second.
    Raises WorkerError, ReplicasDifferError, ClusterError; no worker is left then either.
    """
    watched = deployment.watched() if look is not None else contextlib.nullcontext()
    with (
        watched as watch,
        Workers(
            spec.model_dump_json(),
            deployment.ranks,
            deployment.size,
            deployment.environment(),
            logs,
            deployment.prefix,
        ) as workers,
    ):
        left = set(deployment.ranks)
        while left:
            event = workers.next_event(_TICK_S)
            if look is not None and watch is not None:
                look(watch)
            if event is None:
                deployment.check()
            elif isinstance(event, Failed) or (isinstance(event, Exited) and event.reason):
                _raise_cause(event, workers)
            elif isinstance(event, Exited):
                left.discard(event.rank)
            elif (found := record.add(event)) is not None:
                news(record, found)
        if look is not None and watch is not None:
            watch.look()
            look(watch)
    record.status = "complete"


def _raise_cause(first: Failed | Exited, workers: Workers) -> NoReturn:
    """Listen for further failures, then raise the one that made the others: a crash before an exception."""
    failures = [first]
    deadline = time.monotonic() + _CAUSE_S
    while (left := deadline - time.monotonic()) > 0:
        event = workers.next_event(left)
        if isinstance(event, Failed) or (isinstance(event, Exited) and event.reason):
            failures.append(event)
    cause = next((failure for failure in failures if isinstance(failure, Exited)), first)
    text = cause.reason if isinstance(cause, Exited) else cause.traceback
    others = [
        f"worker {f.rank} then: {f.error}" for f in failures if isinstance(f, Failed) and f is not cause
    ]
    raise WorkerError("\n".join([f"worker {cause.rank} failed: {(text or '').strip()}", *others]))


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make the first SIGINT or SIGTERM a KeyboardInterrupt; ignore later ones: cleanup is under way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
