# SPDX-License-Identifier: Apache-2.0
"""The order of a group's operations on the network: one queue and one thread for each group.

All workers of a job must make the same reductions in the same order. So whatever reduces in a group is
submitted to its queue, from any thread; links and reducers refuse a second caller. Queues of different groups
wait for nothing of one another.

An operation that is long may yield to others of its own group, which it runs itself: see ``passing``.
"""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class QueueClosedError(RuntimeError):
    """The queue takes no more operations."""


class ForkedError(RuntimeError):
    """This process was forked from one that is a member of a job, and is none itself."""


def refuse_fork(member: int) -> None:
    """Raise ForkedError unless this is the process numbered ``member``: threads do not survive a fork."""
    if os.getpid() != member:
        raise ForkedError(
            f"process {os.getpid()} was forked from process {member}, which is a member of a job; a child is "
            "none, as it has none of its threads: make groups in the child, or start it by 'spawn'"
        )


class _Item(NamedTuple):
    outcome: Future[Any]
    operation: Callable[[], Any]
    group: object
    yields: bool


class OperationQueue:
    """Runs operations one at a time, in the order of submission, on a thread of its own.

    Example::

        operations = OperationQueue("group-1")
        total = operations.submit(lambda: reducer.reduce(lanes, Op.ADD))
        report = total.result()                 # raises what the operation raised
        operations.close()

    Attributes:
        at_rest: called on the queue's thread between operations; returns after how many seconds to call it
            again if none was submitted, None for never.
    """

    def __init__(self, name: str) -> None:
        self._items: deque[_Item] = deque()
        self._turns: queue.SimpleQueue[bool] = (
            queue.SimpleQueue()
        )  # at least one for each item; False: the end
        self.at_rest: Callable[[], float | None] = lambda: None
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._serve, name=name)
        self._thread.start()

    def submit(self, operation: Callable[[], T], *, group: object = None, yields: bool = False) -> Future[T]:
        """Queue an operation behind all that were submitted before, and return its outcome.

        An operation that raises ends alone: the exception is its outcome, and the next one runs.

        Args:
            operation: called once, on the queue's thread.
            group: whose it is.
            yields: the group's other operations may pass it.

        Raises:
            QueueClosedError: ``close`` was called.
            ForkedError: this process is a fork of the queue's.
        """
        refuse_fork(self._process)
        outcome: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise QueueClosedError("the queue is closed: it takes no more operations")
            self._items.append(_Item(outcome, operation, group, yields))
            self._turns.put(True)
        return outcome

    def passing(self, group: object) -> int:
        """Return how many of a group's operations that wait may pass its yielding ones.

        Those are the ones that do not yield themselves, up to the first of another group, where a queue has
        several.
        """
        with self._lock:
            return len(self._passing(group))

    def pass_first(self, group: object) -> None:
        """Run the first operation that may pass, here and now; to be called by one of the group that yields.

        All ranks of the group must do so at the same place among its reductions.
        """
        with self._lock:
            item = self._passing(group)[0]
            self._items.remove(item)
        complete(item.outcome, item.operation)

    def _passing(self, group: object) -> list[_Item]:
        """Return the items that ``passing`` counts; the lock is held."""
        found = []
        for item in self._items:
            if item.group is not group:
                break
            if not item.yields:
                found.append(item)
        return found

    def close(self) -> None:
        """Take no more operations; run what is queued, then end the thread. Closing twice is harmless.

        Waits for the thread, unless this is that thread: then it ends after the operation that called this.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._turns.put(False)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        while self._turn():
            with self._lock:
                item = self._items.popleft() if self._items else None  # it has passed, and run
            if item is not None:
                complete(item.outcome, item.operation)
                del item  # what the operation held on to goes when it is done

    def _turn(self) -> bool:
        """Wait for the next turn; return whether there is one."""
        while True:
            try:
                return self._turns.get(timeout=self.at_rest())
            except queue.Empty:
                continue


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
