# SPDX-License-Identifier: Apache-2.0
"""The watch over a local cluster: when its switch or controller dies, every rank knows at once.

Rank 0 started the processes, so it is the one that sees them end. It writes what happened into a file in the
cluster's folder, which all ranks look at. A folder that vanishes says that rank 0 itself was killed.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from weir.host_agent.torch.poller import Poller
from weir.host_agent.torch.rendezvous import LocalCluster

log = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_SPREAD_S: Final = 3 * _POLL_S  # by then the other ranks have read the file
_watches: Final = Poller("weir-cluster-watch", lambda: _POLL_S)
_GONE: Final = "the switch and the controller that rank 0 started for this job are gone: rank 0 died"


class ClusterWatch:
    """Looks after a local cluster until ``close``; ``reason`` says why it is no longer usable.

    Args:
        notice: the file, which nobody has written while all is well.
        cluster: in the process that started it; None in the others.
        died: called once, in the watches' thread, with a sentence that names what died.
    """

    def __init__(self, notice: Path, cluster: LocalCluster | None, died: Callable[[str], None]) -> None:
        self.reason: str | None = None
        self._notice, self._cluster, self._died = notice, cluster, died
        self._ended = threading.Event()
        self._looking = threading.Lock()
        _watches.add(self._look_again)

    def close(self) -> None:
        """Look no more; may be called from ``died``. Waits for a look that is under way."""
        self._ended.set()
        _watches.remove(self._look_again)
        with self._looking:
            pass

    def look(self) -> str | None:
        """Return a sentence that names what has died, or None."""
        if self._cluster is not None:
            return self._check(self._cluster)
        with contextlib.suppress(FileNotFoundError):
            return self._notice.read_text("utf-8")
        return None if self._notice.parent.exists() else _GONE

    def _look_again(self) -> None:
        with self._looking:
            if self._ended.is_set() or (reason := self.look()) is None:
                return
            self.reason = reason
            self._ended.set()
        _watches.remove(self._look_again)
        self._died(reason)

    def _check(self, cluster: LocalCluster) -> str | None:
        """Return what has died once the other ranks have been told, too."""
        try:
            cluster.check()
        except RuntimeError as error:
            reason = f"the local cluster that rank 0 started for this job is broken: {error}"
            half = self._notice.with_name(f"{self._notice.name}.{os.getpid()}")
            with contextlib.suppress(OSError):  # a full memory: they get to know of this rank's end
                half.write_text(reason, "utf-8")
                half.replace(self._notice)
                self._ended.wait(_SPREAD_S)
            return reason
        return None
