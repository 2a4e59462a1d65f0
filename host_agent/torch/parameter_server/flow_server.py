# SPDX-License-Identifier: Apache-2.0
"""A server whose pushes travel by flows: its state in a folder, and other servers to which units move."""

import base64
import contextlib
import logging
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np
from torch._C._distributed_c10d import Store

from softp4.native.files import write_atomically
from weir.host_agent.flows import FlowConfig, new_flow_id
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.udp import UdpFlows
from weir.host_agent.parameter_server.clocks import parse_consistency
from weir.host_agent.parameter_server.flow_ends import ServerEnds, WorkerEnd
from weir.host_agent.parameter_server.journal import Journal, JournalError
from weir.host_agent.parameter_server.routing import Table
from weir.host_agent.parameter_server.server_machine import ServerMachine
from weir.host_agent.parameter_server.server_rules import ServerRules
from weir.host_agent.parameter_server.terms import Terms
from weir.host_agent.parameter_server.value_filter import parse_filter
from weir.host_agent.torch.parameter_server.flow_rendezvous import CallOfWorker, FlowRendezvous, Place
from weir.host_agent.torch.parameter_server.job_group import await_word
from weir.host_agent.torch.parameter_server.shard_optimizer import UnitsOptimizer
from weir.host_agent.torch.parameter_server.stall import Stall, telling
from weir.host_agent.torch.rendezvous import RendezvousError
from weir.host_agent.transport.links import TransportTimeout

log = logging.getLogger(__name__)

SILENT_S: Final = 20.0
"""Silence of a worker worth a word: it says every quarter of a minute that it is there."""

LOOK_S: Final = 0.05
"""Seconds between two looks at the store, for calls of workers."""

FINISHED: Final = (
    "the job that its state is of is over, as all workers have left it: give another job a folder of its own"
)


TABLE: Final = "placement"
"""Of the store: the server of each unit, as worker 0 says before the terms that are ``placed``."""

ASK_S: Final = 0.02
"""How long after a round trip a sender of a step that all make together asks: questions of busy machines cost
more than they save where something was lost.
"""


def table_in_text(table: Table) -> str:
    """Return which server has which unit, as the store has it."""
    return base64.b64encode(table.owner.tobytes()).decode()


def table_of(store: Store, terms: Terms, timeout: timedelta) -> Table:
    """Return the routing table that a job begins with.

    Raises:
        RendezvousError: worker 0 has not written one within the timeout, or one that does not fit.
    """
    if not terms.placed:
        return terms.table()
    question = "does it run, with the same rendezvous?"
    said = await_word(store, TABLE, "which server has what", question, timeout)
    try:
        owner = np.frombuffer(base64.b64decode(said, validate=True), np.int16)
        return Table.placed(terms.units(), terms.servers, owner)
    except ValueError as error:
        raise RendezvousError(
            f"the placement that worker 0 has written does not fit ({error}): do all run the same script?"
        ) from None


def flow_config(terms: Terms, flow: int, member: int, *, up: bool = False) -> FlowConfig:
    """Return the settings of a flow of a member. up: to a server, of which a part may be lost."""
    config = FlowConfig(flow, member, max_loss=terms.loss_budget if up else 0.0)
    return replace(config, min_probe=ASK_S) if terms.consistency == "sync" else config


