# SPDX-License-Identifier: Apache-2.0
"""A worker's side of servers by flows: pushes, updates as they come, servers that die and come back.

A thread of its own moves packets, whatever the training does. It only carries: the model changes where the
training asks for it, in ``step``.
"""

import atexit
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import numpy as np
from torch import Tensor
from torch._C._distributed_c10d import Store

from weir.agent_service.waiting import WaitLines, logged_wait
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.classes import layer_classes
from weir.host_agent.flows import new_flow_id
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.udp import UdpFlows
from weir.host_agent.parameter_server.clocks import parse_consistency
from weir.host_agent.parameter_server.flow_ends import WorkerEnd
from weir.host_agent.parameter_server.messages import Message
from weir.host_agent.parameter_server.payload import PayloadError
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.terms import SILENCE_S, Terms
from weir.host_agent.parameter_server.value_filter import Floats, parse_filter
from weir.host_agent.parameter_server.worker_machine import UnitSet, WorkerMachine, WorkerRules
from weir.host_agent.torch.connection import GroupBrokenError
from weir.host_agent.torch.parameter_server.flow_rendezvous import (
    CallOfWorker,
    FlowRendezvous,
    Place,
    StoreGoneError,
)
from weir.host_agent.torch.parameter_server.flow_server import flow_config, table_of
from weir.host_agent.torch.parameter_server.shard_optimizer import words_of_move
from weir.host_agent.torch.parameter_server.value_sparsifier import LocalChoice
from weir.host_agent.transport.counters import TransportCounters

log = logging.getLogger(__name__)

_LOOK_S: Final = 0.1
_FAREWELL_S: Final = 10.0
"""For servers to hear that a worker leaves; one that does not takes it out when it was silent for long."""

_TIMEOUT_S: Final = 0.5
"""Silence of a server from which something is awaited, after which it is looked for, and asked again."""


@dataclass
class _Session:
    """This worker's dealings with one server.

    knows: the server has got something by these flows. Before it has read the call it drops what comes.
    heard, news, asked: times of the server's last word, of the last one that brought this worker on, and of
    this worker's last question.
    """

    index: int
    place: Place | None = None
    end: WorkerEnd | None = None
    inbox: deque[Message] = field(default_factory=deque)
    outbox: deque[Message] = field(default_factory=deque)
    knows: bool = False
    heard: float = field(default_factory=time.monotonic)
    news: float = field(default_factory=time.monotonic)
    asked: float = 0.0

    @property
    def idle(self) -> bool:
        """Return whether the server has got all that was sent."""
        return not self.outbox and (self.end is None or self.end.idle)


