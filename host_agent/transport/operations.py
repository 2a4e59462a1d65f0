# SPDX-License-Identifier: Apache-2.0
"""The order of a group's operations on the network: one queue for each group.

All workers of a job must make the same reductions in the same order. So whatever reduces in a group is
submitted to its queue, from any thread; links and reducers refuse a second caller. Queues of different groups
wait for nothing of one another.

An operation that is long may yield to others of its own group, which it runs itself: see ``passing``.

The thread that has run an operation settles its outcome, too, and so runs the callbacks on it, which are the
program's: they may submit, wait and block. What a callback submits comes before all that was submitted behind
its operation, and the next operation waits for the callbacks' end. So the order is the same on all ranks,
however fast each is: that of a program which calls the callbacks itself. A thread is needed for that only
when a callback submits something. A callback that submits to another group's queue is waited for, too, until
that is done. A callback that blocks on anything else does not stop the queue: another thread takes over, at
once where the queue sees the wait, else after a while.
"""

import contextvars
import logging
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from weir.host_agent.transport.callbacks import Callbacks, Item, Outcome, Sequence, running
from weir.host_agent.transport.task_threads import TaskThreads

log = logging.getLogger(__name__)

T = TypeVar("T")


class QueueClosedError(RuntimeError):
    """The queue takes no more operations."""


class ForkedError(RuntimeError):
    """This process was forked from one that is a member of a job, and is none itself."""


def refuse_fork(member: int) -> None:
    """Raise ForkedError unless this is the process numbered ``member``: threads do not survive a fork."""
    if os.getpid() != member:
        raise ForkedError(
            f"process {os.getpid()} was forked from process {member}, which is a member of a job. A forked "
            f"child has none of its parent's threads, so it is not a member: make groups in the child, or "
            f"start the child by 'spawn'"
        )


