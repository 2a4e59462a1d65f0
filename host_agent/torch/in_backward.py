# SPDX-License-Identifier: Apache-2.0
"""Operations that a backward pass issues, and how it raises their errors.

DDP waits in C++, at the end of the pass, for the futures of its buckets. An error of a future that Python
completes is a RuntimeError there, whatever it was. So such an operation's future gets its value, and once DDP
has ended its step, the pass itself raises the error: of its own class, and with DDP ready for the next pass.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Variable

from weir.host_agent.collectives.non_finite import NonFiniteError


def in_backward() -> bool:
    """Return whether this thread is in a backward pass."""
    return torch._C._current_graph_task_id() != -1


def raised_by_backward(run: Callable[[], Any], result: Any) -> Callable[[], Any]:
    """Return an operation as it is to be queued: in a backward pass, this raises its NonFiniteError.

    Where the operation ends after the pass, it raises the error itself.

    Args:
        run: the operation.
        result: what it returns where the pass raises.
    """
    return _Raised(run, result).operate if in_backward() else run


class _Raised:
    """The error of one operation, which is raised in one place."""

    def __init__(self, run: Callable[[], Any], result: Any) -> None:
        self._run, self._result = run, result
        self._lock = threading.Lock()
        self._over = False
        self._error: NonFiniteError | None = None
        # Callbacks run in the order in which they are queued, and DDP queues its own after its last bucket.
        _at_the_end(lambda: _at_the_end(self._raise))

    def operate(self) -> Any:
        try:
            return self._run()
        except NonFiniteError as error:
            with self._lock:
                if self._over:
                    raise
                self._error = error
            return self._result

    def _raise(self) -> None:
        with self._lock:
            self._over = True
        if self._error is not None:
            raise self._error


def _at_the_end(callback: Callable[[], None]) -> None:
    """Have a callback called at the end of the backward pass that this thread is in."""
    Variable._execution_engine.queue_callback(callback)
