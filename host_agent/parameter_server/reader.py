# SPDX-License-Identifier: Apache-2.0
"""A worker that has joined a server, as the server knows it."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from weir.host_agent.parameter_server.feed import Feed
from weir.host_agent.parameter_server.journal import Arrays, under
from weir.host_agent.parameter_server.messages import Lost
from weir.host_agent.parameter_server.payload import PayloadError, Words
from weir.host_agent.parameter_server.routing import Integers, Table

NO_UNITS: Final[Integers] = np.zeros(0, np.int64)


@dataclass
class Reader:
    """A server's knowledge of a worker that has joined.

    Attributes:
        floor_sent: the floor of its last update.
        epoch: of its routing table.
        contained: pushes, anybody's, in its model, by number of its update.
        lost: of its pushes that are applied, until it knows.
        sets: its sets of units, by epoch and number.
        wanted: the set that it wants, by epoch and number; number 0: everything.
    """

    incarnation: int
    feed: Feed
    floor_sent: int = 0
    epoch: int = 0
    settings: str = ""
    contained: dict[int, int] = field(default_factory=dict)
    lost: dict[int, tuple[Lost, ...]] = field(default_factory=dict)
    sets: dict[tuple[int, int], Integers] = field(default_factory=dict)
    wanted: tuple[int, int] = (0, 0)

    def set_of(self, table: Table, epoch: int, number: int, units: Words) -> Integers:
        """Return the units that a message means. PayloadError: it means none."""
        if units.size:
            return table.units.decode(units)
        if not number:
            return NO_UNITS
        if (epoch, number) not in self.sets:
            raise PayloadError(f"it has never defined its set {number}")
        return self.sets[epoch, number]

    def remember(self, table: Table, epoch: int, number: int, units: Words) -> None:
        """Keep a set that was said. Those of earlier epochs are over."""
        if number and units.size:
            if any(of < epoch for of, _ in self.sets):
                self.sets = {key: value for key, value in self.sets.items() if key[0] >= epoch}
            self.sets[epoch, number] = table.units.decode(units)

    def arrays(self) -> Arrays:
        """Return the state, by name; ``restored`` makes a reader of it."""
        return {
            "incarnation": np.array([self.incarnation], np.uint64),
            "numbers": np.array([self.floor_sent, self.epoch, *self.wanted], np.int64),
            "settings": np.frombuffer(self.settings.encode(), np.uint8),
            "contained": np.array(list(self.contained.items()), np.int64),
            "lost": np.array([run for runs in self.lost.values() for run in runs], np.int64),
            **{f"set-{epoch}-{number}": units for (epoch, number), units in self.sets.items()},
            **{f"feed/{name}": array for name, array in self.feed.arrays().items()},
        }

    @classmethod
    def restored(cls, arrays: Arrays) -> "Reader":
        """Return the reader whose ``arrays`` these are."""
        floor_sent, epoch, wanted_epoch, wanted = map(int, arrays["numbers"])
        lost: dict[int, tuple[Lost, ...]] = {}
        for number, first, count in arrays["lost"].reshape(-1, 3).tolist():
            lost[number] = (*lost.get(number, ()), (number, first, count))
        sets = {}
        for name, units in under("set-", arrays).items():
            of, number = map(int, name.split("-"))
            sets[of, number] = units
        return cls(
            int(arrays["incarnation"][0]),
            Feed.restored(under("feed/", arrays)),
            floor_sent,
            epoch,
            arrays["settings"].tobytes().decode(),
            dict(arrays["contained"].reshape(-1, 2).tolist()),
            lost,
            sets,
            (wanted_epoch, wanted),
        )