class FlowSession:
    """One worker's flows to all servers of a job.

    Args:
        store: of ``open_store``.
        terms: of the job.
        rank: of this worker.
        model: flat float32 on the CPU, in the order of the parameters: worker 0's is what everybody begins
            with, and from then on it is what the servers have sent.
        timeout: how long to wait for servers and other workers.
        holds_store: the store ends with this process, which therefore leaves last.

    Raises:
        GroupBrokenError: a server, or a worker that all wait for, brought nothing new for that long.
    """

    def __init__(
        self,
        store: Store,
        terms: Terms,
        rank: int,
        model: Tensor,
        timeout: timedelta,
        *,
        holds_store: bool = False,
    ) -> None:
        self._rendezvous, self._terms, self._rank = FlowRendezvous(store), terms, rank
        self._holds_store = holds_store
        self._timeout_s = timeout.total_seconds()
        self._say_each_s = min(SILENCE_S, terms.silence_s or SILENCE_S) / 4
        self._said, self._rate = "", 0.0
        self._waits = WaitLines(log)
        self._gave_up = False
        self._counted = TransportCounters()  # of flows that are closed, and what has come
        self._closed: Counter[int] = Counter()  # bytes sent by these
        self.last_density = 1.0
        """Share of the model that the last step pushed."""
        beginning = array_of(model).copy() if rank == 0 else None
        table = table_of(store, terms, timeout)
        rules = WorkerRules(
            parse_consistency(terms.consistency),
            parse_filter(terms.push_filter),
            terms.optimizer.rate or 1.0,
            None if terms.method.sparsifier == "dense" else LocalChoice(terms),
            words_of_move(terms.optimizer) if terms.migrate_every and rank == 0 else 0,
            terms.workers,
            terms.together,
        )
        words = array_of(model).view(np.uint32)
        self.worker = WorkerMachine(rank, time.time_ns(), words, table, rules, Residual(words.size))
        self._sessions = [_Session(index) for index in range(terms.servers)]
        self._beginnings: list[Message] = []
        if beginning is not None:
            self._beginnings = [self.worker.beginning(session.index, beginning) for session in self._sessions]
        self._layers = layer_classes(
            [int(table.units.sizes[table.of(server)].sum()) for server in range(terms.servers)]
        )
        self._change = threading.Condition()
        self._error: Exception | None = None
        self._stopping = self._leaving = False
        self._flows = UdpFlows.at(self._rendezvous.own_ip)
        self._looked = 0.0
        self._rendezvous.rejoin(rank)
        # A thread that the interpreter's end would wait for, should the program not close this.
        self._thread = threading.Thread(target=self._run, name="weir-flows", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self._wait(lambda: self.worker.ready)
            # Who joins later begins at the clock of the slowest, and would be ahead for all of the training.
            self._meet("joined")
        except BaseException:
            self.close(farewell=False)
            raise

    @property
    def stats(self) -> TransportCounters:
        """Packets of all flows so far. Of what comes, those of data: no probes, no answers."""
        with self._change:
            return sum(
                (session.end.stats for session in self._sessions if session.end is not None), self._counted
            )

    @property
    def pushed(self) -> int:
        """Return how many values were pushed so far."""
        return self.worker.pushed

    @property
    def refunded(self) -> int:
        """Return how many of them were lost on their way, and are held again."""
        return self.worker.refunded

    def sent_bytes(self) -> dict[int, int]:
        """Return bytes sent so far by rank of the receiver, headers from Ethernet up."""
        with self._change:
            now = {session.index: session.end.sent for session in self._sessions if session.end is not None}
        return {self._terms.rank_of(index): count for index, count in (self._closed + Counter(now)).items()}

    def step(
        self,
        gradient: Tensor | Floats,
        lr: float,
        settings: str,
        units: UnitSet | None = None,
        wanted: UnitSet | None = None,
    ) -> None:
        """Push a gradient, and wait until the servers have applied it and the next step may begin.

        Chosen here: hiding the round trip of a push behind the next step would make all pushes later by as
        many as there are workers, which costs more than it saves.

        Args:
            gradient: flat float32, of the units, one after another.
            lr: learning rate of this step.
            settings: the optimizer's groups as JSON.
            units: that have a gradient; None: all.
            wanted: units whose values the next step needs; None: all.

        Raises:
            ValueError: the gradient is not finite; nothing was pushed.
            RefusedError, GroupBrokenError: say what has become of a server.
        """
        values = array_of(gradient) if isinstance(gradient, Tensor) else gradient
        with self._change:
            pushes = self.worker.push(values, lr, settings if settings != self._said else "", units, wanted)
            self._said, self._rate = settings, lr
            for session, push in zip(self._sessions, pushes, strict=True):
                session.outbox.append(push)
            self.last_density = sum(push.payload.size for push in pushes) / max(1, self.worker.words.size)
        self._flows.wake()
        self._wait(lambda: self.worker.settled and self.worker.may_step)

    def finish(self) -> None:
        """Bring the model to where the servers' is after every worker's last push. All workers call it."""
        # What came to a server that did not have its units any more.
        while self.worker.owes and not self._terms.loss_budget:
            self.step(np.zeros(self.worker.words.size, np.float32), self._rate, self._said)
        for point in ("pushed", "flushed"):
            with self._change:
                for session, flush in zip(self._sessions, self.worker.flush(), strict=True):
                    session.outbox.append(flush)
            self._flows.wake()
            self._wait(lambda: self.worker.settled)
            if point == "pushed":
                self._meet(point)

    def close(self, *, farewell: bool = True) -> None:
        """Leave the servers, and end the thread. Closing twice is harmless."""
        if self._stopping:
            return
        atexit.unregister(self.close)
        if farewell and self._error is None:
            self._say_farewell()
        self._stopping = True
        self._flows.wake()
        self._thread.join()
        self._flows.close()

    # ------------------------------------------------------------------------- the training's thread

    def _wait(self, enough: Callable[[], bool]) -> None:
        """Take what comes until it is enough."""
        began = time.monotonic()
        with self._change:
            while True:
                if self._error is not None:
                    raise self._error
                for session in self._sessions:
                    while session.inbox:
                        self._take(session, session.inbox.popleft())
                if enough():
                    self._waits.over()
                    return
                self._change.wait(_LOOK_S)
                self._look_at_time(began)

    def _take(self, session: _Session, message: Message) -> None:
        """Take a server's message. RefusedError, GroupBrokenError: it takes no part any more."""
        try:
            if self.worker.on_message(session.index, message):
                session.news = time.monotonic()
        except PayloadError as error:
            raise GroupBrokenError(
                f"worker {self._rank}: parameter server {session.index} sent a message that cannot be "
                f"decoded: {error}"
            ) from error

    def _look_at_time(self, began: float) -> None:
        """Say for whom this worker waits since ``began``. GroupBrokenError when that takes too long."""
        now = time.monotonic()
        late = [session for session in self._sessions if self.worker.waits(session.index)]
        self._waits.look(now, lambda: "; ".join(self._awaited(session, now) for session in late))
        if any(now - max(session.news, began) > self._timeout_s for session in late):
            # Kept, so that the end of the process does not wait for them once more.
            self._error = GroupBrokenError(
                f"worker {self._rank} has waited for {self._timeout_s:g} s for "
                + "; ".join(self._awaited(session, now) for session in late)
            )
            raise self._error

    def _awaited(self, session: _Session, now: float) -> str:
        """Return words for a server that is waited for: what it owes, since when it is silent, what to do."""
        known, silent = self.worker.sessions[session.index], now - session.heard
        if not known.acked:
            owes = "to send the model" + (", which worker 0 gives it" if self._rank else "")
        elif known.unapplied:
            owes = f"to apply step {known.made}"
        else:
            owes = "to have the steps of all workers that this one must not be ahead of"
        about, remedy = self._rendezvous.whereabouts(session.index), ""
        if silent > _TIMEOUT_S + _LOOK_S:
            at = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
            about += f"; silent for {silent:.0f} s, since {at}"
            remedy = (
                f": restart it with its state (weir server --index {session.index} --state DIR), or "
                "restart the job"
            )
        return f"parameter server {session.index} {owes} ({about}){remedy}"

    def _meet(self, where: str) -> None:
        """Wait until all workers that are still there are here."""
        with self._change:
            self._rendezvous.arrive(where, self._rank)
        self._await_others(where, f"have not {where}")

    def _await_others(self, where: str, sentence: str) -> None:
        """Wait until nobody is missing at a point. Raises GroupBrokenError, with who is and a sentence."""
        deadline, missing = time.monotonic() + self._timeout_s, list[int]()

        def words() -> str:
            return f"worker {', '.join(map(str, missing))}, who {sentence}"

        with logged_wait(log, words):
            while True:
                try:
                    with self._change:
                        missing[:] = self._rendezvous.missing(where, self._terms.workers)
                except StoreGoneError as error:
                    raise GroupBrokenError(
                        f"worker {self._rank}: the store of this job is gone, with worker 0 that held it, "
                        f"before all have {where}: {error}"
                    ) from None
                if not missing:
                    return
                if time.monotonic() > deadline:
                    self._gave_up = True
                    raise GroupBrokenError(
                        f"worker {self._rank} has waited for {self._timeout_s:.0f} s for {words()}"
                    )
                time.sleep(_LOOK_S)

    def _say_farewell(self) -> None:
        """Tell the servers that this worker leaves, also those that come back only now, and hold the store
        until all workers have left, where this process holds it.
        """
        with self._change:
            self._leaving = True
            for session in self._sessions:
                session.outbox.append(self.worker.leave())
        self._flows.wake()
        deadline = time.monotonic() + _FAREWELL_S
        while (
            not self._error
            and not all(session.idle for session in self._sessions)
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        with self._change:
            self._rendezvous.leave(self._rank)
        if self._holds_store and not self._gave_up:
            with contextlib.suppress(GroupBrokenError):
                self._await_others("left", "still need the store that this worker holds")

    # -------------------------------------------------------------------------- the packets' thread

    def _run(self) -> None:
        try:
            self._flows.drive(self._turn, float("inf"), react=self._arrived)
        except StoreGoneError as error:
            self._fail(
                GroupBrokenError(
                    f"worker {self._rank}: worker 0 held this job's store and is gone, so a restarted "
                    f"parameter server cannot be reached: {error}"
                )
            )
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Give the training's thread an error."""
        with self._change:
            self._error = self._error or error
            self._change.notify_all()

    def _turn(self) -> bool:
        """Send what must be sent, look after servers that are silent; return whether it is over."""
        with self._change:
            now = time.monotonic()
            if now - self._looked >= _LOOK_S:
                self._looked = now
                for session in self._sessions:
                    self._look_after(session, now)
            for session in self._sessions:
                if session.end is None:
                    continue
                session.knows |= bool(session.end.settlements())
                while session.knows and session.outbox:
                    session.end.submit(session.outbox.popleft())
        return self._stopping

    def _look_after(self, session: _Session, now: float) -> None:
        """Find a server that is silent, and ask it for what is due; say now and then that we are here."""
        silent = now - max(session.heard, session.asked)
        waits = self.worker.waits(session.index)
        due = waits or (self._leaving and not session.idle)
        if session.place is None or (due and silent > _TIMEOUT_S):
            place = self._rendezvous.find(session.index)
            if place is not None and place != session.place:
                self._call(session, place)
                return
        # Before it has joined: the call's hello arrives, and asking again would bring the model again.
        if session.end is None or self.worker.sessions[session.index].made is None:
            return
        if (waits and silent > _TIMEOUT_S) or silent > self._say_each_s:
            session.asked = now
            session.end.submit(self.worker.alive(session.index))

    def _call(self, session: _Session, place: Place) -> None:
        """Open flows to a server, give it all that it may lack, and ask it for what is lacking here."""
        if session.end is not None:
            self._counted += session.end.stats
            self._closed[session.index] += session.end.sent
            session.end.close()
        up, down = new_flow_id(), new_flow_id()
        session.place = place
        session.end = end = WorkerEnd(
            self._flows.mux,
            Address(place.ip, place.port),
            flow_config(self._terms, up, self._rank, up=True),
            flow_config(self._terms, down, self._rank),
            self._terms.loss_budget,
            self._layers[session.index],
        )
        ip, port = self._flows.address
        incarnation = self.worker.incarnation
        call = CallOfWorker(self._rank, incarnation, ip, port, up, down, place.start)
        self._rendezvous.call(session.index, call)
        session.asked = time.monotonic()
        session.knows = False
        session.outbox.clear()
        end.submit(self.worker.hello(session.index))
        if self._beginnings and not self.worker.sessions[session.index].acked:
            session.outbox.append(self._beginnings[session.index])
        session.outbox += self.worker.unapplied(session.index)
        if self._leaving:
            session.outbox.append(self.worker.leave())

    def _arrived(self) -> None:
        with self._change:
            for session in self._sessions:
                if session.end is not None and (messages := session.end.received()):
                    session.heard = time.monotonic()
                    session.inbox += messages
            self._change.notify_all()
