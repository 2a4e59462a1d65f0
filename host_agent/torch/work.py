# SPDX-License-Identifier: Apache-2.0
"""Handles of queued operations, as torch knows them.

An operation is done when its host's part is: the network has given the result, and copies to devices are
enqueued. For whoever waits by a handle or its future, these come before all that is enqueued later.
"""

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

    Args:
        outcome: of the operation.
        streams: those that the operation was issued from, which it follows.
        written: the operation's result, where the outcome's is something else.
    """

    def __init__(
        self,
        outcome: Outcome[Any],
        streams: CallerStreams | None = None,
        written: Sequence[torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._outcome, self._written = outcome, written
        self._streams = streams = streams or CallerStreams()
        gate: Future[None] = Future(devices=list(streams.devices))
        # Torch runs the callback with streams of the future's own as the current ones, and completes the
        # future behind these, on the devices of the tensors that the callback returns.
        self._future: Future[Any] = gate.then(lambda _gate: _result(outcome, streams, written))
        outcome.add_done_callback(lambda _outcome: gate.set_result(None))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is done, at most ``timeout`` when it is positive; Ctrl-C interrupts it.

        The calling thread's current streams then wait for the rest of it on their devices.

        Raises:
            TimeoutError: it was not done in time.
            Exception: what the operation raised.
        """
        limit = timeout.total_seconds() if timeout is not None else 0.0
        try:
            error = self._outcome.exception(limit if limit > 0 else None)
        except TimeoutError:
            raise TimeoutError(
                f"timed out: the collective was not done within {limit:g} s; it goes on in the background"
            ) from None
        self._streams.join()
        if error is not None:
            raise error
        return True

    def block_current_stream(self) -> None:
        """Wait, the thread too, as ``wait`` does.

        A stream that waited on the device for the network would stand in the way of what the network needs:
        CUDA allocates no page-locked memory while a stream waits so (seen to hang on an H100).
        """
        self.wait()

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
        """Return the operation's result, the tensors it wrote, when it is done; the current streams wait as
        in ``wait``.
        """
        return _result(self._outcome, self._streams, self._written)

    def get_future(self) -> Future[Any]:
        """Return a future of the same outcome."""
        return self._future

    def synchronize(self) -> None:
        """Wait; for callers that know only this name."""
        self.wait()


def _result(outcome: Outcome[Any], streams: CallerStreams, written: Sequence[torch.Tensor] | None) -> Any:
    """Return an operation's result, or raise what it raised, and have the current streams wait for it."""
    result = outcome.result()
    streams.join()
    return result if written is None else written


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
        devices: the CUDA devices that its tensors are on. A future is in order with what the operation has
            enqueued on them where its result has tensors there.
        group, yields: see ``OperationQueue.submit``.

    Raises:
        RuntimeError: the queue is closed.
    """
    caller = CallerStreams(devices)

    def operation() -> Any:
        with caller.followed(), torch.no_grad():
            return run()

    try:
        return QueuedWork(operations.submit(operation, group=group, yields=yields), caller)
    except QueueClosedError:
        raise RuntimeError("the process group was destroyed: it takes no more collectives") from None
