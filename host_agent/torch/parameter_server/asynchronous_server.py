# SPDX-License-Identifier: Apache-2.0
"""A server of Parameter Flow: asynchronous or stale-synchronous, its state in a folder, workers by flows."""

import contextlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch._C._distributed_c10d import Store

from softp4.native.files import write_atomically
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.flows import FlowConfig
from weir.host_agent.flows.frames import Address
from weir.host_agent.flows.udp import UdpFlows
from weir.host_agent.parameter_server.clocks import parse_consistency
from weir.host_agent.parameter_server.flow_ends import ServerEnds
from weir.host_agent.parameter_server.journal import Journal, JournalError
from weir.host_agent.parameter_server.shards import Piece
from weir.host_agent.parameter_server.terms import OptimizerSpec, Terms
from weir.host_agent.parameter_server.update_server import ServerRules, UpdateServer
from weir.host_agent.parameter_server.value_filter import Floats, parse_filter
from weir.host_agent.torch.parameter_server.meeting import CallOfWorker, Meeting, Place
from weir.host_agent.torch.parameter_server.shard_optimizer import ShardOptimizer
from weir.host_agent.torch.parameter_server.stall import Stall, telling
from weir.host_agent.transport.links import TransportTimeout

log = logging.getLogger(__name__)

LOOK_S: Final = 0.05
"""Seconds between two looks at the store, for calls of workers."""

FINISHED: Final = (
    "the job that its state is of is over, as all workers have left it: give another job a folder of its own"
)


class TorchOptimizer:
    """Torch's optimizer over a shard, as ``UpdateServer`` has it: each push is one step, at learning rate x
    share. So all workers' pushes of one number together make about one synchronous step, also where an
    optimizer does not care how large gradients are, as Adam.
    """

    def __init__(self, pieces: Sequence[Piece], spec: OptimizerSpec) -> None:
        self._shard = ShardOptimizer(pieces, spec)
        self._titles = [piece.title for piece in pieces]
        self._spec = spec

    @property
    def parameters(self) -> Floats:
        """Return the shard's elements, in their memory."""
        found: Floats = array_of(self._shard.model)
        return found

    def step(self, gradient: Floats, lr: float, share: float, settings: str) -> None:
        """Make a step. settings: the groups' hyper-parameters as JSON; empty: those of the job's terms."""
        groups = json.loads(settings) if settings else self._spec.groups
        self._shard.configure([{**group, "lr": group["lr"] * share} for group in groups])
        whole = torch.from_numpy(gradient)
        self._shard.apply({title: whole[self._shard.place(title)] for title in self._titles})

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the optimizer's state by piece and name."""
        return {
            f"{title}/{name}": np.asarray(value)
            for title, known in self._shard.state_dict().items()
            for name, value in known.items()
            if value is not None
        }

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take what ``arrays`` gave."""
        state: dict[str, dict[str, torch.Tensor]] = {}
        for path, array in arrays.items():
            title, _, name = path.rpartition("/")
            state.setdefault(title, {})[name] = torch.from_numpy(array.copy())
        self._shard.load_state_dict(state)


class AsynchronousServer:
    """One server of a job whose terms say "async" or "ssp:S".

    Args:
        store: of ``open_store``.
        terms: of the job.
        index: of the server, from 0.
        timeout: how long to wait for a first worker, and for any word of them.
        state: folder in which it keeps its state; a server that is started anew with it goes on where it was.
            None: it is lost with the process.

    Raises:
        JournalError: the folder cannot be used, or is of another job.
    """

    def __init__(
        self, store: Store, terms: Terms, index: int, timeout: timedelta, state: Path | None = None
    ) -> None:
        self.index, self._terms, self._timeout = index, terms, timeout
        self._store, self._meeting = store, Meeting(store)
        self._stall = Stall(log, self._meeting, index)
        self._looked = 0.0
        optimizer = TorchOptimizer(terms.shards().of_server(index), terms.optimizer)
        rules = ServerRules(
            parse_consistency(terms.consistency),
            parse_filter(terms.pull_filter),
            max(float(group["lr"]) for group in terms.optimizer.groups) or 1.0,
        )
        self._journal = None if state is None else open_state(state, terms, index)
        self.server = UpdateServer(optimizer, rules, self._journal, begun=False)
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
            if self._is_over:
                self._meeting.say(self.index, f"it has ended: {FINISHED}")
                log.warning("server %d: %s", self.index, FINISHED)
                return
            self._flows = stack.enter_context(UdpFlows.at(self._meeting.own_ip))
            self._ends = ServerEnds(self.server, self._flows.mux)
            ip, port = self._flows.address
            self._meeting.announce(self.index, Place(ip, port, time.time_ns()))
            limit_s = self._timeout.total_seconds()
            try:
                self._flows.drive(self._over, limit_s, react=self._react)
            except TransportTimeout:
                raise TransportTimeout(self._stall.explain(limit_s)) from None
            self.server.save()
            self._flows.linger(1.0, self._react)

    def _over(self) -> bool:
        now = time.monotonic()
        if now - self._looked >= LOOK_S:
            self._looked = now
            for call in self._meeting.calls(self.index, range(self._terms.workers)):
                self._connect(call)
            self._dismiss_silent(now)
            self._stall.look(now, self.server.awaited(self._terms.workers))
        return self._is_over

    @property
    def _is_over(self) -> bool:
        """Return whether all workers have come and left."""
        return not self.server.workers and self.server.known >= self._terms.workers

    def _connect(self, call: CallOfWorker) -> None:
        """Open the flows of a worker that calls, instead of those that it had."""
        up = FlowConfig(call.up, call.worker, max_loss=self._terms.loss_budget)
        down = FlowConfig(call.down, call.worker)
        self._ends.connect(call.worker, call.incarnation, up, down, Address(call.ip, call.port))

    def _react(self) -> None:
        """Take what has come, and send what follows."""
        now = time.monotonic()
        for worker in self._ends.advance():
            self._silent_since[worker] = now

    def _dismiss_silent(self, now: float) -> None:
        """Take out workers that were silent for too long, so that nobody waits for them."""
        for worker in self.server.workers:
            silent = now - self._silent_since.setdefault(worker, now)
            limit = self._terms.silence_s
            if silent <= limit / 2:
                self._warned.discard(worker)
            elif worker not in self._warned:
                self._warned.add(worker)
                log.warning(
                    "server %d: worker %d has said nothing for %.0f s: it is taken out after %g s",
                    self.index,
                    worker,
                    silent,
                    limit,
                )
            if silent > limit:
                log.warning(
                    "server %d: worker %d said nothing for %.0f s and is taken out",
                    self.index,
                    worker,
                    silent,
                )
                self._ends.send(self.server.dismiss(worker))
                self._meeting.leave(worker)


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
