# SPDX-License-Identifier: Apache-2.0
"""The step of a reduction within a host: its ranks reduce in shared memory, and one of them sends for all.

Each rank puts its vector into the memory, they reduce shares of it, the first of them (the leader) reduces
the result over the network with the leaders of the other hosts, and each takes what it wants. Arithmetic is
modulo 2^32, so every rank gets the bits that it would have got had all sent; on the wire a host costs what
one rank does.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.collectives.communicator import Audience, named
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.transport.arrays import contiguous
from weir.host_agent.transport.host_memory import (
    MOST_ACCOUNTS,
    NOT_WANTED,
    RESULT,
    Deadline,
    HostMemory,
    Step,
    Watch,
)
from weir.host_agent.transport.links import DisagreementError
from weir.host_agent.transport.report import Account, ReduceReport, ReturnedLanes
from weir.host_agent.transport.service_class import LOSSLESS, MAX_ACCOUNT_ROWS, NO_ACCOUNT, ServiceClass
from weir.host_agent.transport.slot_transport import BLOCKS
from weir.wire.definition import SLOT_LANES, Op

_SHARED_LANES: Final = 1 << 14  # chosen here: what takes less than waking the others, the leader sums alone
_OVER: Final = 0
_DISAGREE: Final = 1
_NO_BLOCKS: Final = np.empty(0, np.uint32)


@dataclass(frozen=True)
class Hosts:
    """The ranks of a group by host: each host's in their order, hosts in the order of their first ranks."""

    ranks: tuple[tuple[int, ...], ...]

    @cached_property
    def of_rank(self) -> npt.NDArray[np.int16]:
        """Host of each rank."""
        found = np.empty(sum(map(len, self.ranks)), np.int16)
        for host, ranks in enumerate(self.ranks):
            found[list(ranks)] = host
        return found

    @property
    def flat(self) -> bool:
        """Return whether every rank is a host of its own."""
        return all(len(ranks) == 1 for ranks in self.ranks)

    @property
    def single(self) -> bool:
        """Return whether several ranks are on one host, and none elsewhere."""
        return len(self.ranks) == 1 and not self.flat

    def audience(self, audience: Audience) -> Audience:
        """Return which hosts want what these ranks want.

        All but one rank: all but its host, whose other ranks have the result in memory.
        """
        hosts = self.of_rank[named(audience)]
        return np.where(audience < 0, ~hosts, hosts).astype(np.int16)


class Network(Protocol):
    """The reduction over hosts, as a leader calls it."""

    def __call__(
        self,
        lanes: Lanes,
        op: Op,
        block: int,
        service: ServiceClass,
        audience: Audience | None,
        operation: int,
        /,
    ) -> ReduceReport:
        """Reduce as ``Communicator.reduce_lanes``; operation: its fingerprint."""


