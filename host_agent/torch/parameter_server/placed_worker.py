# SPDX-License-Identifier: Apache-2.0
"""Training with a placement: parameters lie on the servers that a table says, in units that may migrate."""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from weir.agent_service.waiting import WaitLines, logged_wait
from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.parameter_server.messages import MessageError
from weir.host_agent.parameter_server.payload import PayloadError
from weir.host_agent.parameter_server.placed_worker import ALL_NEWS, NO_UNITS, PlacedWorker, UnitSet
from weir.host_agent.parameter_server.residual import Residual
from weir.host_agent.parameter_server.rows import check, words_of_move
from weir.host_agent.parameter_server.shards import ParameterInfo
from weir.host_agent.parameter_server.terms import OptimizerSpec, Terms
from weir.host_agent.parameter_server.turns import Message
from weir.host_agent.parameter_server.units import Integers, Units
from weir.host_agent.parameter_server.value_filter import above, parse_filter
from weir.host_agent.torch.connection import GroupBrokenError
from weir.host_agent.torch.parameter_server.lines import Lines
from weir.host_agent.torch.parameter_server.meeting import Meeting
from weir.host_agent.torch.parameter_server.placed_server import LINGER_S, TABLE, in_text, table_of
from weir.host_agent.torch.parameter_server.team import TIMEOUT, open_store, publish
from weir.host_agent.torch.parameter_server.worker import place_of, trained
from weir.host_agent.torch.rendezvous import RendezvousError
from weir.host_agent.torch.unwrapping import unwrapped
from weir.host_agent.transport.counters import TransportCounters
from weir.host_agent.transport.links import TransportTimeout

log = logging.getLogger(__name__)

UNIT: Final = 256
"""Elements in a unit of a parameter that is used as a whole."""


