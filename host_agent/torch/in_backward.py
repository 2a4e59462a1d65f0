# SPDX-License-Identifier: Apache-2.0
"""Operations that a backward pass issues, and how it raises their errors.

DDP waits in C++, at the end of the pass, for the futures of its buckets. An error of a future that Python
completes is a RuntimeError there, whatever it was. So such an operation's future gets its value, and once DDP
has ended its step, the pass itself raises the error: of its own class, and with DDP ready for the next pass.

Operations that a communication hook issues in callbacks on such an operation belong to the pass, too. Some
ranks run a callback in the pass, as its operation is done already, and others on the queue's thread. If the
callback's own operation failed on the latter alone, only the former would go on to the next one, and wait for
ever.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable

from weir.host_agent.collectives.non_finite import NonFiniteError


def in_backward() -> bool:
    """Return whether this thread is in a backward pass."""
    return torch._C._current_graph_task_id() != -1


@contextlib.contextmanager
def raised_by_backward(run: Callable[[], Any], result: Any) -> Iterator[Callable[[], Any]]:
    """Yield an operation as it must be queued in the block: its backward pass raises its NonFiniteError.

    Where the operation ends after the pass, or belongs to none, it raises the error itself.

    Args:
        run: the operation.
        result: what it returns where the pass raises.
    """
    error = _Error() if in_backward() else _of_pass.get()
    if error is None:
        yield run
        return
    before = _of_pass.set(error)  # for callbacks: they run in the context that the operation is queued in
    try:
        yield partial(error.leave_to_pass, run, result)
    finally:
        _of_pass.reset(before)


class _Error:
    """The error of an operation, or of those in callbacks on it, which is raised in one place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._found: NonFiniteError | None = None
        # Callbacks run in the order in which they are queued, and DDP queues its own after its last bucket.
        _at_the_end(lambda: _at_the_end(self._raise))

    def leave_to_pass(self, run: Callable[[], Any], result: Any) -> Any:
        try:
            return run()
        except NonFiniteError as error:
            with self._lock:
                if self._over:
                    raise
                self._found = self._found or error
            return result

    def _raise(self) -> None:
        with self._lock:
            self._over = True
        if self._found is not None:
            raise self._found


_of_pass: ContextVar[_Error | None] = ContextVar("_of_pass", default=None)


def _at_the_end(callback: Callable[[], None]) -> None:
    """Have a callback called at the end of the backward pass that this thread is in."""
    Variable._execution_engine.queue_callback(callback)
