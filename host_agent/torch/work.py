# SPDX-License-Identifier: Apache-2.0
"""Operations that run one after another on a thread of their own, and the handles torch knows them by."""

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.futures import Future


class QueuedWork(Work):
    """One queued operation. ``wait`` blocks until it is done and raises what it raised.

    Its future carries the operation's result. A failure reaches the future through a callback that raises:
    completing it by ``set_exception`` from Python crashes DDP.
    """

    def __init__(self, run: Callable[[], Any]) -> None:
        super().__init__()
        self._run: Callable[[], Any] | None = run
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._gate: Future[None] = Future()
        self._future: Future[Any] = self._gate.then(self._outcome)

    def execute(self) -> None:
        """Run the operation and release whoever waits. Called once, by the queue's thread."""
        run, self._run = self._run, None  # what it holds on to goes when it is done
        assert run is not None
        try:
            with torch.no_grad():
                self._result = run()
        except BaseException as error:  # whatever it is, it belongs to the waiter
            self._error = error
        self._done.set()
        self._gate.set_result(None)

    def _outcome(self, _gate: Future[None]) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return block until done, at most ``timeout`` when it is positive; Ctrl-C interrupts it."""
        limit = timeout.total_seconds() if timeout is not None else 0.0
        if not self._done.wait(limit if limit > 0 else None):
            raise TimeoutError(
                f"the collective was not done within {limit:g} s; it goes on in the background"
            )
        self._outcome(self._gate)
        return True

    def is_completed(self) -> bool:
        """Return whether it is done, well or not."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether it is done and raised nothing."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Return what it raised, if it did."""
        return self._error

    def result(self) -> Any:
        """Return what it returned: the tensors it wrote."""
        self.wait()
        return self._result

    def get_future(self) -> Future[Any]:
        """Return a future of the same outcome."""
        return self._future

    def synchronize(self) -> None:
        """``wait``, for callers that know only this name."""
        self.wait()


class OperationQueue:
    """Runs submitted operations in order of submission on one thread."""

    def __init__(self, name: str) -> None:
        self._items: queue.SimpleQueue[QueuedWork | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name)
        self._thread.start()

    def submit(self, run: Callable[[], Any]) -> QueuedWork:
        """Queue an operation; RuntimeError when the queue is closed."""
        work = QueuedWork(run)
        with self._lock:
            if self._closed:
                raise RuntimeError("the process group was destroyed: it takes no more collectives")
            self._items.put(work)
        return work

    def close(self) -> None:
        """Run what is still queued, then end the thread. Can be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._items.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        while (work := self._items.get()) is not None:
            work.execute()
            del work
