# SPDX-License-Identifier: Apache-2.0
"""Threads for tasks that may block: each task begins at once."""

import queue
import threading
from collections.abc import Callable
from typing import Final

MOST_THREADS: Final = 512
_IDLE_S: Final = 10.0  # after which an idle thread ends


class TaskThreads:
    """Threads that run one task each at a time: an idle one where there is one, else a new one.

    At most one stays idle. None is a daemon: torch's objects live in tasks, and these must not outlast the
    interpreter.

    Args:
        name: of the threads.

    Attributes:
        most: how many there may be.
    """

    def __init__(self, name: str) -> None:
        self.most = MOST_THREADS
        self._name = name
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def run(self, task: Callable[[], None]) -> bool:
        """Begin a task on a thread of its own; return False where ``most`` run already."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif not self._begin_thread():
                return False
            self._tasks.put(task)
            return True

    def join(self) -> None:
        """Wait for all tasks, but for one that calls this, and end the threads. Can be called twice."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._tasks.put(None)
            self._idle = 0
        while others := self._others():
            for thread in others:
                thread.join()
            with self._lock:
                self._threads -= others

    def _others(self) -> set[threading.Thread]:
        with self._lock:
            return self._threads - {threading.current_thread()}

    def _begin_thread(self) -> bool:
        """Start a thread; the lock is held."""
        if len(self._threads) >= self.most:
            return False
        thread = threading.Thread(target=self._work, name=self._name)
        try:
            thread.start()
        except RuntimeError:  # the system has no more
            return False
        self._threads.add(thread)
        return True

    def _work(self) -> None:
        task = self._tasks.get()
        while task is not None:
            task()
            del task  # what it held on to goes
            task = self._next()
        with self._lock:
            if not self._closed:  # else ``join`` waits for it
                self._threads.discard(threading.current_thread())

    def _next(self) -> Callable[[], None] | None:
        """Wait, idle, for another task; None: this thread is not needed any more."""
        with self._lock:
            if self._closed or self._idle:
                return None
            self._idle += 1
        try:
            return self._tasks.get(timeout=_IDLE_S)
        except queue.Empty:
            with self._lock:
                if self._idle:
                    self._idle -= 1
                    return None
            return self._tasks.get()  # which ``run`` is putting there
