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
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from weir.host_agent.transport.task_threads import TaskThreads

log = logging.getLogger(__name__)

T = TypeVar("T")

BLOCKED_S: Final = 5.0  # after which callbacks that submit nothing are taken to be blocked


class QueueClosedError(RuntimeError):
    """The queue takes no more operations."""


class EndlessWaitError(RuntimeError):
    """A thread would wait for an operation that cannot begin before the thread has ended its own."""


class ForkedError(RuntimeError):
    """This process was forked from one that is a member of a job, and is none itself."""


def refuse_fork(member: int) -> None:
    """Raise ForkedError unless this is the process numbered ``member``: threads do not survive a fork."""
    if os.getpid() != member:
        raise ForkedError(
            f"process {os.getpid()} was forked from process {member}, which is a member of a job; a child is "
            "none, as it has none of its threads: make groups in the child, or start it by 'spawn'"
        )


class Outcome(Future[T]):
    """The outcome of an operation that was submitted to a queue."""

    def __init__(self, operations: "OperationQueue", sequence: "_Sequence") -> None:
        super().__init__()
        self._followed = False
        self._operations, self._sequence = operations, sequence

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """See Future. A callback may block, submit to the queue and wait for what it has submitted."""
        self._followed = True
        super().add_done_callback(fn)

    def result(self, timeout: float | None = None) -> T:
        """See Future. EndlessWaitError in an operation of the queue, which this one waits for."""
        self.before_waiting()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``result``."""
        self.before_waiting()
        return super().exception(timeout)

    def before_waiting(self) -> None:
        """Make sure that a wait of this thread for the outcome can end.

        Raises:
            EndlessWaitError: it cannot.
        """
        if not self.done():
            self.refuse_in_operation()
            self._operations._serve_while_waiting(self._sequence)
            self._expect_elsewhere()

    def settled_alone(self, settle: Callable[[], None]) -> bool:
        """Call ``settle`` unless there are callbacks, which it would run; return whether there are none."""
        with self._condition:  # a callback that is added now runs on the thread that adds it
            alone = not self._followed
            if alone:
                settle()
            return alone

    def refuse_in_operation(self) -> None:
        """Raise EndlessWaitError in an operation of the queue, unless this is done."""
        if self._operations._operating == threading.get_ident() and not self.done():
            raise EndlessWaitError(
                "an operation that runs on the group's queue waits for one that is queued behind it: that "
                "would never end. Issue the second one, and wait for it, after the first one has ended, or "
                "in a callback on the future of the first one"
            )

    def _expect_elsewhere(self) -> None:
        """In a callback of another queue: note that it may wait for this, and is not blocked meanwhile."""
        callbacks = _running.callbacks
        if callbacks is None or callbacks.operations is self._operations or self in callbacks.elsewhere:
            return
        callbacks.elsewhere.append(self)
        super().add_done_callback(callbacks.done_elsewhere)


class _Item(NamedTuple):
    outcome: Outcome[Any]
    operation: Callable[[], Any]
    group: object
    yields: bool
    context: contextvars.Context


class _Sequence:
    """Operations in their order: the program's, or those that callbacks on one operation submit.

    Attributes:
        operations: the queue.
        outer: the sequence of the operation that has the callbacks; None: these are the program's.
        thread: the thread that runs the callbacks.
        items: what waits.
        turns: at least one True for each of the items; False: the end.
        pending: how many operations are not done.
        elsewhere: what the callbacks have submitted to other queues, or wait for there, and is not done.
        since: when something was last begun or done.
        ended: the callbacks have returned.
        given_up: the outer sequence goes on without waiting for this one, which has handed its items to it.
        drained: set when nothing more is run here; None while no thread serves this.
    """

    __slots__ = (
        *("drained", "elsewhere", "ended", "given_up", "items", "operations", "outer", "pending", "since"),
        *("thread", "turns"),
    )

    def __init__(self, operations: "OperationQueue", outer: "_Sequence | None" = None) -> None:
        self.operations, self.outer = operations, outer
        self.thread = threading.get_ident()
        self.items: deque[_Item] = deque()
        self.turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.pending = 0
        self.elsewhere: list[Future[Any]] = []
        self.since = time.monotonic()
        self.ended = self.given_up = False
        self.drained: threading.Event | None = None

    def append(self, item: _Item) -> None:
        self.items.append(item)
        self.pending += 1
        self.since = time.monotonic()
        self.turns.put(True)

    def done_elsewhere(self, outcome: Future[Any]) -> None:
        self.since = time.monotonic()
        self.elsewhere.remove(outcome)

    def within(self, other: "_Sequence") -> bool:
        """Return whether this is the other, or one of callbacks on its operations, or on theirs."""
        sequence: _Sequence | None = self
        while sequence is not None and sequence is not other:
            sequence = sequence.outer
        return sequence is not None


class _Running(threading.local):
    """The callbacks that the current thread runs, if it does."""

    callbacks: _Sequence | None = None


_running: Final = _Running()


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
        self.at_rest: Callable[[], float | None] = lambda: None
        self._lock = threading.Lock()
        self._none_runs = threading.Condition(self._lock)
        self._closed = False
        self._process = os.getpid()
        self._program = _Sequence(self)
        self._callbacks: dict[int, _Sequence] = {}  # by thread: of what it runs now, and was not given up
        self._operating = 0  # the thread that runs an operation
        self._watched = False
        self._look = threading.Event()
        self._threads = TaskThreads(name)
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
            sequence = self._callbacks.get(threading.get_ident(), self._program)
            outcome: Outcome[T] = Outcome(self, sequence)
            if sequence is not self._program and sequence.drained is None:
                self._begin(sequence)
                sequence.drained = threading.Event()
            elif self._callbacks:
                self._watch_callbacks()
            sequence.append(_Item(outcome, operation, group, yields, contextvars.copy_context()))
        outcome._expect_elsewhere()
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

    def _passing(self, group: object) -> list[_Item]:
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
            if self._callbacks:
                self._watch_callbacks()
            self._look.set()
            if self._operating == thread:
                return
            if thread in self._callbacks:
                self._none_runs.wait_for(lambda: not self._operating)
                return
        self._threads.join()

    # ---- on the queue's threads

    def _serve(self, sequence: _Sequence) -> None:
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

    def _turn(self, sequence: _Sequence) -> bool:
        """Wait for a sequence's next turn; return whether there is one."""
        while sequence is self._program:
            try:
                return sequence.turns.get(timeout=self.at_rest())
            except queue.Empty:
                continue
        return sequence.turns.get()

    def _run(self, item: _Item, sequence: _Sequence) -> bool:
        """Run an operation and the callbacks on it, and wait until all that these have submitted is done.

        Return whether this thread goes on to serve the sequence: no other has taken over meanwhile.
        """
        self._operating = thread = threading.get_ident()
        settle = run(item.outcome, item.operation)
        inner = _Sequence(self, sequence)
        with self._lock:
            self._operating = 0
            self._none_runs.notify_all()
            self._callbacks[thread] = inner
            if sequence.items:
                self._watch_callbacks()
        _running.callbacks = inner
        try:
            item.context.run(settle)
        except BaseException:  # such as SystemExit, which would end the queue's thread
            log.exception("A callback on a collective raised")
        _running.callbacks = None
        with self._lock:
            inner.ended = True
            if inner.drained is not None:
                inner.turns.put(False)
        if inner.drained is not None:
            inner.drained.wait()
        with self._lock:
            if self._closed:
                self._look.set()
            if inner.given_up:
                return False
            del self._callbacks[thread]
            self._is_done(sequence)
            return True

    def _is_done(self, sequence: _Sequence) -> None:
        """Count an operation as done, with its callbacks or without them; the lock is held."""
        sequence.pending -= 1
        sequence.since = time.monotonic()

    # ---- callbacks that block

    def _begin(self, sequence: _Sequence) -> None:
        """Have another thread serve a sequence; the lock is held."""
        if not self._threads.run(partial(self._serve, sequence)):
            raise EndlessWaitError(
                f"callbacks of {len(self._callbacks)} collectives block, each on a thread, and "
                f"{self._threads.most} threads are the most that there can be: nothing would ever serve one "
                "more. Wait in the program instead of in callbacks"
            )

    def _serve_while_waiting(self, sequence: _Sequence) -> None:
        """Have other threads serve what this one holds up, before it waits for something in a sequence."""
        inner = self._callbacks.get(threading.get_ident())
        if inner is None:
            return
        with self._lock:
            while inner.outer is not None and not sequence.within(inner):
                if not inner.given_up:
                    self._give_up(inner)
                inner = inner.outer

    def _give_up(self, inner: _Sequence) -> None:
        """Have the outer sequence go on while callbacks block; the lock is held.

        Raises:
            EndlessWaitError: no thread can be had for it.
        """
        outer = inner.outer
        assert outer is not None
        if inner.drained is None:
            self._begin(outer)
        inner.given_up = True
        del self._callbacks[inner.thread]
        self._is_done(outer)
        while outer.given_up:
            assert outer.outer is not None
            outer = outer.outer
        outer.items.extendleft(reversed(inner.items))
        outer.pending += len(inner.items)
        for _ in inner.items:
            outer.turns.put(True)
        inner.items.clear()
        inner.turns.put(True)  # the thread that serves it, if any, goes on with the outer one

    def _waits_elsewhere(self, inner: _Sequence) -> bool:
        """Return whether callbacks wait for another queue, which does not wait for callbacks of this one."""
        queues: set[OperationQueue] = set()
        ahead = [inner]
        while ahead:
            for outcome in list(ahead.pop().elsewhere):
                assert isinstance(outcome, Outcome)
                operations = outcome._operations
                if operations is self:
                    return False
                if operations not in queues:
                    queues.add(operations)
                    ahead += list(operations._callbacks.values())
        return bool(queues)

    def _watch_callbacks(self) -> None:
        """Have the callbacks that run now looked at after a while; the lock is held."""
        if not self._watched:
            self._watched = self._threads.run(self._watch)

    def _watch(self) -> None:
        """Let the queue go on where callbacks neither end nor submit anything."""
        while True:
            self._look.wait(BLOCKED_S)
            with self._lock:
                self._look.clear()
                running = list(self._callbacks.values())
                if not running:
                    self._watched = False
                    return
                for inner in running:
                    self._look_at(inner)

    def _look_at(self, inner: _Sequence) -> None:
        """Give callbacks up that have been blocked for long; the lock is held."""
        if inner.pending or inner.ended or time.monotonic() - inner.since < BLOCKED_S:
            return
        if self._waits_elsewhere(inner):
            return
        try:
            self._give_up(inner)
        except EndlessWaitError as error:
            log.error("%s", error)
        else:
            log.warning(
                "A callback on a collective has neither ended nor issued a collective for %g s. The group's "
                "other collectives go on; any that it issues from now on come behind those, in an order that "
                "may not be the same on all ranks",
                BLOCKED_S,
            )


def run(outcome: Future[T], operation: Callable[[], T]) -> Callable[[], None]:
    """Run an operation here and now; return what settles its outcome with what it returned or raised."""
    if not outcome.set_running_or_notify_cancel():
        return lambda: None
    try:
        return partial(outcome.set_result, operation())
    except BaseException as error:  # whatever it is, it belongs to whoever waits
        return partial(outcome.set_exception, error)


def complete(outcome: Future[T], operation: Callable[[], T]) -> None:
    """Run an operation here and now, and settle its outcome with what it returns or raises."""
    run(outcome, operation)()
