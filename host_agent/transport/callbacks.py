# SPDX-License-Identifier: Apache-2.0
"""Callbacks on the outcomes of a queue's operations, which may submit, wait and block.

What callbacks submit is a sequence within that of their operation. The next operation of the outer sequence
waits for its end, until the callbacks are found to block: then the outer sequence goes on without them, and
takes over what they have submitted.
"""

import contextvars
import logging
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


class EndlessWaitError(RuntimeError):
    """A thread would wait for an operation that cannot begin before the thread has ended its own."""


class Outcome(Future[T]):
    """The outcome of an operation that was submitted to a queue."""

    def __init__(self, callbacks: "Callbacks", sequence: "Sequence") -> None:
        super().__init__()
        self._followed = False
        self.callbacks, self._sequence = callbacks, sequence

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
            self.callbacks.serve_while_waiting(self._sequence)
            self.expect_elsewhere()

    def settled_alone(self, settle: Callable[[], None]) -> bool:
        """Call ``settle`` unless there are callbacks, which it would run; return whether there are none."""
        with self._condition:  # a callback that is added now runs on the thread that adds it
            alone = not self._followed
            if alone:
                settle()
            return alone

    def refuse_in_operation(self) -> None:
        """Raise EndlessWaitError in an operation of the queue, unless this is done."""
        if self.callbacks.operating == threading.get_ident() and not self.done():
            raise EndlessWaitError(
                "an operation that runs on the group's queue waits for one that is queued behind it: that "
                "would never end. Issue the second one, and wait for it, after the first one has ended, or "
                "in a callback on the future of the first one"
            )

    def expect_elsewhere(self) -> None:
        """In a callback of another queue: note that it may wait for this, and is not blocked meanwhile."""
        inner = running.callbacks
        if inner is None or inner.callbacks is self.callbacks or self in inner.elsewhere:
            return
        inner.elsewhere.append(self)
        super().add_done_callback(inner.done_elsewhere)


class Item(NamedTuple):
    """An operation that waits: see ``OperationQueue.submit``."""

    outcome: Outcome[Any]
    operation: Callable[[], Any]
    group: object
    yields: bool
    context: contextvars.Context


class Sequence:
    """Operations in their order: the program's, or those that callbacks on one operation submit.

    Attributes:
        callbacks: those of the queue.
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
        *("callbacks", "drained", "elsewhere", "ended", "given_up", "items", "outer", "pending", "since"),
        *("thread", "turns"),
    )

    def __init__(self, callbacks: "Callbacks", outer: "Sequence | None" = None) -> None:
        self.callbacks, self.outer = callbacks, outer
        self.thread = threading.get_ident()
        self.items: deque[Item] = deque()
        self.turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.pending = 0
        self.elsewhere: list[Future[Any]] = []
        self.since = time.monotonic()
        self.ended = self.given_up = False
        self.drained: threading.Event | None = None

    def append(self, item: Item) -> None:
        """Have an operation run behind all others."""
        self.items.append(item)
        self.pending += 1
        self.since = time.monotonic()
        self.turns.put(True)

    def is_done(self) -> None:
        """Count an operation as done, with its callbacks or without them."""
        self.pending -= 1
        self.since = time.monotonic()

    def done_elsewhere(self, outcome: Future[Any]) -> None:
        """Forget an outcome of another queue, which is there."""
        self.since = time.monotonic()
        self.elsewhere.remove(outcome)

    def within(self, other: "Sequence") -> bool:
        """Return whether this is the other, or one of callbacks on its operations, or on theirs."""
        sequence: Sequence | None = self
        while sequence is not None and sequence is not other:
            sequence = sequence.outer
        return sequence is not None


class Running(threading.local):
    """The callbacks that the current thread runs, if it does."""

    callbacks: Sequence | None = None


running: Final = Running()


class Callbacks:
    """The callbacks that run on a queue's outcomes, and who serves the sequences that they hold up.

    Args:
        threads: the queue's.
        serve: runs the operations of a sequence, until its end or until another thread does so.

    Attributes:
        lock: held where any of this, or of the queue's sequences, changes.
        of: sequences, by the thread that runs callbacks now: of those that were not given up.
        operating: the thread that runs an operation; 0: none.
        look: set to have blocked callbacks looked for at once.
    """

    def __init__(self, threads: TaskThreads, serve: Callable[[Sequence], None]) -> None:
        self.lock = threading.Lock()
        self.of: dict[int, Sequence] = {}
        self.operating = 0
        self.look = threading.Event()
        self._threads, self._serve = threads, serve
        self._watched = False

    def serve_elsewhere(self, sequence: Sequence) -> None:
        """Have another thread serve a sequence; the lock is held."""
        if not self._threads.run(partial(self._serve, sequence)):
            raise EndlessWaitError(
                f"callbacks of {len(self.of)} collectives block, each on a thread, and "
                f"{self._threads.most} threads are the maximum: no thread would ever serve another one. "
                "Wait in the program instead of in callbacks"
            )

    def serve_while_waiting(self, sequence: Sequence) -> None:
        """Have other threads serve what this one holds up, before it waits for something in a sequence."""
        inner = self.of.get(threading.get_ident())
        if inner is None:
            return
        with self.lock:
            while inner.outer is not None and not sequence.within(inner):
                if not inner.given_up:
                    self._give_up(inner)
                inner = inner.outer

    def _give_up(self, inner: Sequence) -> None:
        """Have the outer sequence go on while callbacks block; the lock is held.

        Raises:
            EndlessWaitError: no thread can be had for it.
        """
        outer = inner.outer
        assert outer is not None
        if inner.drained is None:
            self.serve_elsewhere(outer)
        inner.given_up = True
        del self.of[inner.thread]
        outer.is_done()
        while outer.given_up:
            assert outer.outer is not None
            outer = outer.outer
        outer.items.extendleft(reversed(inner.items))
        outer.pending += len(inner.items)
        for _ in inner.items:
            outer.turns.put(True)
        inner.items.clear()
        inner.turns.put(True)  # the thread that serves it, if any, goes on with the outer one

    def _waits_elsewhere(self, inner: Sequence) -> bool:
        """Return whether callbacks wait for another queue, which does not wait for callbacks of this one."""
        others: set[Callbacks] = set()
        ahead = [inner]
        while ahead:
            for outcome in list(ahead.pop().elsewhere):
                assert isinstance(outcome, Outcome)
                other = outcome.callbacks
                if other is self:
                    return False
                if other not in others:
                    others.add(other)
                    ahead += list(other.of.values())
        return bool(others)

    def watch(self) -> None:
        """Have the callbacks that run now looked at after a while; the lock is held."""
        if not self._watched:
            self._watched = self._threads.run(self._look_now_and_then)

    def _look_now_and_then(self) -> None:
        """Let the queue go on where callbacks neither end nor submit anything."""
        while True:
            self.look.wait(BLOCKED_S)
            with self.lock:
                self.look.clear()
                inners = list(self.of.values())
                if not inners:
                    self._watched = False
                    return
                for inner in inners:
                    self._look_at(inner)

    def _look_at(self, inner: Sequence) -> None:
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
                "A callback on a collective has neither ended nor issued a collective for %g s. The "
                "group's other collectives continue. Collectives that this callback issues from now on run "
                "after them, perhaps in different orders on different ranks",
                BLOCKED_S,
            )
