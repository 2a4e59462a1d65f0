# SPDX-License-Identifier: Apache-2.0
"""The host's half of the slot protocol (docs/internals/protocol.md) as a state machine without I/O.

Example::

    transport = SlotTransport(TransportConfig(job=7, worker=0, workers=4, slots=64))
    transport.begin_reduction(Op.ADD, 256, lanes)
    while not transport.done:
        datagrams, deadline = transport.poll(now)
        ...                                   # send them; wait for a packet or the deadline
        transport.on_packet(payload, now, traffic_class)
    report = transport.report()
"""

import ctypes
import errno
import os
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport import bindings
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.host_agent.transport.frames import Datagram
from weir.host_agent.transport.pieces import Pieces
from weir.host_agent.transport.report import (
    Account,
    ReduceReport,
    ReturnedLanes,
    Verdict,
    none_returned,
    refusals,
)
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.wire.definition import (
    GROUP_LANES,
    KEY_BYTES,
    MAX_BLOCK_LOG2,
    MAX_CHILDREN,
    MAX_WORKERS,
    MIN_BLOCK_LOG2,
    SLOT_LANES,
    WIDE_LANES,
    Op,
)

Lanes = npt.NDArray[np.uint32] | npt.NDArray[np.int32]
Audiences = npt.NDArray[np.uint16]

BLOCKS: Final = tuple(1 << log2 for log2 in range(MIN_BLOCK_LOG2, MAX_BLOCK_LOG2 + 1))
MAX_SLOTS: Final = 0xFFFF
NEVER: Final = (1 << 63) - 1