class PlacedServers:
    """A worker's side of servers that have the units of a model where a placement says.

    Of an ``nn.Embedding`` or ``nn.EmbeddingBag`` with ``sparse=True`` every row is a unit: a step takes and
    gives those rows alone that its samples use. Other parameters have units of 256 elements. All workers make
    the same steps; the model of a step has all pushes before it. Servers have SGD or Adagrad, plain.

    Args:
        model: its parameters become views of one flat vector in host memory; worker 0's are what everybody
            begins with.
        optimizer: torch.optim.SGD or Adagrad over the model: a description; its learning rate is taken anew
            at every step.
        servers: how many there are.
        owner: int[units], the server of each, in the order of the model; None: equal shares, in order.
        migrate_every: steps after which units may move, by what they have cost; 0: they stay.
        together: server m is on the machine of worker m; what they say to each other costs nothing then.
            None: so it is where there are as many servers as workers.
        push_filter: of models without sparse embeddings, what waits of what is pushed, as Parameter Flow's.
        rendezvous, rank, workers, timeout: as of ``ParameterServer``.

    Example::

        servers = PlacedServers(model, optimizer, servers=4, owner=table)
        for number, (inputs, targets) in enumerate(batches):
            servers.pull(1 + number, {"embedding.weight": inputs.unique()})
            loss(model(inputs), targets).backward()
            servers.step()
        servers.finish()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        servers: int,
        owner: Sequence[int] | npt.NDArray[Any] | None = None,
        migrate_every: int = 0,
        together: bool | None = None,
        push_filter: str = "0",
        rendezvous: str | None = None,
        rank: int | None = None,
        workers: int | None = None,
        timeout: timedelta = TIMEOUT,
    ) -> None:
        model = unwrapped(model)
        self.optimizer = optimizer
        self.rank, self.workers = place_of(rank, workers)
        self._filter = parse_filter(push_filter)
        self._parameters = {name: parameter for name, (parameter, _) in trained(model, optimizer).items()}
        rows = _sparse_rows(model)
        infos = tuple(ParameterInfo(name, tuple(one.shape)) for name, one in self._parameters.items())
        widths = tuple(rows.get(info.name, UNIT) for info in infos)
        spec = _spec_of(optimizer)
        together = self.workers == servers if together is None else together
        self.terms = Terms(
            self.workers,
            servers,
            infos,
            spec,
            units=widths,
            migrate_every=migrate_every,
            together=together,
        )
        units = self._units = Units.of(infos, widths)
        counts = [-(-info.size // width) for info, width in zip(infos, widths, strict=True)]
        firsts = np.cumsum([0, *counts])
        self._first = dict(zip(self._parameters, firsts, strict=False))
        dense = [
            np.arange(first, first + count)
            for info, first, count in zip(infos, firsts, counts, strict=False)
            if info.name not in rows
        ]
        self._dense = np.concatenate([*dense, np.zeros(0, np.int64)]).astype(np.int64)
        self._rows = {name: width for name, width in rows.items() if name in self._parameters}
        self.master = self._made_flat()
        self._held = Residual(self.master.numel()) if not self._rows else None
        self._sets: dict[int, UnitSet] = {}
        self._now, self._due = NO_UNITS, (NO_UNITS, np.zeros(0, np.float32))
        self._store = open_store(rendezvous, leads=self.rank == 0, timeout=timeout)
        if self.rank == 0:
            Meeting(self._store).begin(servers)
            self._store.set(TABLE, in_text(_table(owner, units, servers)))
            publish(self._store, self.terms)
        self._await_table(timeout)
        self._timeout_s = timeout.total_seconds()
        self._waits = WaitLines(log)
        plans = words_of_move(spec) if migrate_every and self.rank == 0 else 0
        self.worker = PlacedWorker(
            self.rank,
            self.workers,
            servers,
            units,
            table_of(self._store, len(units), servers),
            array_of(self.master).view(np.uint32),
            plans,
            together,
        )
        self.lines = Lines(self._store, self.rank, self.workers, servers, serves=False)
        self.last_pushed = 0
        """Elements that the last step pushed."""
        everything = UnitSet(0, np.arange(len(units)))
        if self.rank == 0:
            self._turn(everything, array_of(self.master).copy(), ALL_NEWS)
        else:
            self._turn(NO_UNITS, np.zeros(0, np.float32), ALL_NEWS)

    def pull(self, number: int, rows: Mapping[str, torch.Tensor | npt.NDArray[Any]]) -> None:
        """Push what ``step`` left, and take the values that a batch uses.

        number: of the batch, from 1: under that number the servers remember what it uses. rows: that it uses,
        of each sparse embedding, by the name of its parameter; needed when the number is new.
        """
        if number not in self._sets:
            chosen = [
                self._first[name] + np.unique(array_of(torch.as_tensor(some, dtype=torch.int64).cpu()))
                for name, some in rows.items()
            ]
            self._sets[number] = UnitSet(number, np.sort(np.concatenate([self._dense, *chosen])))
        self._now = self._sets[number]
        (pushed, gradient), self._due = self._due, (NO_UNITS, np.zeros(0, np.float32))
        self._turn(pushed, gradient, self._now)

    @torch.no_grad()
    def step(self) -> None:
        """Leave the gradients to be pushed; without sparse embeddings, push them and take what has changed.

        Raises:
            ValueError: they are not finite, or of rows that were not pulled; nothing was pushed.
            RefusedError, GroupBrokenError: a server does not take part any more; says why.
        """
        gradient = self._gradient() / np.float32(self.workers)
        if not np.isfinite(gradient).all():
            raise ValueError(f"worker {self.rank}: the gradient of this step has infinities or NaN")
        if self._held is None:
            self._due = self._now, gradient
        else:
            self._turn(*self._filtered(gradient), ALL_NEWS)
        self.optimizer._opt_called = True  # type: ignore[attr-defined]  # or torch's schedules complain

    def finish(self) -> None:
        """Push what is left, and take the whole model, which has every worker's last step. All call it."""
        pushed, gradient = self._due
        self._due = NO_UNITS, np.zeros(0, np.float32)
        everything = UnitSet(0, np.arange(len(self._units)))
        self._turn(pushed, gradient, NO_UNITS)
        self._turn(NO_UNITS, np.zeros(0, np.float32), everything)

    @property
    def stats(self) -> TransportCounters:
        """Return the bytes and packets of this worker's flows so far. Of what comes, those of data."""
        return self.lines.counters

    @property
    def migrated_bytes(self) -> int:
        """Return the bytes that servers have handed to each other: values and state of units that moved."""
        words = words_of_move(self.terms.optimizer)
        return self.worker.moved_elements * words * self.master.element_size()

    def close(self) -> None:
        """Leave the servers, which end when all have."""
        words = self.worker.leave().encode(self._units)
        for server in range(self.terms.servers):
            self.lines.call(self.workers + server, words)
        self.lines.flows.linger(2.0)
        self.lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_exception: object) -> None:
        if kind is None:
            self.close()
        else:
            self.lines.close()

    def _turn(self, pushed: UnitSet, gradient: npt.NDArray[np.float32], wanted: UnitSet) -> None:
        """Exchange a turn with all servers, however often they are started anew meanwhile."""
        rate = float(self.optimizer.param_groups[0]["lr"])
        self.last_pushed = gradient.size
        for server, message in self.worker.turn(pushed, gradient.view(np.uint32), rate, wanted):
            self.lines.call(self.workers + server, message.encode(self._units))
        try:
            self.lines.flows.drive(self._answered, self._timeout_s, react=self._react)
        except TransportTimeout as error:
            raise GroupBrokenError(
                f"worker {self.rank} has waited for {self._timeout_s:g} s for {self._awaited()}; {error}"
            ) from None
        finally:
            self._waits.over()
        self.lines.flows.linger(LINGER_S)

    def _answered(self) -> bool:
        waiting = {self.workers + server: message for server, message in self.worker.unanswered()}
        for rank in self.lines.look(iter(waiting)):
            self.lines.call(rank, waiting[rank].encode(self._units))
        if not self.worker.answered:
            self._waits.look(time.monotonic(), self._awaited)
        return self.worker.answered

    def _awaited(self) -> str:
        """Return words for the servers that are waited for, and what to do."""
        silent = (
            f"parameter server {server} ({self.lines.whereabouts(server)})"
            for server, _ in self.worker.unanswered()
        )
        return (
            f"{', '.join(silent)} to answer step {self.worker.turns - 1}: "
            "start what has ended again with its state (weir server --index I --state DIR), or the job anew"
        )

    def _await_table(self, timeout: timedelta) -> None:
        """Wait for the placement. RendezvousError when worker 0 does not say it in time."""
        try:
            with logged_wait(log, lambda: "worker 0 to say which server has what"):
                self._store.wait([TABLE], timeout)
        except RuntimeError as error:
            raise RendezvousError(
                f"worker 0 did not say within {timeout.total_seconds():g} s which server has what: does it "
                "run, with the same rendezvous?"
            ) from error

    def _react(self) -> None:
        for words in self.lines.received():
            try:
                message = Message.decode(words, self._units)
            except (MessageError, PayloadError) as error:
                log.warning("worker %d: %s", self.rank, error)
                continue
            self.worker.on_message(message)

    def _gradient(self) -> npt.NDArray[np.float32]:
        """Return the gradients of the units of this step, one after another."""
        found = []
        for name, parameter in self._parameters.items():
            if name not in self._rows:
                dense = parameter.grad if parameter.grad is not None else torch.zeros(parameter.shape)
                found.append(array_of(dense.detach().reshape(-1).float()))
                continue
            first, width = self._first[name], self._rows[name]
            mine = self._now.units
            rows = mine[(mine >= first) & (mine < first + parameter.shape[0])] - first
            values = np.zeros((rows.size, width), np.float32)
            if parameter.grad is not None:
                gradient = parameter.grad.coalesce()
                used = array_of(gradient.indices()[0])
                at = np.minimum(np.searchsorted(rows, used), max(rows.size - 1, 0))
                if used.size and not (rows.size and np.array_equal(rows[at], used)):
                    raise ValueError(f"{name}: the batch used rows that were not pulled")
                values[at] = array_of(gradient.values().float())
            found.append(values.reshape(-1))
        return np.concatenate(found)

    def _filtered(self, gradient: npt.NDArray[np.float32]) -> tuple[UnitSet, npt.NDArray[np.float32]]:
        """Return the units that are above the filter's threshold, with those that were held."""
        assert self._held is not None
        due, rate = self._held.add(gradient), float(self.optimizer.param_groups[0]["lr"])
        bound = self._filter.at(self.worker.turns, 1.0) / rate if rate else np.inf
        chosen = above(due, bound, UNIT) if self._filter.threshold else due != 0
        units = np.flatnonzero(np.add.reduceat(chosen, self._units.starts[:-1]) > 0)
        elements = self._units.elements(units)
        covered = np.zeros(gradient.size, np.bool_)
        covered[elements] = True
        return UnitSet(0, units), self._held.take(covered)[elements]

    @torch.no_grad()
    def _made_flat(self) -> torch.Tensor:
        """Make the parameters views of one vector, and return it."""
        flat = torch.cat([one.detach().reshape(-1).float() for one in self._parameters.values()])
        start = 0
        for parameter in self._parameters.values():
            parameter.data = flat[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        return flat


def _sparse_rows(model: nn.Module) -> dict[str, int]:
    """Return the widths of sparse embeddings by the names of their parameters."""
    return {
        f"{name}.weight" if name else "weight": module.embedding_dim
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    }


def _spec_of(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """Return what servers are to know of an optimizer. ValueError for one that they do not have."""
    group = optimizer.param_groups[0]
    plain = {key: group[key] for key in optimizer.defaults if isinstance(group[key], int | float | bool)}
    name = type(optimizer).__name__
    spec = OptimizerSpec(name, (json.loads(json.dumps(plain)),) * len(optimizer.param_groups))
    check(spec)
    return spec


def _table(
    owner: Sequence[int] | npt.NDArray[Any] | None, units: Units, servers: int
) -> npt.NDArray[np.int64]:
    if owner is None:
        return np.minimum(units.starts[:-1] * servers // max(int(units.starts[-1]), 1), servers - 1)
    table: Integers = np.asarray(owner, np.int64)
    if table.shape != (len(units),) or (table.size and not 0 <= table.min() <= table.max() < servers):
        raise ValueError(
            f"a placement of {table.size} units on servers {table.min()} to {table.max()}: the model has "
            f"{len(units)} units, and there are {servers} servers"
        )
    return table
