# SPDX-License-Identifier: Apache-2.0
"""One training run: workers are started on a deployment, listened to until they are done, and ended."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from weir.train.deployment import Deployment
from weir.train.messages import Evaluated, Failed, WorkerSpec
from weir.train.record import RunRecord, StepSummary
from weir.train.watch import NetworkWatch
from weir.train.workers import Exited, Workers

_TICK_S: Final = 0.2
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
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
    Raises WorkerError, ReplicasDifferError, ClusterError, FolderError; no worker is left then either.
    """
    watched = deployment.watched() if look is not None else contextlib.nullcontext()
    with (
        watched as watch,
        Workers(
            spec.model_dump_json(),
            deployment.members,
            deployment.size,
            deployment.environment(),
            logs,
            deployment.prefix,
        ) as workers,
    ):
        left = set(deployment.members)
        while left:
            event = workers.next_event(_TICK_S)
            if look is not None and watch is not None:
                look(watch)
            if event is None:
                deployment.check()
            elif isinstance(event, Failed) or (isinstance(event, Exited) and event.reason):
                _raise_cause(event, workers, deployment)
            elif isinstance(event, Exited):
                left.discard(event.rank)
            else:
                with uninterrupted():  # else a step may be counted, and its line missing in the file
                    if (found := record.add(event)) is not None:
                        news(record, found)
        if look is not None and watch is not None:
            watch.look()
            look(watch)
    record.status = "complete"


def _raise_cause(first: Failed | Exited, workers: Workers, deployment: Deployment) -> NoReturn:
    """Listen for further failures, then raise the one that made the others: a crash before an exception.

    What several workers say alike is said once.
    """
    failures = [first]
    deadline = time.monotonic() + _CAUSE_S
    while (left := deadline - time.monotonic()) > 0:
        event = workers.next_event(left)
        if isinstance(event, Failed) or (isinstance(event, Exited) and event.reason):
            failures.append(event)
    cause = next((failure for failure in failures if isinstance(failure, Exited)), first)
    text = cause.reason if isinstance(cause, Exited) else cause.traceback or cause.error
    others = [f for f in failures if isinstance(f, Failed) and f is not cause]
    alike = [f for f in others if isinstance(cause, Failed) and _alike(f.error) == _alike(cause.error)]
    ranks = sorted([cause.rank, *(f.rank for f in alike)])
    who = ", ".join(map(deployment.called, ranks))
    if len(ranks) > 1 and ranks[-1] < deployment.size:
        who = f"workers {', '.join(map(str, ranks))}"
    then = [f"{deployment.called(f.rank)} then: {f.error}" for f in others if f not in alike]
    said = (_alike(text or "") if alike else text or "").strip()
    raise WorkerError("\n".join([f"{who} failed: {said}", *then]))


def _alike(error: str) -> str:
    """Return what an error says, without the rank that says it."""
    return re.sub(r" \(reported on rank \d+\)", "", error)


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
    for number in _ENDING:
        before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Deliver a SIGINT or SIGTERM that arrives in the block after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: arrived.append(number)) for number in _ENDING
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in arrived[:1]:
            signal.raise_signal(one)