@dataclass(frozen=True)
class FloatScales:
    """Says that the lanes of a vector hold float32 values, and by what they become lanes and sums values.

    exponents: uint32, one for each ``values`` values in a row, a power of two: those that all workers agreed
    on, none of them below that of the values here (``weir.host_agent.collectives.quantize``). headroom: bits
    that stay free for the sum.
    """

    exponents: npt.NDArray[np.uint32]
    values: int
    headroom: int

    def native(self, lanes: int, block: int) -> bindings.Floats:
        """Return the C struct for a vector of this many lanes; ValueError when it does not fit."""
        address = contiguous(self.exponents, "exponents", np.uint32)
        least = BLOCKS[0] if block == WIDE_LANES else block
        if self.values < least or self.values & (self.values - 1):
            raise ValueError(f"{self.values} values to an exponent: a power of two, {least} at least")
        if self.exponents.size != -(-lanes // self.values):
            raise ValueError(f"{self.exponents.size} exponents for {lanes} values, of {self.values} each")
        return bindings.Floats(address, self.values.bit_length() - 1, self.headroom)


class Congestion(IntEnum):
    """Ways to shrink a worker's window of open slots: C ``WEIR_CONGESTION_...``."""

    NONE = 0
    MARKS = 1
    """Marks of queues, as DCTCP has it: on cables, where the switches mark."""

    PATH = 2
    """Losses, delay and marks of a path that others' TCP shares, and that may be long."""


@dataclass(frozen=True)
class TransportConfig:
    """One worker's place in a job, and its timers.

    job: 32-bit id on the wire. worker: own number at the switch, 0 to 31. workers: of the job, at
    all switches. slots: of the job, the window in packets.
    Timeouts in seconds: the initial one holds until a round trip is measured; the maximum caps RFC 6298's
    back-off, so that an outage of any length is over at most that long after the network is back.
    The minimum is well above the delays of a busy machine's scheduler: a packet repeated for nothing costs
    more than a lost one found late.
    min_probe: least time after which to ask what became of a packet, or to give up its lanes if the budget
    allows: both cost little. reordering: packets that were sent less than this apart may overtake each other.
    path: own, as an audience names it (protocol.md); None: that of a worker of the only switch.
    first_round: where the round counter of every slot starts; the same on all workers.
    fill: keep results at most half a slot's lanes (512 bytes) longer than any packet of their round, which
    BMv2 needs: requested blocks of 256 lanes are sent also when they are zero here, and of smaller ones, into
    which those with audiences are cut, a packet has half as many as it could; the same on all workers.
    congestion: what narrows the window of open slots; may differ between workers.
    max_lanes: packets of one column, with this many lanes of ADD, 32 or 64, and 32 of other operators, as a
    switch with few registers takes them; blocks are cut into such; 0: any packets; the same on all workers.
    wide: packets of one block of WIDE_LANES lanes may be sent, for sums of blocks of as many: switches and
    ways take them; not with max_lanes or fill; the same on all workers.
    keep: contributions to rounds that are over, and repeat them for a switch that restarts; may differ
    between workers.
    key: the job's secret, of KEY_BYTES, with which the check of its packets is made; the same on all workers.
    """

    job: int
    worker: int
    workers: int
    slots: int
    initial_rto: float = 0.2
    min_rto: float = 0.05
    max_rto: float = 1.0
    min_probe: float = 0.002
    reordering: float = 0.001
    first_round: int = 1
    fill: bool = False
    path: int | None = None
    congestion: Congestion = Congestion.MARKS
    max_lanes: int = 0
    wide: bool = False
    keep: bool = True
    key: bytes = field(default=bytes(KEY_BYTES), repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"a job has 1 to {MAX_WORKERS} workers, not {self.workers}")
        least = min(self.workers, MAX_CHILDREN)
        if not 0 <= self.worker < least:
            raise ValueError(f"worker {self.worker} is not in 0..{least - 1}")
        if not 1 <= self.slots <= MAX_SLOTS:
            raise ValueError(f"a job has 1 to {MAX_SLOTS} slots, not {self.slots}")
        if not 0 <= self.job <= 0xFFFFFFFF or not 0 <= self.first_round <= 0xFFFFFFFF:
            raise ValueError("job and first_round are 32-bit numbers")
        if not 0 < self.min_rto <= self.initial_rto <= self.max_rto:
            raise ValueError(
                "timeouts must satisfy 0 < min_rto <= initial_rto <= max_rto, not "
                f"{self.min_rto}, {self.initial_rto}, {self.max_rto}"
            )
        if self.max_lanes not in (0, GROUP_LANES, 2 * GROUP_LANES):
            raise ValueError(
                f"packets have {GROUP_LANES} or {2 * GROUP_LANES} lanes, or any number (0), not "
                f"{self.max_lanes}"
            )
        if self.wide and (self.max_lanes or self.fill):
            raise ValueError("wide packets are for switches that take any others and can lengthen packets")
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a job's key has {KEY_BYTES} bytes, not {len(self.key)}")
        if self.min_probe <= 0 or self.reordering < 0:
            raise ValueError(
                f"min_probe {self.min_probe} must be above 0, and reordering {self.reordering} not below"
            )


_NO_ACCOUNTS: Final = np.empty(0, np.uint64)


class SlotTransport:
    """Reduces one vector at a time over the workers of a job, in place. For one thread at a time.

    Times are integer nanoseconds of any one monotonic clock.
    """

    def __init__(self, config: TransportConfig) -> None:
        self.config = config
        self._lib = bindings.library()
        native = bindings.Config(
            config.job,
            config.worker,
            config.workers,
            config.worker if config.path is None else config.path,
            config.slots,
            config.first_round,
            config.fill,
            config.congestion,
            config.max_lanes,
            config.wide,
            config.keep,
            *(
                round(seconds * 1e9)
                for seconds in (
                    config.initial_rto,
                    config.min_rto,
                    config.max_rto,
                    config.min_probe,
                    config.reordering,
                )
            ),
            (ctypes.c_uint8 * KEY_BYTES)(*config.key),
        )
        handle = self._lib.weir_transport_new(ctypes.byref(native))
        if not handle:
            raise MemoryError(f"no memory for a transport of {config.slots} slots")
        self._handle: int | None = handle
        self._out = ctypes.create_string_buffer(bindings.MAX_PAYLOAD)
        self._traffic_class = ctypes.c_uint8()
        self._lanes: Lanes | Pieces | None = None  # kept alive while the engine writes into it
        self._service = LOSSLESS  # kept alive while the engine reads it
        self._audiences: Audiences | None = None  # so, too
        self._floats: FloatScales | None = None  # so, too
        self._places: npt.NDArray[np.void] | None = None  # so, too
        self._op, self._block, self._count = Op.ADD, BLOCKS[-1], 0
        self._groups = 1  # into which each block is cut
        self.waiting_since: float | None = None
        """When a reduce made progress last, by ``time.monotonic``, while a link waits for more; set there."""

    @property
    def handle(self) -> int:
        """Address of the C ``weir_transport``, for native drivers; valid until ``close``."""
        if self._handle is None:
            raise ValueError("the transport is closed")
        return self._handle

    def begin_reduction(
        self,
        op: Op,
        block: int,
        lanes: Lanes | Pieces,
        service: ServiceClass = LOSSLESS,
        operation: int = 0,
        audiences: Audiences | None = None,
        floats: FloatScales | None = None,
    ) -> None:
        """Begin to replace ``lanes`` by their reduction over all workers; every worker begins the same one.

        lanes: C-contiguous uint32 or int32 of any shape, also empty (then it is a barrier). They belong to
        the transport until it is done. Or pieces, for ADD without budgets over switches that take any
        packets (no ``fill`` or ``max_lanes``). block: lanes in a block, 32, 64, 128 or 256, or where the
        config allows wide packets 1024, for ADD without budgets. service: this worker's own; budgets are for
        ADD only. operation: 32-bit fingerprint of what the reduce is a part of, the same on every worker.
        audiences: for each block who wants its result, the same on every worker: the path of
        one, or with AUDIENCE_EXCEPT of the only one that does not; blocks that this one does not want are
        undefined afterwards. None: all want all. Not together with budgets. floats: the lanes hold float32
        values, and in the end the sums', for ADD without budgets and audiences; if the reduce fails, nothing
        of use.
        Raises TypeError or ValueError for anything else, RuntimeError while the last reduce is not done.
        """
        if block not in BLOCKS and not (block == WIDE_LANES and self.config.wide):
            raise ValueError(f"a block has {', '.join(map(str, BLOCKS))} lanes, not {block}")
        if block == WIDE_LANES and (op != Op.ADD or service.budgets.size):
            raise ValueError(f"blocks of {block} lanes are for ADD without loss budgets")
        address, places = 0, None
        if isinstance(lanes, Pieces):
            places = self._table(op, block, lanes, service)
            blocks = places.size
            count = blocks * block
        else:
            address = contiguous(lanes, "lanes", np.uint32, np.int32)
            if not lanes.flags.writeable:
                raise ValueError("lanes are read-only, and a reduce replaces them in place")
            count = lanes.size
            blocks = -(-count // block)
        op = Op(op)
        service.check(op, blocks)
        if audiences is not None:
            contiguous(audiences, "audiences", np.uint16)
            if audiences.size != blocks:
                raise ValueError(
                    f"{audiences.size} audiences for {blocks} blocks: there must be one for each"
                )
            if service.budgets.size:
                raise ValueError(
                    "loss budgets are for results that all workers want: pass none with audiences"
                )
        if floats is not None and (audiences is not None or service.budgets.size or op != Op.ADD):
            raise ValueError("sums of float32 values are for ADD without loss budgets and audiences")
        scales = None if floats is None else floats.native(count, block)
        if isinstance(lanes, Pieces) and lanes.values:
            scales = bindings.Floats(None, lanes.values.bit_length() - 1, lanes.headroom)
        self._block, self._groups = block, 1
        if (travels := self._travels(op, block, audiences)) < block:
            self._groups, block = block // travels, travels
            parts = -(-count // block)
            service = service.divided(self._groups, parts)
            if audiences is not None:
                audiences = np.repeat(audiences, self._groups)[:parts]
        error = self._lib.weir_transport_begin(
            self.handle,
            op,
            block.bit_length() - 1,
            address,
            count,
            None if audiences is None else address_of(audiences),
            service.native,
            None if scales is None else ctypes.byref(scales),
            None if places is None else address_of(places),
            operation,
        )
        if error == errno.EBUSY:
            raise RuntimeError("a reduce is in progress: a transport does one at a time")
        if error == errno.EFBIG:
            raise ValueError(f"{count} lanes are more than 2^32 - 2 blocks of {block}")
        if error:
            raise OSError(error, f"cannot begin to reduce {count} lanes: {os.strerror(error)}")
        self._lanes, self._count, self._op, self._service = lanes, lanes.size, op, service
        self._audiences, self._floats, self._places = audiences, floats, places

    def _table(self, op: Op, block: int, pieces: Pieces, service: ServiceClass) -> npt.NDArray[np.void]:
        """Return where the blocks of pieces are. ValueError where they cannot be reduced so."""
        if op != Op.ADD or service.budgets.size or self.config.fill or self.config.max_lanes:
            raise ValueError("pieces are for ADD without loss budgets, over switches that take any packets")
        values = pieces.values
        if values and (values < BLOCKS[0] or values & (values - 1)):
            raise ValueError(f"{values} values to an exponent: a power of two, {BLOCKS[0]} at least")
        return pieces.table(block)

    def _travels(self, op: Op, block: int, audiences: Audiences | None) -> int:
        """Return how many lanes a block of packets has, for blocks of this many of the caller's.

        What only some want has mostly been made by others: there, more headers cost less than zeros would
        that are sent to a switch which cannot make packets longer.
        """
        if self.config.max_lanes:
            return min(block, self.config.max_lanes if op == Op.ADD else GROUP_LANES)
        return block // 2 if self.config.fill and audiences is not None and block == SLOT_LANES else block

    def forget_tensors(self) -> None:
        """Keep the lanes of a reduce that is done alive no longer; of one in progress, go on to do so."""
        if self.done:
            self._lanes = self._audiences = self._floats = self._places = None

    def restore(self) -> None:
        """Give up a reduce of which no round is complete, so that its lanes can be reduced elsewhere.

        Float32 values of which packets were made are values again, rounded to what these packets hold.
        """
        self._lib.weir_transport_restore(self.handle)

    def on_packet(self, payload: bytes, now: int, traffic_class: int = 0) -> Verdict:
        """Take in a UDP payload that arrived. A refused one changes nothing but its counter."""
        return Verdict(
            self._lib.weir_transport_receive(self.handle, payload, len(payload), traffic_class, now)
        )

    def poll(self, now: int) -> tuple[list[Datagram], int | None]:
        """Return the datagrams to send now, and when to poll again if nothing arrives (None: not before
        then).
        """
        datagrams = []
        traffic_class = self._traffic_class
        while length := self._lib.weir_transport_send(self.handle, now, self._out, traffic_class):
            datagrams.append(Datagram(self._out.raw[:length], traffic_class.value))
        deadline = self._lib.weir_transport_deadline(self.handle)
        return datagrams, None if deadline == NEVER else deadline

    @property
    def done(self) -> bool:
        """Return whether every slot has its last result: the lanes are the reduction, and the caller's
        again.
        """
        return bool(self._lib.weir_transport_done(self.handle))

    @property
    def disagrees(self) -> bool:
        """Return whether another worker is in another reduce or operation: then this one is never done."""
        return bool(self._lib.weir_transport_disagrees(self.handle))

    @property
    def rounds(self) -> int:
        """Slot rounds completed since the reduce began: they grow as long as there is progress."""
        return int(self._lib.weir_transport_report(self.handle).contents.rounds)

    @property
    def rto(self) -> float:
        """Current retransmission timeout in seconds, before back-off."""
        return float(self._lib.weir_transport_rto(self.handle) / 1e9)

    def coalescing(self, room: int) -> float:
        """Return for how many seconds results may lie before they are read, where there is room for this
        many.

        A driver that sleeps so long is woken for many at once.
        """
        return float(self._lib.weir_transport_coalescing(self.handle, room) / 1e9)

    @property
    def window(self) -> int:
        """Number of slots that may be open at once, as marks of congestion have it."""
        return int(self._lib.weir_transport_window(self.handle))

    @property
    def round_trip(self) -> float:
        """Shortest round trip to the switch of late, in seconds; 0: none was measured, as is so
        but with ``Congestion.PATH``.
        """
        return float(self._lib.weir_transport_round_trip(self.handle) / 1e9)

    def waiting(self) -> list[tuple[int, int]]:
        """Return (slot, round) of every slot that does not have its last result yet."""
        slots, rounds = ((ctypes.c_uint32 * self.config.slots)() for _ in range(2))
        found = self._lib.weir_transport_waiting(self.handle, slots, rounds, self.config.slots)
        return list(zip(slots[:found], rounds[:found], strict=True))

    def report(self, seconds: float = 0.0) -> ReduceReport:
        """Return the report of the current or last reduce; ``seconds`` is the caller's own measurement."""
        native = ctypes.string_at(self._lib.weir_transport_report(self.handle), bindings.Report.WORDS.size)
        words = bindings.Report.WORDS.unpack(native)
        first, after = len(bindings.Report.COUNTS), len(words) - len(Verdict)
        sums, verdicts = words[first:after], words[after:]
        counts: dict[str, Any] = dict(zip(bindings.Report.COUNTS, words[:first], strict=True))
        for name, verdict in bindings.Report.FROM_VERDICTS.items():
            counts[name] = verdicts[verdict]
        entered, included, returned, applied = map(Account, sums[::2], sums[1::2])
        budgets = self._service.budgets
        return ReduceReport.made(
            op=self._op,
            lanes=self._count,
            block=self._block,
            refused=refusals(verdicts),
            given_back=self._returned() if returned.lanes else none_returned(self._block),
            missing=self._missing() if budgets.size else _NO_ACCOUNTS,
            budgets=budgets,
            window=self.window,
            seconds=seconds,
            entered=entered,
            included=included,
            returned=returned,
            applied=applied,
            **counts,
        )

    def _returned(self) -> ReturnedLanes:
        blocks, lanes = ctypes.POINTER(ctypes.c_uint32)(), ctypes.POINTER(ctypes.c_uint32)()
        n = self._lib.weir_transport_returned(self.handle, ctypes.byref(blocks), ctypes.byref(lanes))
        if not n:
            return none_returned(self._block)
        width = self._block // self._groups
        found = ReturnedLanes(
            np.ctypeslib.as_array(blocks, (n,)).copy(), np.ctypeslib.as_array(lanes, (n, width)).copy()
        )
        return found if self._groups == 1 else found.joined(self._groups)

    def _missing(self) -> npt.NDArray[np.uint64]:
        accounts = ctypes.POINTER(bindings.LossAccount)()
        n = self._lib.weir_transport_accounts(self.handle, ctypes.byref(accounts))
        if not n:
            return _NO_ACCOUNTS
        fields = len(bindings.LossAccount.FIELDS)
        table = np.ctypeslib.as_array(ctypes.cast(accounts, ctypes.POINTER(ctypes.c_uint64)), (n, fields))
        return table[:, bindings.LossAccount.FIELDS.index("missing")].copy()

    def close(self) -> None:
        """Free the native state. Closing twice is harmless."""
        if self._handle is not None:
            self._lib.weir_transport_free(self._handle)
            self._handle = self._lanes = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()
