# SPDX-License-Identifier: Apache-2.0
"""The units that a server has: which they are, where they go, and which are awaited.

A new table makes a server hand over the units that leave it, and expect those that come. It has them when all
of them are there.
"""

from collections.abc import Mapping

import numpy as np

from weir.host_agent.parameter_server.handover import make_handover, view_of, views_of
from weir.host_agent.parameter_server.journal import Arrays, under
from weir.host_agent.parameter_server.messages import NOTHING, Kind, Message
from weir.host_agent.parameter_server.payload import Words, decode_places
from weir.host_agent.parameter_server.reader import NO_UNITS, Reader
from weir.host_agent.parameter_server.routing import Integers, Table, runs_from
from weir.host_agent.parameter_server.server_rules import Optimizer
from weir.host_agent.parameter_server.value_filter import Floats

Readers = Mapping[int, Reader]


class Holdings:
    """One server's units, by the table that is in force. For one thread at a time.

    Args:
        index: of the server.
        table: where units are at first.
        optimizer: over the server's units.
        workers: how many there are; the ranks of servers come after theirs.

    Attributes:
        units: that the server has, ascending.
        expected: servers whose units are to come.
        handed: what they have handed over, by epoch and server.
        outgoing: handovers that were not taken yet, by epoch and server.
        handed_over: elements of the units that were handed to other servers.
    """

    def __init__(self, index: int, table: Table, optimizer: Optimizer, workers: int) -> None:
        self.index, self.table, self.optimizer, self._workers = index, table, optimizer, workers
        self.expected: set[int] = set()
        self.handed: dict[tuple[int, int], Message] = {}
        self.outgoing: dict[tuple[int, int], Message] = {}
        self.handed_over = 0
        self._hold(table.of(index))

    @property
    def settled(self) -> bool:
        """Return whether no unit comes or goes."""
        return not self.expected and not self.outgoing

    @property
    def missing(self) -> list[int]:
        """Servers whose units have not come."""
        return [server for server in sorted(self.expected) if (self.table.epoch, server) not in self.handed]

    def places(self, units: Integers) -> Integers:
        """Return the elements of some of the server's units, one after another, by their places here."""
        starts = self._starts[np.searchsorted(self.units, units)]
        return runs_from(starts, self.table.units.sizes[units])

    def adopt(self, moves: Integers, epoch: int, readers: Readers) -> None:
        """Go over to the next table: hand over what leaves, and expect what comes."""
        before = self.table
        self.table = before.moved(moves, epoch)
        here = before.of(self.index)
        leaving = here[self.table.owner[here] != self.index]
        for other in np.unique(self.table.owner[leaving]).tolist():
            units = leaving[self.table.owner[leaving] == other]
            self.outgoing[epoch, other] = self._handover(units, epoch, readers)
            self.handed_over += int(self.table.units.sizes[units].sum())
        coming = self.table.of(self.index)
        coming = coming[before.owner[coming] != self.index]
        self.expected = set(before.owner[coming].tolist())
        if leaving.size:
            stay = np.setdiff1d(here, leaving)
            self._rearrange(stay, self.places(stay), np.zeros((self._width, 0), np.float32), {}, 0, readers)
        self._take_over(readers)

    def take(self, handover: Message, readers: Readers) -> None:
        """Keep units that come until all are there, and then have them."""
        self.handed[handover.epoch, handover.member - self._workers] = handover
        self._take_over(readers)

    def can_read(self, handover: Message) -> bool:
        """Return whether a handover is one."""
        try:
            units = self.table.units.decode(handover.pushed_units)
            size = int(self.table.units.sizes[units].sum())
            for places in views_of(handover).values():
                decode_places(places, size)
        except ValueError:
            return False
        return handover.payload.size == self._width * size

    def is_news(self, handover: Message) -> bool:
        """Return whether a handover has not come before, and is of units that this server is to have."""
        server = handover.member - self._workers
        if (handover.epoch, server) in self.handed or not 0 <= server < self.table.servers:
            return False
        return handover.epoch > self.table.epoch or (
            handover.epoch == self.table.epoch and server in self.expected
        )

    def thanks(self, handover: Message) -> Message:
        """Return the answer to a handover."""
        return Message(Kind.HANDOVER_ACK, handover.member, number=self.index, epoch=handover.epoch)

    def _handover(self, units: Integers, epoch: int, readers: Readers) -> Message:
        """Return what gives units to another server."""
        places = self.places(units)
        rows = self.optimizer.rows(places)
        views = {(worker, reader.incarnation): reader.feed.view[places] for worker, reader in readers.items()}
        listed = self.table.units.encode(units)
        return make_handover(self._workers + self.index, epoch, listed, rows, self.optimizer.steps, views)

    def _take_over(self, readers: Readers) -> None:
        """Have the units that come, when all of them are here."""
        if not self.expected or self.missing:
            return
        handed = [self.handed.pop((self.table.epoch, server)) for server in sorted(self.expected)]
        self.expected = set()
        lists = [self.table.units.decode(message.pushed_units) for message in handed]
        came = np.concatenate(lists)
        rows = np.concatenate(
            [message.payload.view(np.float32).reshape(self._width, -1) for message in handed], axis=1
        )
        sizes, views, steps = [], [views_of(message) for message in handed], 0
        for units, message in zip(lists, handed, strict=True):
            sizes.append(int(self.table.units.sizes[units].sum()))
            steps = max(steps, int(message.aside[0]))
        known: dict[int, Words] = {}
        for worker, reader in readers.items():
            known[worker] = np.concatenate(
                [
                    view_of(worker, reader.incarnation, found, rows[0, end - size : end].view(np.uint32))
                    for found, size, end in zip(views, sizes, np.cumsum(sizes), strict=True)
                ]
            )
        sizes_came, before = self.table.units.sizes[came], self.optimizer.parameters.size
        units = np.concatenate([self.units, came])
        begins = np.concatenate([self._starts[:-1], before + np.cumsum(sizes_came) - sizes_came])
        order = np.argsort(units)
        units = units[order]
        source = runs_from(begins[order], self.table.units.sizes[units])
        self._rearrange(units, source, rows, known, steps, readers)

    def _rearrange(
        self,
        units: Integers,
        source: Integers,
        rows: Floats,
        views: Mapping[int, Words],
        steps: int,
        readers: Readers,
    ) -> None:
        """Have other units, see ``Optimizer.rearrange``. views: of elements that come, by reader."""
        self.optimizer.rearrange(units, source, rows, steps)
        for worker, reader in readers.items():
            view = np.concatenate([reader.feed.view, views.get(worker, NOTHING)])
            reader.feed.view = view[source]
        self._hold(units)

    def _hold(self, units: Integers) -> None:
        """Have these units from now on."""
        self.units = units
        sizes = self.table.units.sizes[units]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @property
    def _width(self) -> int:
        return len(self.optimizer.rows(NO_UNITS))

    def arrays(self) -> Arrays:
        """Return the state, by name."""
        kept = {
            **{f"outgoing-{epoch}-{server}": message for (epoch, server), message in self.outgoing.items()},
            **{f"handed-{epoch}-{server}": message for (epoch, server), message in self.handed.items()},
        }
        return {
            "owner": self.table.owner,
            "changed": self.table.changed,
            "epoch": np.array([self.table.epoch, self.handed_over], np.int64),
            "units": self.units,
            "parameters": self.optimizer.parameters,
            "expected": np.array(sorted(self.expected), np.int64),
            **{f"optimizer/{name}": array for name, array in self.optimizer.arrays().items()},
            **{name: message.encode() for name, message in kept.items()},
        }

    def load(self, arrays: Arrays) -> None:
        """Take over a state that ``arrays`` gave. Raises ValueError: it is of another model."""
        table = self.table
        if arrays["owner"].shape != table.owner.shape:
            raise ValueError(
                f"the checkpoint is of {arrays['owner'].size} units, the model has {len(table.units)}: "
                "give this run a folder of its own"
            )
        epoch, self.handed_over = map(int, arrays["epoch"])
        self.table = Table(table.units, table.servers, arrays["owner"], epoch, arrays["changed"])
        units = arrays["units"]
        if arrays["parameters"].size != int(table.units.sizes[units].sum()):
            raise ValueError(f"the checkpoint has {arrays['parameters'].size} parameters for other units")
        rows = np.zeros((self._width, arrays["parameters"].size), np.float32)
        source = self.optimizer.parameters.size + np.arange(arrays["parameters"].size)
        self.optimizer.rearrange(units, source, rows, 0)
        self._hold(units)
        self.optimizer.parameters[:] = arrays["parameters"]
        self.optimizer.load(under("optimizer/", arrays))
        self.expected = set(arrays["expected"].tolist())
        for kind, kept in (("outgoing-", self.outgoing), ("handed-", self.handed)):
            for name, words in under(kind, arrays).items():
                epoch, server = map(int, name.split("-"))
                kept[epoch, server] = Message.decode(words)
