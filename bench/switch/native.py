# SPDX-License-Identifier: Apache-2.0
"""The native half of the benchmarks: the hand-written aggregator and the load it is measured with."""

import ctypes
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from softp4.dataplane.ports import HasHandle
from softp4.native import INCLUDE, Signatures, load_library
from softp4.runtime.compiler import RUNTIME
from weir.host_agent.transport.codec import Column, Packet
from weir.host_agent.transport.frames import Addresses, Endpoint, Framer
from weir.wire.definition import ECT, GROUP_LANES, GROUPS, Flag, Op, PacketType, columns, dscp

_ROOT: Final = Path(__file__).resolve().parent
_INCLUDE: Final = (
    INCLUDE,
    _ROOT.parents[1] / "host_agent" / "transport" / "csrc",
    RUNTIME,
)
_RETRY_NS: Final = 200_000_000  # after which a packet without answer is sent again
SIGNATURES: Final[Signatures] = {
    "aggregator_new": (ctypes.c_void_p, (ctypes.c_uint32,) * 3),
    "aggregator_free": (None, (ctypes.c_void_p,)),
    "load_memory": (
        ctypes.c_uint64,
        (ctypes.c_void_p, ctypes.c_char_p, *(ctypes.c_uint32,) * 5, ctypes.POINTER(ctypes.c_uint64)),
    ),
    "load_make": (ctypes.c_void_p, (ctypes.c_char_p, *(ctypes.c_uint32,) * 5)),
    "load_hand_over": (
        ctypes.c_uint64,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)),
    ),
    "load_discard": (None, (ctypes.c_void_p,)),
    "load_open": (ctypes.c_int, (ctypes.c_char_p, ctypes.c_char_p)),
    "load_rings": (
        ctypes.c_int,
        (
            ctypes.c_char_p,
            ctypes.c_char_p,
            *(ctypes.c_uint32,) * 4,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_uint64),
        ),
    ),
    "load_sockets": (
        None,
        (
            ctypes.POINTER(ctypes.c_int),
            ctypes.c_char_p,
            *(ctypes.c_uint32,) * 4,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.POINTER(ctypes.c_uint64),
        ),
    ),
}


@functools.cache
def library() -> ctypes.CDLL:
    """Return the compiled benchmarks."""
    return load_library(
        "bench",
        [_ROOT / "csrc" / "aggregator.c", _ROOT / "csrc" / "load.c"],
        include=_INCLUDE,
        signatures=SIGNATURES,
    )


class Aggregator:
    """The hand-written aggregator for one job, with the soft switch's native face."""

    def __init__(self, job: int, workers: int, slots: int) -> None:
        self.handle: int = library().aggregator_new(job, workers, slots)

    def close(self) -> None:
        """Free it; nothing may use ``handle`` any more."""
        library().aggregator_free(self.handle)


@dataclass(frozen=True)
class Load:
    """One contribution frame per worker, to be sent with any slot and round."""

    frames: bytes
    length: int
    workers: int


def contributions(job: int, workers: int, lanes: int) -> Load:
    """Return full packets of ``lanes`` (a multiple of 32, at most 256) lanes in one column, operator ADD."""
    frames = []
    for worker in range(workers):
        groups = {g: tuple(range(worker, worker + GROUP_LANES)) for g in range(lanes // GROUP_LANES)}
        packet = Packet(
            PacketType.CONTRIBUTION,
            Op.ADD,
            8,
            job,
            worker,
            0,
            1,
            (Column(0, 1),) * columns(8),
            groups,
            flags=Flag.PROTECTED,
        )
        host = Endpoint(f"02:00:00:00:00:{worker + 1:02x}", f"10.0.0.{worker + 1}")
        switch = Endpoint("02:00:00:00:00:fe", "10.0.0.254")
        frames.append(Framer(Addresses(host, switch)).wrap(packet.encode(), dscp(0) << 2 | ECT))
    assert lanes % GROUP_LANES == 0 and lanes <= GROUP_LANES * GROUPS
    return Load(b"".join(frames), len(frames[0]), workers)


def in_memory(switch: HasHandle, load: Load, slots: int, first: int, last: int) -> float:
    """Return packets per second into ``switch`` over rounds ``first`` to ``last`` - 1 of every slot.

    Raises RuntimeError when the switch did not answer every round: then it did not do the work.
    """
    results = ctypes.c_uint64()
    nanoseconds: int = library().load_memory(
        switch.handle, load.frames, load.length, load.workers, slots, first, last, ctypes.byref(results)
    )
    return _rate((last - first) * slots * load.workers, nanoseconds, results.value)


class Rounds:
    """All frames of rounds ``first`` to ``last`` - 1 of every slot, made before any is handed over.

    A context manager, as they take much memory. Raises MemoryError where there is not enough.
    """

    def __init__(self, load: Load, slots: int, first: int, last: int) -> None:
        self._packets = (last - first) * slots * load.workers
        self._made = library().load_make(load.frames, load.length, load.workers, slots, first, last)
        if not self._made:
            raise MemoryError(f"no memory for {self._packets} frames of {load.length} bytes")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        library().load_discard(self._made)

    def into(self, switch: HasHandle) -> float:
        """Return packets per second when they are handed over many at a time, for several threads to share.

        Raises RuntimeError as ``in_memory`` does.
        """
        results = ctypes.c_uint64()
        nanoseconds: int = library().load_hand_over(switch.handle, self._made, ctypes.byref(results))
        return _rate(self._packets, nanoseconds, results.value)


def _rate(packets: int, nanoseconds: int, results: int) -> float:
    if results != packets:
        raise RuntimeError(f"{results} results of {packets}: the switch drops the load")
    return packets / (nanoseconds / 1e9)


@dataclass(frozen=True)
class Rate:
    """The packets that the workers sent and received in ``seconds``."""

    sent: int
    received: int
    retransmitted: int
    seconds: float

    @property
    def packets(self) -> float:
        """Return packets per second in and out of the switch."""
        return (self.sent + self.received) / self.seconds


def over_interfaces(
    namespaces: Sequence[str], load: Load, slots: int, first_round: int, seconds: float
) -> Rate:
    """Run self-clocked workers on ``eth0`` of each namespace file, every slot kept busy for ``seconds``.

    Raises OSError.
    """
    sockets = []
    for namespace in namespaces:
        fd = library().load_open(namespace.encode(), b"eth0")
        if fd < 0:
            raise OSError(ctypes.get_errno(), f"no packet socket in network namespace {namespace}")
        sockets.append(fd)
    descriptors = (ctypes.c_int * len(sockets))(*sockets)
    _, rate = _drive(library().load_sockets, descriptors, load, slots, first_round, seconds)
    return rate


def over_rings(directory: Path, load: Load, slots: int, first_round: int, seconds: float) -> Rate:
    """Run the same over shared-memory ports 1, 2, ... of a directory. Raises OSError."""
    done, rate = _drive(library().load_rings, os.fsencode(directory), load, slots, first_round, seconds)
    if done != 0:
        raise OSError(ctypes.get_errno(), f"no shared-memory ports in {directory}")
    return rate


def _drive(
    run: Any, where: Any, load: Load, slots: int, first_round: int, seconds: float
) -> tuple[int | None, Rate]:
    """Return the result of a native driver of workers, and what they counted."""
    counts = (ctypes.c_uint64 * 3)()
    length_ns = int(seconds * 1e9)
    result = run(
        where, load.frames, load.length, load.workers, slots, first_round, length_ns, _RETRY_NS, counts
    )
    return result, Rate(counts[0], counts[1], counts[2], seconds)