class FlowServer:
    """One server of a job whose pushes travel by flows.

    Args:
        store: of ``open_store``.
        terms: of the job.
        index: of the server, from 0.
        timeout: how long to wait for a first worker, and for any word of them.
        state: folder in which it keeps its state; a server that is restarted with it goes on where it was.
            None: it is lost with the process.

    Raises:
        JournalError: the folder cannot be used, or is of another job.
    """

    def __init__(
        self, store: Store, terms: Terms, index: int, timeout: timedelta, state: Path | None = None
    ) -> None:
        self.index, self._terms, self._timeout = index, terms, timeout
        self._store, self._rendezvous = store, FlowRendezvous(store)
        self._stall = Stall(log, self._rendezvous, index)
        self._looked = 0.0
        table = table_of(store, terms, timeout)
        rules = ServerRules(
            parse_consistency(terms.consistency),
            parse_filter(terms.pull_filter),
            terms.optimizer.rate or 1.0,
            workers=terms.workers,
            report_every=terms.migrate_every,
            together=terms.together,
        )
        self._journal = None if state is None else open_state(state, terms, index)
        optimizer = UnitsOptimizer(table.units, table.of(index), terms.optimizer)
        self.server = ServerMachine(index, table, optimizer, rules, self._journal, begun=False)
        self._peers: dict[int, _Peer] = {}
        self._warned: set[int] = set()
        self._silent_since = {worker: time.monotonic() for worker in self.server.workers}

    def run(self) -> None:
        """Serve until all workers have left.

        Raises:
            TransportTimeout: nobody said anything for the timeout.
            JournalError: the disk does not take the state.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(telling(self._store, self.index))
            if self._journal is not None:
                stack.enter_context(self._journal)
            if self.server.is_over:
                self._rendezvous.say(self.index, f"it has ended: {FINISHED}")
                log.warning("server %d: %s", self.index, FINISHED)
                return
            self._flows = stack.enter_context(UdpFlows.at(self._rendezvous.own_ip))
            self._ends = ServerEnds(self.server, self._flows.mux)
            ip, port = self._flows.address
            self._rendezvous.announce(self.index, Place(ip, port, time.time_ns()))
            limit_s = self._timeout.total_seconds()
            try:
                self._flows.drive(self._over, limit_s, react=self._react)
            except TransportTimeout:
                raise TransportTimeout(self._stall.explain(limit_s)) from None
            self.server.save()
            self._flows.linger(1.0, self._react)

    def sent_bytes(self) -> dict[int, int]:
        """Return bytes sent so far by rank of the receiver, headers from Ethernet up."""
        peers = {self._terms.rank_of(server): peer.end.sent for server, peer in self._peers.items()}
        return dict(sum((Counter(one) for one in (self._ends.sent, peers)), Counter()))

    def _over(self) -> bool:
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            for call in self._rendezvous.calls(self.index, range(self._terms.workers + self._terms.servers)):
                self._connect(call)
            self._dismiss_silent(now)
            self._stall.look(now, self._awaited(now))
            for server in {server for server, _ in self.server.outstanding()}:
                self._find(server)
        self._hand_over()
        return self.server.is_over

    def _awaited(self, now: float) -> str:
        """Return words for what this server waits for, and which workers are silent; "": for nothing."""
        words = self.server.awaited()
        for worker in self.server.workers if words else ():
            silent = now - self._silent_since.setdefault(worker, now)
            if silent > SILENT_S:
                at = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
                words += f"; worker {worker} has been silent since {at}: restart it, or restart the job"
        return words

    def _find(self, server: int) -> None:
        """Call a server that units have moved to, unless it was called where it is."""
        place, peer = self._rendezvous.find(server), self._peers.get(server)
        if place is not None and (peer is None or peer.place != place):
            self._call(server, place)

    def _hand_over(self) -> None:
        """Send servers the units that have moved to them."""
        for server, message in self.server.outstanding():
            peer = self._peers.get(server)
            if peer is not None and message.epoch not in peer.sent:
                peer.sent.add(message.epoch)
                peer.end.submit(message)

    def _call(self, server: int, place: Place) -> None:
        """Open flows to a server, instead of those that there were."""
        if (before := self._peers.pop(server, None)) is not None:
            before.end.close()
        rank, up, down = self._terms.rank_of(self.index), new_flow_id(), new_flow_id()
        end = WorkerEnd(
            self._flows.mux,
            Address(place.ip, place.port),
            flow_config(self._terms, up, rank),
            flow_config(self._terms, down, rank),
        )
        ip, port = self._flows.address
        self._rendezvous.call(server, CallOfWorker(rank, 0, ip, port, up, down, place.start))
        self._peers[server] = _Peer(place, end)

    def _connect(self, call: CallOfWorker) -> None:
        """Open the flows of a worker that calls, instead of those that it had."""
        up = flow_config(self._terms, call.up, call.worker, up=call.worker < self._terms.workers)
        down = flow_config(self._terms, call.down, call.worker)
        self._ends.connect(call.worker, call.incarnation, up, down, Address(call.ip, call.port))

    def _react(self) -> None:
        """Take what has come, and send what follows."""
        now = time.monotonic()
        for worker in self._ends.advance():
            self._silent_since[worker] = now
        for peer in self._peers.values():
            for message in peer.end.received():
                self._ends.send(self.server.handle(message))
            peer.end.settlements()

    def _dismiss_silent(self, now: float) -> None:
        """Take out workers that were silent for too long, so that nobody waits for them."""
        if (limit := self._terms.silence_s) is None:
            return
        for worker in self.server.workers:
            silent = now - self._silent_since.setdefault(worker, now)
            if silent <= limit / 2:
                self._warned.discard(worker)
            elif worker not in self._warned:
                self._warned.add(worker)
                log.warning(
                    "server %d: worker %d has been silent for %.0f s: it will be removed after %g s",
                    self.index,
                    worker,
                    silent,
                    limit,
                )
            if silent > limit:
                log.warning(
                    "server %d: worker %d was silent for %.0f s and is removed",
                    self.index,
                    worker,
                    silent,
                )
                self._ends.send(self.server.dismiss(worker))
                self._rendezvous.leave(worker)


@dataclass
class _Peer:
    """A server to which units move. sent: epochs of the handovers that it was sent."""

    place: Place
    end: WorkerEnd
    sent: set[int] = field(default_factory=set)


def open_state(folder: Path, terms: Terms, index: int) -> Journal:
    """Open a server's folder, which is of one job only. Raises JournalError."""
    journal = Journal(folder)
    said, file = terms.to_json().encode(), folder / "terms.json"
    try:
        if not file.exists():
            write_atomically(file, said)
        elif file.read_bytes() != said:
            raise JournalError(
                f"{folder} holds server {index}'s state of a job with other terms, or {file.name} is damaged"
                ": give this job a folder of its own"
            )
    except OSError as error:
        journal.close()
        raise JournalError(f"{file} cannot be used: {error.strerror}") from error
    except JournalError:
        journal.close()
        raise
    return journal
