# SPDX-License-Identifier: Apache-2.0
"""Handles of queued operations, as torch knows them."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future as Outcome
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from weir.host_agent.torch.compiling import never_compiled
from weir.host_agent.torch.staging import CallerStreams
from weir.host_agent.transport.operations import OperationQueue, QueueClosedError


@never_compiled
class QueuedWork(Work):
    """One operation on its way. ``wait`` blocks until it is done and raises what it raised.

    Its future carries the operation's result. A failure reaches the future through a callback that raises:
    completing it by ``set_exception`` from Python crashes DDP.
    """

    def __init__(self, outcome: Outcome[Any], devices: Sequence[torch.device] = ()) -> None:
        super().__init__()
        self._outcome = outcome
        gate: Future[None] = Future(devices=list(devices))
        self._future: Future[Any] = gate.then(lambda _gate: outcome.result())
        outcome.add_done_callback(lambda _outcome: gate.set_result(None))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is done, at most ``timeout`` when it is positive; Ctrl-C interrupts it.

        Raises:
            TimeoutError: it was not done in time.
            Exception: what the operation raised.
        """
        limit = timeout.total_seconds() if timeout is not None else 0.0
        try:
            error = self._outcome.exception(limit if limit > 0 else None)
        except TimeoutError:
            raise TimeoutError(
                f"the collective was not done within {limit:g} s; it goes on in the background"
            ) from None
        if error is not None:
            raise error
        return True

    def is_completed(self) -> bool:
        """Return whether it is done, well or not."""
        return self._outcome.done()

    def is_success(self) -> bool:
        """Return whether it is done and raised nothing."""
        return self._outcome.done() and self._outcome.exception() is None

    def exception(self) -> BaseException | None:
        """Return what it raised, if it is done and did."""
        return self._outcome.exception() if self._outcome.done() else None

    def result(self) -> Any:
        """Return the operation's result, the tensors it wrote, when it is done."""
        return self._outcome.result()

    def get_future(self) -> Future[Any]:
        """Return a future of the same outcome."""
        return self._future

    def synchronize(self) -> None:
        """Wait; for callers that know only this name."""
        self.wait()


def submit(
    operations: OperationQueue,
    run: Callable[[], Any],
    devices: Sequence[torch.device] = (),
    *,
    group: object = None,
    yields: bool = False,
) -> QueuedWork:
    """Queue an operation on tensors, which no gradients are recorded of.

    Args:
        operations: the queue.
        run: the operation.
        devices: the CUDA devices that its tensors are on.
        group, yields: see ``OperationQueue.submit``.

    Raises:
        RuntimeError: the queue is closed.
    """
    caller = CallerStreams(devices)

    def operation() -> Any:
        with caller.followed(), torch.no_grad():
            return run()

    try:
        return QueuedWork(operations.submit(operation, group=group, yields=yields), devices)
    except QueueClosedError:
        raise RuntimeError("the process group was destroyed: it takes no more collectives") from None
