# SPDX-License-Identifier: Apache-2.0
"""Handles of queued operations, as torch knows them.

An operation is done when its host's part is: the network has given the result, and copies to devices are
enqueued. For anyone who waits by a handle or its future, these come before all that is enqueued later.
"""

import atexit
import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future as HostFuture
from datetime import timedelta
from typing import Any, Final

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future

from weir.host_agent.torch.compiling import never_compiled
from weir.host_agent.torch.cpp_future import is_asked_by_cpp, tensors_after
from weir.host_agent.torch.staging import CallerStreams, wait_here
from weir.host_agent.transport.callbacks import Outcome
from weir.host_agent.transport.operations import OperationQueue, QueueClosedError

_MOST_DROPPED: Final = 1024
_MOST_KEPT_BYTES: Final = 4096  # of one that was dropped: DDP reads a single number


@never_compiled
class QueuedWork(Work):
    """One operation on its way. ``wait`` blocks until it is done and raises what it raised.

    Its future carries the operation's result. A failure reaches the future through a callback that raises:
    completing it by ``set_exception`` from Python crashes DDP.

    Torch's C++ may keep the work, as ``DDP.join(divide_by_initial_world_size=False)`` does, when no Python
    code does any more, wait for it later and read its future. Both are Python code, and without it C++ waits
    for ever. C++ does not tell whether it keeps a work. So one that nobody has waited for stays, the last
    1,024 of them, with a result of at most 4 KiB.

    Args:
        outcome: of the operation.
        streams: those that the operation was issued from, which it follows.
        written: the operation's result, where the outcome's is something else.

    Attributes:
        read_by_cpp: tensors that C++ reads as the future's value; None: it takes the result from Python.
        profiled: done when a profiler has noted the operation's end; None: none watches. A profiler that is
            stopped before may crash, so ``wait`` and futures wait for this, too.
    """

    _awaited = True  # or never begun

    def __init__(
        self,
        outcome: HostFuture[Any],
        streams: CallerStreams | None = None,
        written: Sequence[torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.read_by_cpp: Sequence[torch.Tensor] | None = None
        self.profiled: Future[Any] | None = None
        self._outcome, self._written = outcome, written
        self._streams = streams or CallerStreams()
        self._awaited = False

    def __del__(self) -> None:
        """Stay, for C++ to wait for, unless somebody has waited."""
        if not self._awaited:
            self._outcome, self._written = _slim(self._outcome, self._written), None
            self.read_by_cpp = None
            _dropped.append(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is done, at most ``timeout`` when it is positive; Ctrl-C interrupts it.

        The calling thread's current streams then wait for the rest of it on their devices.

        Raises:
            TimeoutError: it was not done in time.
            EndlessWaitError: this is called in an operation that the queue runs before.
            Exception: what the operation raised.
        """
        self._awaited = True
        limit = timeout.total_seconds() if timeout is not None else 0.0
        try:
            error = self._outcome.exception(limit if limit > 0 else None)
        except TimeoutError:
            raise TimeoutError(
                f"timed out: the collective was not done within {limit:g} s; it goes on in the background"
            ) from None
        _wait_for_profiler(self.profiled)
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
        return self._outcome.done() and (self.profiled is None or self.profiled.done())

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
        """Return a future of the same outcome.

        Callbacks on it may block, issue collectives and wait for them: see ``OperationQueue``.

        Raises:
            EndlessWaitError: this is called in an operation that the queue runs before.
        """
        self._awaited = True
        if isinstance(self._outcome, Outcome):
            self._outcome.refuse_in_operation()
        for_cpp = self.read_by_cpp is not None and is_asked_by_cpp("get_future")
        return self.future(self.read_by_cpp if for_cpp else None)

    def future(self, read_by_cpp: Sequence[torch.Tensor] | None = None) -> Future[Any]:
        """Return what ``get_future`` does, for those who only watch: the work is not taken to be waited for.

        Args:
            read_by_cpp: the future's value, where C++ is to read it.
        """
        outcome, streams, written = self._outcome, self._streams, self._written
        gate: Future[None] = Future(devices=list(streams.devices))
        # Torch runs the callback with streams of the future's own as the current ones, and completes the
        # future behind these, on the devices of the tensors that the callback returns.
        if read_by_cpp is not None:
            done = gate.then(lambda _gate: _arrived(outcome, streams))
            future: Future[Any] = tensors_after(done, read_by_cpp)
        else:
            future = gate.then(lambda _gate: _result(outcome, streams, written))
        self._follow(lambda: gate.set_result(None))
        return future

    def _follow(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called when the outcome is there, where it may block."""
        profiled = self.profiled  # as it is now: the profiler's own future does not wait for itself

        def follow(_outcome: HostFuture[Any]) -> None:
            _wait_for_profiler(profiled)
            callback()

        self._outcome.add_done_callback(follow)

    def synchronize(self) -> None:
        """Wait; for callers that know only this name."""
        self.wait()


def _wait_for_profiler(profiled: Future[Any] | None) -> None:
    """Wait, where a profiler watches, until it has noted the end of an operation that is done."""
    if profiled is not None:
        with contextlib.suppress(Exception):  # the operation's own
            profiled.wait()


def _result(outcome: HostFuture[Any], streams: CallerStreams, written: Sequence[torch.Tensor] | None) -> Any:
    """Return an operation's result, or raise what it raised, and have the current streams wait for it."""
    result = outcome.result()
    streams.join()
    return result if written is None else written


def _arrived(outcome: HostFuture[Any], streams: CallerStreams) -> int:
    """Return when an operation's result is on its devices, or raise what the operation raised."""
    outcome.result()
    streams.join()
    wait_here(streams.devices)
    return 0


def _slim(outcome: HostFuture[Any], written: Sequence[torch.Tensor] | None) -> HostFuture[Any]:
    """Return a future of the same outcome that holds its result only if that is small, else None."""
    slim: HostFuture[Any] = HostFuture()

    def settle(outcome: HostFuture[Any]) -> None:
        error = outcome.exception()
        if error is not None:
            slim.set_exception(error)
        else:
            result = outcome.result() if written is None else written
            slim.set_result(result if _bytes_held(result) <= _MOST_KEPT_BYTES else None)

    outcome.add_done_callback(settle)
    return slim


def _bytes_held(result: Any) -> float:
    """Return how much memory the tensors in nested lists hold."""
    if isinstance(result, torch.Tensor):
        return result.untyped_storage().nbytes() if result.layout is torch.strided else math.inf
    if isinstance(result, list | tuple):
        return sum(map(_bytes_held, result))
    return 0.0


_dropped: deque[QueuedWork] = deque(maxlen=_MOST_DROPPED)
atexit.register(_dropped.clear)  # torch's objects do not outlast the interpreter


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
