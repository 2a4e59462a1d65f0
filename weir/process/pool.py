# SPDX-License-Identifier: Apache-2.0
"""Processes that compute side by side and never outlive the one that started them, however it ends."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Final

from weir.process.child import PARENT, ChildError, identity

_METHOD: Final = "spawn"


@contextlib.contextmanager
def process_pool(processes: int, begin: Callable[[], object] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of fresh processes, which have ended when the block has.

    An exception in the block, also Ctrl-C, ends them in the middle of what they do. When this process is
    killed, they end by themselves: the pipe that each has from it closes. (PR_SET_PDEATHSIG would end them
    with the *thread* that submitted work first.)

    Raises ChildError in the block's place when one of them was killed.

    Args:
        processes: how many.
        begin: called in each of them first.
    """
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context(_METHOD), _begin, (begin,))
    os.environ[PARENT] = identity(
        os.getpid()
    )  # until each has been started, which the pool does when it likes
    try:
        yield pool
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise ChildError(
                "a worker process was killed; is there enough memory for this many processes?"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        del os.environ[PARENT]


def one_thread() -> None:
    """Keep torch to one thread, where the processes are parallel enough."""
    import torch

    torch.set_num_threads(1)


def _begin(begin: Callable[[], object] | None) -> None:
    """Leave interrupts to the parent, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.pop(PARENT, None)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    if begin is not None:
        begin()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
