# SPDX-License-Identifier: Apache-2.0
"""Migrations: which units are to move to which server, by the traffic that they have caused.

Every server counts what each worker has pushed and pulled of its units, as it was written down: after
filters and formats. Now and then it tells worker 0 of the units that matter, and worker 0 decides. Where
machine m has both worker m and server m (``together``), a unit is best with the worker that uses it most;
otherwise only loads count.

The scheme is ours: of Duan and Wu's dynamic partition (JPDC 2023) we know that it estimates costs while
training, nothing more.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.journal import Arrays
from weir.host_agent.parameter_server.messages import NOTHING
from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.parameter_server.routing import Integers
from weir.host_agent.parameter_server.value_filter import Bits

SHARE: Final = 0.01
"""Of the units that a server tells of, the costliest; at least FEW."""

FEW: Final = 64
SLACK: Final = 0.1
"""By which a server may have more than its share of the elements."""

MARGIN: Final = 2.0
"""A move must save this many times its own cost in as many turns as were counted: access may have changed."""


class Costs:
    """A server's count of the elements of its units that have travelled, by worker, and its latest report.

    Args:
        workers: how many there are.
        sizes: elements of each unit of the model.
        every: steps of worker 0 after which it gets a report; 0: nothing is counted.
    """

    def __init__(self, workers: int, sizes: Integers, every: int) -> None:
        self._sizes, self._every = sizes, every
        self._use = np.zeros((workers, sizes.size if every else 0), np.float32)
        self._report: tuple[int, Words] = (0, NOTHING)  # by number of the update that brings it

    def count(self, worker: int, units: Integers, covered: Bits) -> None:
        """Count the covered elements of units."""
        if self._every and worker < len(self._use) and covered.any():
            starts = np.concatenate([[0], np.cumsum(self._sizes[units])[:-1]])
            self._use[worker, units] += np.add.reduceat(covered, starts, dtype=np.float32)

    def due(self, made: int) -> bool:
        """Return whether a report is due to a worker 0 that has made this many steps."""
        return bool(self._every and made) and made % self._every == 0

    def report(self, number: int, mine: Bits, server: int, together: bool) -> None:
        """Make the report that an update brings, and count from here on; see ``report_of``."""
        self._report = number, report_of(self._use, mine, server, together)
        self._use[:] = 0

    def forget(self) -> None:
        """Count from here on, as units have moved."""
        self._report = 0, NOTHING
        self._use[:] = 0

    def report_in(self, number: int) -> Words:
        """Return the report that an update to worker 0 brings."""
        return self._report[1] if number and number == self._report[0] else NOTHING

    def arrays(self) -> Arrays:
        """Return the state, by name."""
        return {
            "use": self._use,
            "report": self._report[1],
            "report-number": np.array([self._report[0]], np.int64),
        }

    def load(self, arrays: Arrays) -> None:
        """Take over a state that ``arrays`` gave."""
        self._use, self._report = arrays["use"], (int(arrays["report-number"][0]), arrays["report"])


def report_of(
    use: npt.NDArray[np.float32], mine: npt.NDArray[np.bool_], server: int, together: bool
) -> Words:
    """Return a server's report: words that all of its units have cost, by worker, then units with theirs.

    The units are those that cost most by workers of other machines.

    use: float32[workers, units]. mine: bool[units], those of the server.
    """
    workers = use.shape[0]
    own = use[server] if together else 0.0
    total = np.where(mine, use.sum(axis=0) - own, 0.0)
    rows = min(max(FEW, int(SHARE * mine.size)), int(np.count_nonzero(total)))
    told = np.argsort(-total, kind="stable")[:rows]
    body = np.empty((rows + 1, workers + 1), np.float32)
    body[0, 0] = np.float32(0)
    body[0, 1:] = np.where(mine, use, np.float32(0)).sum(axis=1)
    body[1:, 1:] = use[:, told].T
    words = body.view(np.uint32)
    words[1:, 0] = told
    return words.reshape(-1)


def plan_moves(
    reports: Sequence[Words],
    owner: Integers,
    sizes: Integers,
    workers: int,
    words_each: int,
    together: bool,
) -> Integers:
    """Return int64[moves, 2], units and their new servers, which pay for themselves.

    A move counts by what it saves on all links, or by what it takes from the busier of its two servers; it
    makes no server busier than the busiest one was, and leaves each at most its share of the elements.
    Servers alternate, each with its costliest units first: what leaves one makes room for what comes.

    Args:
        reports: of all servers, in order.
        owner: int[units], where they are.
        sizes: int64[units], elements of each.
        workers: how many there are.
        words_each: that an element takes when it moves.
        together: server m is on the machine of worker m.
    """
    servers = len(reports)
    tables = [report.reshape(-1, workers + 1) for report in reports]
    load = np.array([float(table[0, 1:].view(np.float32).sum()) for table in tables])
    if together:
        load -= [
            float(table[0, 1 + server : 2 + server].view(np.float32)[0])
            for server, table in enumerate(tables)
        ]
    held = np.bincount(owner, weights=sizes, minlength=servers)
    most = sizes.sum() / servers * (1 + SLACK)
    units = np.concatenate([table[1:, 0] for table in tables]).astype(np.int64)
    uses = np.concatenate([table[1:, 1:].view(np.float32) for table in tables]).astype(np.float64)
    moves = []
    places = np.concatenate([np.arange(len(table) - 1) for table in tables])
    for row in np.argsort(places, kind="stable"):
        unit, size = int(units[row]), int(sizes[units[row]])
        here, total = int(owner[unit]), float(uses[row].sum())
        local = uses[row] if together else np.zeros(servers)
        saved = local - local[here]
        after_here, after_there = load[here] - (total - local[here]), load + total - local
        relief = np.maximum(load[here], load) - np.maximum(after_here, after_there)
        worth = np.maximum(saved, relief + np.minimum(saved, 0.0))
        worth[(after_there > load.max()) | (held + size > most)] = 0.0
        worth[here] = 0.0
        there = int(np.argmax(worth))
        if worth[there] > MARGIN * size * words_each:
            moves.append((unit, there))
            load[here], load[there] = after_here, after_there[there]
            held[here] -= size
            held[there] += size
    return np.array(moves, np.int64).reshape(-1, 2)
