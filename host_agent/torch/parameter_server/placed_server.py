# SPDX-License-Identifier: Apache-2.0
"""A server of a placement: units of the model that a table assigns to it, workers by flows."""

import base64
import contextlib
import logging
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
from torch._C._distributed_c10d import Store

from weir.host_agent.parameter_server.messages import MessageError
from weir.host_agent.parameter_server.payload import PayloadError, Words
from weir.host_agent.parameter_server.placed_server import PlacedServer, Sent
from weir.host_agent.parameter_server.rows import Rows
from weir.host_agent.parameter_server.terms import Terms
from weir.host_agent.parameter_server.turns import Kind, Message
from weir.host_agent.parameter_server.units import Integers, Units
from weir.host_agent.torch.parameter_server.asynchronous_server import FINISHED, LOOK_S, open_state
from weir.host_agent.torch.parameter_server.lines import Lines
from weir.host_agent.torch.parameter_server.meeting import Meeting
from weir.host_agent.torch.parameter_server.stall import Stall, telling
from weir.host_agent.torch.rendezvous import RendezvousError
from weir.host_agent.transport.links import TransportTimeout

log = logging.getLogger(__name__)

TABLE = "placement"
"""Of the store: the server of each unit, as worker 0 says before the terms."""

LINGER_S = 0.5
"""Seconds for which a member goes on answering when it has all that it waited for."""


def in_text(table: Integers) -> str:
    """Return a routing table as the store has it."""
    return base64.b64encode(table.astype(np.int16).tobytes()).decode()


def table_of(store: Store, units: int, servers: int) -> Integers:
    """Return the routing table that worker 0 has written.

    Args:
        units, servers: how many there are.

    Raises:
        RendezvousError: it is none of these.
    """
    try:
        table = np.frombuffer(base64.b64decode(store.get(TABLE), validate=True), np.int16).astype(np.int64)
    except ValueError as error:
        raise RendezvousError(f"the placement that worker 0 has written cannot be read: {error}") from None
    if table.shape != (units,) or (units and not 0 <= table.min() <= table.max() < servers):
        raise RendezvousError(
            f"the placement that worker 0 has written is of {table.size} units: the model has {units}, on "
            f"{servers} servers; do all run the same script?"
        )
    return table


class PlacedServerLoop:
    """One server of a job whose terms have units. ``run`` serves until all workers have left.

    Args:
        store: of ``open_store``.
        terms: of the job.
        index: of the server, from 0.
        timeout: how long to wait for any word of the workers.
        state: folder in which it keeps its state; a server that is started anew with it goes on where it was.

    Raises:
        JournalError: the folder cannot be used, or is of another job.
    """

    def __init__(
        self, store: Store, terms: Terms, index: int, timeout: timedelta, state: Path | None = None
    ) -> None:
        self._store, self._terms, self._timeout = store, terms, timeout
        self._units = Units.of(terms.parameters, terms.units)
        self._journal = None if state is None else open_state(state, terms, index)
        self.server = PlacedServer(
            index,
            terms.workers,
            self._units,
            table_of(store, len(self._units), terms.servers),
            Rows(int(self._units.starts[-1]), terms.optimizer),
            report_every=terms.migrate_every,
            together=terms.together,
            journal=self._journal,
        )
        self._looked = float("-inf")

    def run(self) -> None:
        """Serve until all workers have left.

        Raises:
            TransportTimeout: nobody said anything for the timeout.
            JournalError: the disk does not take the state.
        """
        meeting, limit_s = Meeting(self._store), self._timeout.total_seconds()
        self._stall = Stall(log, meeting, self.server.index)
        with contextlib.ExitStack() as stack:
            stack.enter_context(telling(self._store, self.server.index))
            if self._journal is not None:
                stack.enter_context(self._journal)
            if self.server.over:
                meeting.say(self.server.index, f"it has ended: {FINISHED}")
                log.warning("server %d: %s", self.server.index, FINISHED)
                return
            rank, workers = self.server.rank, self._terms.workers
            self.lines = Lines(self._store, rank, workers, self._terms.servers, serves=True)
            stack.callback(self.lines.close)
            try:
                self.lines.flows.drive(self._over, limit_s, react=self._react)
            except TransportTimeout:
                raise TransportTimeout(self._stall.explain(limit_s)) from None
            self.lines.flows.linger(LINGER_S, self._react)

    def _over(self) -> bool:
        waiting = self.server.outstanding()
        found = self.lines.look(iter({rank for rank, _ in waiting}))
        self._send([(rank, message) for rank, message in waiting if rank in found])
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            self._stall.look(now, self.server.awaited())
        return self.server.over

    def _react(self) -> None:
        for words in self.lines.received():
            try:
                message = Message.decode(words, self._units)
            except (MessageError, PayloadError) as error:
                log.warning("server %d: %s", self.server.index, error)
                continue
            self._send(self.server.handle(message))

    def _send(self, messages: Sent) -> None:
        for rank, message in messages:
            words: Words = message.encode(self._units)
            (self.lines.call if message.kind is Kind.HANDOVER else self.lines.reply)(rank, words)
