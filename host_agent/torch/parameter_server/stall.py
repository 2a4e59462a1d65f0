# SPDX-License-Identifier: Apache-2.0
"""The words of a server that waits, or that ends: in its log, and in the store, where workers read them."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Final

from torch._C._distributed_c10d import Store

from weir.agent_service.waiting import WaitLines
from weir.host_agent.parameter_server.journal import JournalInUseError
from weir.host_agent.torch.parameter_server.flow_rendezvous import FlowRendezvous
from weir.host_agent.torch.silent_store import StoreSilentError, within

_SAY_S: Final = 2.0  # to tell the workers of the end; a store that is silent for longer keeps no server


class Stall:
    """Tells whom a server waits for when it has waited for 5 s, then less and less often.

    Args:
        log: of the server.
        rendezvous: where workers read it.
        index: of the server.
    """

    def __init__(self, log: logging.Logger, rendezvous: FlowRendezvous, index: int) -> None:
        self._rendezvous, self._index = rendezvous, index
        self._lines = WaitLines(log)
        self._reported = False
        self.words = ""
        """What the server waits for; "" for nothing."""

    def look(self, now: float, words: str) -> None:
        """Take note of what the server waits for at ``now``, in seconds; "" for nothing."""
        if words != self.words:
            self.words = words
            self._lines.over()
            if self._reported:
                self._rendezvous.say(self._index, "")
                self._reported = False
        if words and self._lines.look(now, lambda: words) and not self._reported:
            self._rendezvous.say(self._index, f"it waits for {words}")
            self._reported = True

    def explain(self, timeout_s: float) -> str:
        """Return the sentence with which the server gives up."""
        waited = f", and waits for {self.words}" if self.words else ""
        return (
            f"server {self._index} has heard nothing for {timeout_s:g} s{waited}: do the workers still run?"
        )


@contextlib.contextmanager
def telling(store: Store, index: int) -> Iterator[None]:
    """Tell the workers why a server ends, when the block raises an error."""
    try:
        yield
    except JournalInUseError:  # that other one serves them
        raise
    except (KeyboardInterrupt, SystemExit):
        _say(store, index, "it was stopped")
        raise
    except BaseException as error:
        _say(store, index, f"it has ended: {str(error) or type(error).__name__}")
        raise


def _say(store: Store, index: int, words: str) -> None:
    with contextlib.suppress(StoreSilentError):
        within(_SAY_S, lambda: FlowRendezvous(store).say(index, words))
