# SPDX-License-Identifier: Apache-2.0
"""The order of a process's operations on the network: one queue and one thread for each port.

A port has one reader and one writer, and all workers of a job must make the same reductions in the same
order. So whatever uses a port is submitted to its queue, by all groups that share it and from any thread.
Below the queue nothing waits for a turn: links and reducers refuse a second caller.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class QueueClosedError(RuntimeError):
    """The queue takes no more operations."""


class OperationQueue:
    """Runs operations one at a time, in the order of submission, on a thread of its own.

    Example::

        operations = OperationQueue("port-1")
        total = operations.submit(lambda: reducer.reduce(lanes, Op.ADD))
        report = total.result()                 # raises what the operation raised
        operations.close()
    """

    def __init__(self, name: str) -> None:
        self._items: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name)
        self._thread.start()

    def submit(self, operation: Callable[[], T]) -> Future[T]:
        """Queue an operation behind all that were submitted before, and return its outcome.

        An operation that raises ends alone: the exception is its outcome, and the next one runs.

        Raises:
            QueueClosedError: ``close`` was called.
        """
        outcome: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise QueueClosedError("the queue is closed: it takes no more operations")
            self._items.put((outcome, operation))
        return outcome

    def close(self) -> None:
        """Take no more operations; run what is queued, then end the thread. Closing twice is harmless.

        Waits for the thread, unless this is that thread: then it ends after the operation that called this.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._items.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        while (item := self._items.get()) is not None:
            complete(*item)
            del item  # what the operation held on to goes when it is done


def complete(outcome: Future[T], operation: Callable[[], T]) -> None:
    """Run an operation here and now, and settle its outcome with what it returns or raises."""
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        result = operation()
    except BaseException as error:  # whatever it is, it belongs to whoever waits
        outcome.set_exception(error)
    else:
        outcome.set_result(result)
