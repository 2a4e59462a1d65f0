# SPDX-License-Identifier: Apache-2.0
"""The time that gradients are under way: a communication hook around another one.

This module must not postpone the evaluation of annotations: DDP looks at the hook's.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket

BucketHook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]


class CommunicationClock:
    """Adds up the time in which at least one bucket, or anything else, was under way. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._open = 0
        self._since = 0.0
        self._total = 0.0

    def start(self) -> None:
        """Count one more bucket as under way."""
        with self._lock:
            if self._open == 0:
                self._since = time.perf_counter()
            self._open += 1

    def stop(self) -> None:
        """Count one of them as arrived."""
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._total += time.perf_counter() - self._since
                self._lock.notify_all()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count something as under way while the block runs."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def take(self) -> float:
        """Return seconds since the last call; every bucket has arrived.

        An arrival wakes anyone who waits for the bucket before it reaches ``stop``: so this waits for that.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._open == 0)
            total, self._total = self._total, 0.0
            return total


def timed(hook: BucketHook, clock: CommunicationClock) -> BucketHook:
    """Return ``hook`` with the time from each bucket's start to its arrival on ``clock``."""

    def timed_hook(state: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        clock.start()
        future = hook(state, bucket)
        future.add_done_callback(lambda _: clock.stop())
        return future

    return timed_hook