class OperationQueue:
    """Runs operations one at a time, in the order of submission, on a thread of its own.

    Example::

        operations = OperationQueue("group-1")
        total = operations.submit(lambda: reducer.reduce_blocks(lanes, Op.ADD))
        report = total.result()                 # raises what the operation raised
        operations.close()

    Attributes:
        at_rest: called on the queue's thread between operations; returns after how many seconds to call it
            again if none was submitted, None for never.
    """

    def __init__(self, name: str) -> None:
        self.at_rest: Callable[[], float | None] = lambda: None
        self._threads = TaskThreads(name)
        self._callbacks = Callbacks(self._threads, self._serve)
        self._lock = self._callbacks.lock
        self._none_runs = threading.Condition(self._lock)
        self._closed = False
        self._process = os.getpid()
        self._program = Sequence(self._callbacks)
        if not self._threads.run(partial(self._serve, self._program)):
            raise RuntimeError(f"no thread can be started for the queue {name}")

    def submit(self, operation: Callable[[], T], *, group: object = None, yields: bool = False) -> Outcome[T]:
        """Queue an operation behind all that were submitted before, and return its outcome.

        In a callback on another outcome: behind what that callback submitted before, and ahead of the rest.
        Callbacks run in this call's context (contextvars), but for those that are added when all is done.
        An operation that raises ends alone: the exception is its outcome, and the next one runs.

        Args:
            operation: called once, on a thread of the queue's.
            group: whose it is.
            yields: the group's other operations may pass it.

        Raises:
            QueueClosedError: ``close`` was called.
            EndlessWaitError: more callbacks wait for operations of theirs than there can be threads.
            ForkedError: this process is a fork of the queue's.
        """
        refuse_fork(self._process)
        with self._lock:
            if self._closed:
                raise QueueClosedError("the queue is closed: it takes no more operations")
            sequence = self._callbacks.of.get(threading.get_ident(), self._program)
            outcome: Outcome[T] = Outcome(self._callbacks, sequence)
            if sequence is not self._program and sequence.drained is None:
                self._callbacks.serve_elsewhere(sequence)
                sequence.drained = threading.Event()
            elif self._callbacks.of:
                self._callbacks.watch()
            sequence.append(Item(outcome, operation, group, yields, contextvars.copy_context()))
        outcome.expect_elsewhere()
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

        All ranks of the group must do so at the same place among its reductions. Callbacks on it run on
        another thread, beside the operation that yields.
        """
        with self._lock:
            item = self._passing(group)[0]
            self._program.items.remove(item)
            self._program.pending -= 1
        settle = run(item.outcome, item.operation)
        if not item.outcome.settled_alone(settle):
            self.beside(partial(item.context.run, settle))

    def beside(self, task: Callable[[], None]) -> None:
        """Run what may block beside the operations, on a thread of the queue's; here, where none is left."""
        if not self._threads.run(task):
            task()

    def _passing(self, group: object) -> list[Item]:
        """Return the items that ``passing`` counts; the lock is held."""
        found = []
        for item in self._program.items:
            if item.group is not group:
                break
            if not item.yields:
                found.append(item)
        return found

    def close(self) -> None:
        """Take no more operations; run what is queued, then end the threads. Closing twice is harmless.

        Waits for the threads and the callbacks they run. Called by a callback it waits for an operation that
        is running, and called by an operation for nothing: the thread ends later.
        """
        thread = threading.get_ident()
        with self._lock:
            if not self._closed:
                self._closed = True
                self._program.turns.put(False)
            if self._callbacks.of:
                self._callbacks.watch()
            self._callbacks.look.set()
            if self._callbacks.operating == thread:
                return
            if thread in self._callbacks.of:
                self._none_runs.wait_for(lambda: not self._callbacks.operating)
                return
        self._threads.join()

    # ---- on the queue's threads

    def _serve(self, sequence: Sequence) -> None:
        """Run the operations of a sequence, until its end or until another thread does so.

        Where the sequence is given up, goes on with the outer one, which has its items.
        """
        while True:
            goes_on = self._turn(sequence)
            with self._lock:
                while sequence.given_up:
                    assert sequence.drained is not None and sequence.outer is not None
                    sequence.drained.set()
                    sequence, goes_on = sequence.outer, True
                item = sequence.items.popleft() if sequence.items else None  # it has passed, and run
            if not goes_on and item is None:
                break
            if not goes_on:
                sequence.turns.put(False)  # items of a sequence given up have come behind the end
            if item is not None and not self._run(item, sequence):
                return
            del item  # what the operation held on to goes when it is done
        if sequence.drained is not None:
            sequence.drained.set()

    def _turn(self, sequence: Sequence) -> bool:
        """Wait for a sequence's next turn; return whether there is one."""
        while sequence is self._program:
            try:
                return sequence.turns.get(timeout=self.at_rest())
            except queue.Empty:
                continue
        return sequence.turns.get()

    def _run(self, item: Item, sequence: Sequence) -> bool:
        """Run an operation and the callbacks on it, and wait until all that these have submitted is done.

        Return whether this thread goes on to serve the sequence: no other has taken over meanwhile.
        """
        self._callbacks.operating = thread = threading.get_ident()
        settle = run(item.outcome, item.operation)
        inner = Sequence(self._callbacks, sequence)
        with self._lock:
            self._callbacks.operating = 0
            self._none_runs.notify_all()
            self._callbacks.of[thread] = inner
            if sequence.items:
                self._callbacks.watch()
        running.callbacks = inner
        try:
            item.context.run(settle)
        except BaseException:  # such as SystemExit, which would end the queue's thread
            log.exception("A callback on a collective raised")
        running.callbacks = None
        with self._lock:
            inner.ended = True
            if inner.drained is not None:
                inner.turns.put(False)
        if inner.drained is not None:
            inner.drained.wait()
        with self._lock:
            if self._closed:
                self._callbacks.look.set()
            if inner.given_up:
                return False
            del self._callbacks.of[thread]
            sequence.is_done()
            return True


def run(outcome: Future[T], operation: Callable[[], T]) -> Callable[[], None]:
    """Run an operation here and now; return what settles its outcome with what it returned or raised."""
    if not outcome.set_running_or_notify_cancel():
        return lambda: None
    try:
        return partial(outcome.set_result, operation())
    except BaseException as error:  # whatever it is, it belongs to anyone who waits
        return partial(outcome.set_exception, error)


def complete(outcome: Future[T], operation: Callable[[], T]) -> None:
    """Run an operation here and now, and settle its outcome with what it returns or raises."""
    run(outcome, operation)()