class HostSum:
    """One rank's part in the reductions of a group.

    Args:
        hosts: of all ranks of the group.
        rank: this one.
        memory: which the ranks of this host share; not needed where it is alone.
        network: reduces over hosts; on leaders, where there are several hosts.
        watch: called now and then in a wait for other ranks, with them and the seconds that it has lasted;
            raises when it is to end.
    """

    def __init__(
        self,
        hosts: Hosts,
        rank: int,
        memory: HostMemory | None,
        network: Network | None,
        watch: Watch = lambda _ranks, _seconds: None,
    ) -> None:
        self._hosts, self._rank = hosts, rank
        self._host = int(hosts.of_rank[rank])
        self._locals = hosts.ranks[self._host]
        self._memory, self._network, self._watch = memory, network, watch
        self._was_read = False  # parts of others' vectors after the release of the last reduction

    def reduce_host_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
        operation: int = 0,
        timeout_s: float | None = None,
    ) -> ReduceReport:
        """Reduce as ``Communicator.reduce_lanes``.

        Args:
            lanes, op, block, service, audience: see there.
            operation: fingerprint, the same on all ranks.
            timeout_s: how long ranks of this host may be late; None: for ever.

        Raises:
            DisagreementError: ranks are in different reductions; on all ranks of all hosts.
            TransportTimeout: ranks of this host did not come; what ``network`` and ``watch`` raise.
        """
        abroad = None if audience is None else self._hosts.audience(audience)
        if self._memory is None:
            assert self._network is not None
            return self._network(lanes, op, block, service, abroad, operation)
        flat = lanes.reshape(-1).view(np.uint32)
        deadline = Deadline(timeout_s, self._watch, self._locals)
        entered = self._put(self._memory, flat, op, block, service, audience, operation, deadline)
        sent = None
        if self._rank == self._locals[0]:
            sent = self._lead(self._memory, flat.size, op, block, abroad, operation, deadline)
        elif flat.size > _SHARED_LANES:
            self._share(self._memory, flat.size, op, block, deadline)
        verdict, lost = self._memory.released(self._for_leader(self._memory, deadline))
        if verdict == _DISAGREE:
            raise DisagreementError("the ranks are in different operations")
        applied = self._memory.take(flat, block, None if audience is None else self._sources(audience))
        self._was_read = audience is not None
        report = self._report(self._memory, flat.size, op, block, service, entered, lost, applied, sent)
        self._memory.tell(Step.DONE)
        return report

    @staticmethod
    def check(lanes: Lanes, op: Op, block: int, service: ServiceClass, audience: Audience | None) -> None:
        """Raise TypeError or ValueError for what no rank can reduce."""
        contiguous(lanes, "lanes", np.uint32, np.int32)
        if not lanes.flags.writeable:
            raise ValueError("lanes are read-only, and a reduce replaces them in place")
        if block not in BLOCKS:
            raise ValueError(f"a block has {', '.join(map(str, BLOCKS))} lanes, not {block}")
        service.check(Op(op), -(-lanes.size // block))
        if audience is not None and (audience.size != -(-lanes.size // block) or service.budgets.size):
            raise ValueError("there must be one audience for each block, and no loss budget beside them")

    def _for_leader(self, memory: HostMemory, deadline: Deadline) -> Callable[[Sequence[int]], None]:
        """Return the deadline with the leader, which has deadlines of its own once it has come."""
        endless = Deadline(None, self._watch, self._locals)

        def wait(missing: Sequence[int]) -> None:
            (deadline if memory.missing(Step.ARRIVED, [0]) else endless)(missing)

        return wait

    def _put(
        self,
        memory: HostMemory,
        lanes: Lanes,
        op: Op,
        block: int,
        service: ServiceClass,
        audience: Audience | None,
        operation: int,
        deadline: Deadline,
    ) -> Account:
        """Put this rank's vector into the memory, and what there is to say of it."""
        blocks = -(-lanes.size // block)
        memory.next_reduction(lanes.size, quiet=self._was_read, deadline=deadline)
        heard_by = 0 if audience is None else zlib.crc32(audience.tobytes(), 1)
        facts = (operation, op << 16 | block, lanes.size & 0xFFFFFFFF, lanes.size >> 32, heard_by, 0)
        here = memory.place
        budgets = min(service.budgets.size, MOST_ACCOUNTS)
        memory.magnitudes[here][:blocks] = 0 if service.magnitudes is None else service.magnitudes
        if budgets:
            memory.accounts[here][:blocks] = 0 if service.accounts is None else service.accounts
            memory.budgets[here][:budgets] = service.budgets[:budgets]
        memory.say(facts, (service.layer, budgets, service.magnitudes is not None))
        entered = memory.put(lanes, block)
        memory.tell(Step.ARRIVED)
        return entered

    def _share(self, memory: HostMemory, count: int, op: Op, block: int, deadline: Deadline) -> None:
        """Reduce this rank's share of a long vector."""
        everybody = range(memory.size)
        memory.wait(Step.ARRIVED, everybody, deadline)
        if memory.agree():
            memory.reduce_share(op, count, block, memory.size, memory.place)
            memory.tell(Step.SUMMED)

    def _lead(
        self,
        memory: HostMemory,
        count: int,
        op: Op,
        block: int,
        audience: Audience | None,
        operation: int,
        deadline: Deadline,
    ) -> ReduceReport | None:
        """Reduce what all ranks of this host put there, over the network, too, and release it."""
        everybody = range(memory.size)
        memory.wait(Step.ARRIVED, everybody, deadline)
        if not memory.agree():
            self._tell_of_disagreement(operation)
            memory.release(_DISAGREE)
            return None
        if count > _SHARED_LANES:
            self._share(memory, count, op, block, deadline)
            memory.wait(Step.SUMMED, everybody, deadline)
        elif count:
            memory.reduce_share(op, count, block, 1, 0)
        report = None
        if self._network is not None:
            service = self._service(memory, count, op, block)
            try:
                report = self._network(memory.result[:count], op, block, service, audience, operation)
            except DisagreementError:
                memory.release(_DISAGREE)
                return None
        memory.release(_OVER, report.given_back.blocks if report is not None else None)
        return report

    def _tell_of_disagreement(self, operation: int) -> None:
        """Let the other hosts know, by an operation that none of them is in."""
        if self._network is None:
            return
        other = operation ^ (2 * self._host + 1) * 0x9E3779B1 & 0xFFFFFFFF
        try:
            self._network(np.empty(0, np.uint32), Op.ADD, SLOT_LANES, LOSSLESS, None, other)
        except DisagreementError:
            return

    def _service(self, memory: HostMemory, count: int, op: Op, block: int) -> ServiceClass:
        """Return the class of a host's packets: the best of its ranks', and what each of them may lose."""
        blocks = -(-count // block)
        said = [memory.extras(place) for place in range(memory.size)]
        layer = min(layer for layer, _, _ in said)
        magnitudes = None
        occupied = [memory.nonzero(place, blocks) for place in range(memory.size)]
        if any(given for _, _, given in said):
            classes = zip(memory.magnitudes, occupied, strict=True)
            magnitudes = np.maximum.reduce([np.where(here, mine[:blocks], 0) for mine, here in classes])
            magnitudes = magnitudes.astype(np.uint8)
        counts = [budgets for _, budgets, _ in said]
        if (
            op is not Op.ADD
            or not all(counts)
            or memory.size > MAX_ACCOUNT_ROWS
            or sum(counts) > MOST_ACCOUNTS
        ):
            return ServiceClass(layer, magnitudes)
        firsts = np.cumsum([0, *counts[:-1]])
        rows = [
            np.where(here, mine[:blocks] + first, NO_ACCOUNT)
            for mine, first, here in zip(memory.accounts, firsts, occupied, strict=True)
        ]
        budgets = [mine[:size] for mine, size in zip(memory.budgets, counts, strict=True)]
        return ServiceClass(
            layer, magnitudes, np.array(rows).astype(np.uint16), np.concatenate(budgets).astype(np.uint64)
        )

    def _sources(self, audience: Audience) -> npt.NDArray[np.uint8]:
        """Return where this rank takes each block from.

        What all want but a rank of this host, that one alone has contributed to: see ``Audience``.
        """
        places = np.full(self._hosts.of_rank.size, RESULT, np.uint8)
        places[list(self._locals)] = np.arange(len(self._locals))
        found = places[np.where(audience < 0, ~audience, 0)]
        found[audience >= 0] = NOT_WANTED
        found[audience == self._rank] = RESULT
        found[audience == ~self._rank] = NOT_WANTED
        return found

    def _report(
        self,
        memory: HostMemory,
        count: int,
        op: Op,
        block: int,
        service: ServiceClass,
        entered: Account,
        lost: npt.NDArray[np.uint32],
        applied: Account,
        sent: ReduceReport | None,
    ) -> ReduceReport:
        """Return how this rank's lanes fared; packets are the leader's."""
        blocks = -(-count // block)
        mine = lost[memory.nonzero(memory.place, blocks)[lost]] if lost.size else _NO_BLOCKS
        lanes = memory.own(mine, count, block)
        marks = None
        if mine.size:
            marks = np.zeros(blocks, np.uint8)
            marks[mine] = 1
        lengths = np.minimum(count - mine.astype(np.int64) * block, block)
        missing = np.empty(0, np.uint64)
        if service.budgets.size:
            accounts = np.zeros(mine.size, np.intp) if service.accounts is None else service.accounts[mine]
            missing = np.bincount(accounts, lengths, service.budgets.size).astype(np.uint64)
        books: dict[str, Any] = {
            "entered": entered,
            "included": memory.included(count, block, marks),
            "returned": Account(int(lengths.sum()), int(lanes.view(np.int32).sum(dtype=np.int64))),
            "applied": applied,
            "given_back": ReturnedLanes(mine, lanes),
            "missing": missing,
            "budgets": service.budgets,
        }
        if sent is not None:
            return replace(sent, **books)
        return ReduceReport(op=op, lanes=count, block=block, blocks=blocks, window=0, refused={}, **books)


def group_hosts(keys: Sequence[str]) -> Hosts:
    """Return the ranks by host, which are those with the same key; ranks with an empty one are alone."""
    found: dict[str, list[int]] = {}
    for rank, key in enumerate(keys):
        found.setdefault(key or f"rank {rank}", []).append(rank)
    return Hosts(tuple(map(tuple, found.values())))
