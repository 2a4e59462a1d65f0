# SPDX-License-Identifier: Apache-2.0
"""The C entry points of a compiled switch (runtime/control.c) with Python types."""

import ctypes
import functools
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from softp4.native.build import Signatures
from softp4.runtime.queueing import (
    Limits,
    QueueCounts,
    Queueing,
    QueueStatistics,
    queue_statistics,
)

# void emit(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
EMIT = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p, c_uint32)
_WORDS = POINTER(c_uint64)
_NUMBERS = POINTER(c_uint32)

SIGNATURES: Final[Signatures] = {
    "swc_create": (c_void_p, [c_uint64, c_uint32]),
    "swc_share": (None, [c_void_p, c_void_p]),
    "swc_destroy": (None, [c_void_p]),
    "swc_lock": (None, [c_void_p]),
    "swc_unlock": (None, [c_void_p]),
    "swc_process": (None, [c_void_p, c_uint32, c_char_p, c_uint32, c_uint64, EMIT, c_void_p]),
    "swc_process_many": (c_int, [c_void_p, c_void_p, c_uint32, c_uint64, EMIT, c_void_p]),
    "swc_step": (None, [c_void_p, c_uint64, EMIT, c_void_p]),
    "swc_deadline": (c_uint64, [c_void_p]),
    "swc_set_queueing": (c_int, [c_void_p, c_uint32, c_void_p]),
    "swc_queue_stats": (None, [c_void_p, c_uint32, c_void_p]),
    "swc_stats": (None, [c_void_p, _WORDS]),
    "swc_shares": (None, [c_void_p, _WORDS]),
    "swc_start_trace": (c_int, [c_void_p, c_void_p, _WORDS, c_uint64, c_uint32]),
    "swc_stop_trace": (None, [c_void_p]),
    "swc_read_trace": (c_uint32, [c_void_p, c_void_p, _WORDS]),
    "swc_insert": (c_int64, [c_void_p, c_uint32, c_void_p, c_uint32, c_void_p]),
    "swc_modify": (None, [c_void_p, c_uint32, c_uint32, c_uint32, c_void_p]),
    "swc_remove": (None, [c_void_p, c_uint32, c_uint32]),
    "swc_insert_all": (c_uint32, [c_void_p, c_uint32, c_uint32, c_void_p, _NUMBERS, c_void_p, _NUMBERS]),
    "swc_modify_all": (None, [c_void_p, c_uint32, c_uint32, _NUMBERS, _NUMBERS, c_void_p]),
    "swc_remove_all": (None, [c_void_p, c_uint32, c_uint32, _NUMBERS]),
    "swc_default": (None, [c_void_p, c_uint32, c_uint32, c_void_p]),
    "swc_entry_count": (None, [c_void_p, c_uint32, c_uint32, _WORDS]),
    "swc_set_entry_count": (None, [c_void_p, c_uint32, c_uint32, _WORDS]),
    "swc_set_member": (c_int, [c_void_p, c_uint32, c_uint32, c_uint32, c_void_p]),
    "swc_remove_member": (None, [c_void_p, c_uint32, c_uint32]),
    "swc_set_member_group": (c_int, [c_void_p, c_uint32, c_uint32, c_uint32, _NUMBERS]),
    "swc_remove_member_group": (None, [c_void_p, c_uint32, c_uint32]),
    "swc_set_group": (c_int, [c_void_p, c_uint32, c_uint32, _NUMBERS]),
    "swc_clear_group": (None, [c_void_p, c_uint32]),
    "swc_set_session": (c_int, [c_void_p, c_uint32, c_uint32, _NUMBERS, c_uint32]),
    "swc_clear_session": (None, [c_void_p, c_uint32]),
    "swc_set_value_set": (c_int, [c_void_p, c_uint32, c_uint32, c_uint32, _WORDS]),
    "swc_counter": (None, [c_void_p, c_uint32, c_uint64, _WORDS]),
    "swc_set_counter": (None, [c_void_p, c_uint32, c_uint64, _WORDS]),
    "swc_set_meters": (None, [c_void_p, c_uint32, c_uint64, c_uint64, _WORDS]),
    "swc_meter": (None, [c_void_p, c_uint32, c_uint64, _WORDS, _WORDS]),
    "swc_clear_marked": (None, [c_void_p, c_uint32, c_uint64, c_uint64]),
    "swc_set_entry_meter": (None, [c_void_p, c_uint32, c_uint32, _WORDS]),
    "swc_entry_marked": (None, [c_void_p, c_uint32, c_uint32, _WORDS]),
    "swc_clear_entry_marked": (None, [c_void_p, c_uint32, c_uint32]),
    "swc_begin_idle": (None, [c_void_p, c_uint32, c_uint32]),
    "swc_set_timeout": (None, [c_void_p, c_uint32, c_uint32, c_uint64]),
    "swc_idle_time": (c_uint64, [c_void_p, c_uint32, c_uint32]),
    "swc_expire": (c_int, [c_void_p, c_uint32, c_uint32, c_uint64, _WORDS]),
    "swc_tell": (None, [c_void_p, c_uint64]),
    "swc_digests_wait": (c_int, [c_void_p]),
    "swc_digest_room": (c_uint32, []),
    "swc_take_digests": (c_uint32, [c_void_p, c_void_p]),
    "swc_lost_digests": (c_uint64, [c_void_p]),
    "swc_register": (None, [c_void_p, c_uint32, c_uint64, c_void_p]),
    "swc_set_crc": (None, [c_void_p, c_uint32, _WORDS]),
    "swc_assertion": (c_uint64, [c_void_p, c_uint32]),
    "swc_set_register": (None, [c_void_p, c_uint32, c_uint64, c_char_p]),
}


def words(values: Sequence[int]) -> bytes:
    """Return numbers as the 64-bit words of a native entry."""
    return struct.pack(f"<{len(values)}Q", *values)


def _words(values: Sequence[int]) -> Any:
    return (c_uint64 * max(len(values), 1))(*values)


def _numbers(values: Sequence[int]) -> Any:
    return (c_uint32 * max(len(values), 1))(*values)


def _pairs(replicas: Sequence[tuple[int, int]]) -> Any:
    flat = [number for pair in replicas for number in pair]
    return _numbers(flat)


class _Frame(ctypes.Structure):
    """C ``sw_frame``."""

    _fields_ = (("frame", c_char_p), ("port", c_uint32), ("len", c_uint32))


class _NativeKey(ctypes.Structure):
    """C ``sw_key``."""

    _fields_ = (("field", c_uint32), ("mask", c_uint64))


@dataclass(frozen=True)
class Key:
    """The bits of a frame by which threads share frames: `mask` of one of the program's `Sharder.fields`."""

    field: int
    mask: int


ANY_THREAD: Final = Key((1 << 32) - 1, 0)
"""No key: any thread may take any frame."""

MOST_THREADS: Final = 64


class Library:
    """A compiled program."""

    def __init__(self, entry_points: ctypes.CDLL) -> None:
        self.entry_points = entry_points

    @property
    def program(self) -> int:
        """Address of C `sw_generated`."""
        return ctypes.addressof(ctypes.c_char.in_dll(self.entry_points, "sw_generated"))


class NativeSwitch:
    """The native half of one switch: its C entry points as methods, and the lock of its control plane.

    Each call takes the C switch's own lock, so that it falls between two batches of the data path. What
    Python remembers beside the native state is guarded by `control`: the methods that read or change it
    are `exclusive`.

    Args:
        library: the compiled program.
        seed: where its random() begins.
        threads: how many may run its frames (1 to MOST_THREADS).

    Raises:
        MemoryError: there is no room for its registers and counters.
    """

    def __init__(self, library: Library, seed: int, threads: int = 1) -> None:
        self._c = library.entry_points
        self._address: int | None = self._c.swc_create(seed, threads)
        self.control = threading.RLock()
        if not self._address:
            raise MemoryError("no memory for the registers and counters of a program, or no threads")

    @property
    def handle(self) -> int:
        """Address of the C `sw_switch`; valid until `close`. Raises ValueError after that."""
        if self._address is None:
            raise ValueError("the switch is closed")
        return self._address

    def close(self) -> None:
        """Free the switch. Closing twice is harmless."""
        with self.control:
            if self._address is not None:
                self._c.swc_destroy(self._address)
                self._address = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the data path at the end of its batch; only this thread's calls go on meanwhile."""
        with self.control:
            self._c.swc_lock(self.handle)
            try:
                yield
            finally:
                self._c.swc_unlock(self.handle)

    def process(self, port: int, frame: bytes, now: int, emit: Any) -> None:
        """Run a frame; call `emit` for each that leaves."""
        self._c.swc_process(self.handle, port, frame, len(frame), now, emit, None)

    def process_many(self, frames: Sequence[tuple[int, bytes]], now: int, emit: Any) -> None:
        """Run frames, each with its port; call `emit` for each that leaves."""
        made = (_Frame * len(frames))(*(_Frame(frame, port, len(frame)) for port, frame in frames))
        if self._c.swc_process_many(self.handle, made, len(frames), now, emit, None):
            raise MemoryError("no memory for outgoing frames")

    def share(self, key: Key | None) -> None:
        """Let threads share frames by a key; None: one thread runs them all."""
        made = None if key is None else ctypes.byref(_NativeKey(key.field, key.mask))
        self._c.swc_share(self.handle, made)

    def step(self, now: int, emit: Any) -> None:
        """Send what waits in queues and is due; call `emit` for each frame that leaves."""
        self._c.swc_step(self.handle, now, emit, None)

    def deadline(self) -> int:
        """Return when the next frame that waits is due; NEVER without one."""
        due: int = self._c.swc_deadline(self.handle)
        return due

    def set_queueing(self, port: int, queueing: Queueing | None) -> None:
        """Limit a port; None lifts its limits."""
        limits = None if queueing is None else ctypes.byref(Limits.of(queueing))
        if self._c.swc_set_queueing(self.handle, port, limits):
            raise MemoryError(f"no memory for the queues of port {port}")

    def queue_statistics(self, port: int) -> tuple[QueueStatistics, ...]:
        """Return what each queue of a port has seen."""
        counts = QueueCounts()
        self._c.swc_queue_stats(self.handle, port, counts)
        return queue_statistics(counts)

    def start_trace(self, traced: "Library", ports: Sequence[int], frames: int, room: int) -> None:
        """Trace the next `frames` frames of `ports`, by the library that has the tracepoints."""
        bits = [sum(1 << port % 64 for port in ports if port // 64 == word) for word in range(8)]
        if self._c.swc_start_trace(self.handle, traced.program, _words(bits), frames, room):
            raise MemoryError(f"no memory for a trace of {8 * room} bytes")

    def stop_trace(self) -> None:
        """Trace no more; what was not read is lost."""
        self._c.swc_stop_trace(self.handle)

    def read_trace(self, room: int) -> tuple[bytes, int]:
        """Take the records, and how many blocks were lost."""
        words, lost = (c_uint64 * room)(), _words([0])
        used = self._c.swc_read_trace(self.handle, words, lost)
        return bytes(memoryview(words).cast("B")[: 8 * used]), lost[0]

    def statistics(self) -> tuple[int, int, int, int, int]:
        """Return packets in, out, dropped; bytes in, out."""
        out = _words([0] * 5)
        self._c.swc_stats(self.handle, out)
        return out[0], out[1], out[2], out[3], out[4]

    def shares(self, threads: int) -> list[int]:
        """Return the packets that came to each of the switch's threads."""
        out = _words([0] * threads)
        self._c.swc_shares(self.handle, out)
        return list(out)

    def insert(self, table: int, key: bytes, action: int, args: bytes) -> int:
        """Add an entry; return its handle, or -1 when memory ran out.

        `key`: the key's words; with masks, the mask's; and unless it is exact, the priority (see table.h).
        """
        handle: int = self._c.swc_insert(self.handle, table, key, action, args)
        return handle

    def modify(self, table: int, handle: int, action: int, args: bytes) -> None:
        """Replace an entry's action."""
        self._c.swc_modify(self.handle, table, handle, action, args)

    def remove(self, table: int, handle: int) -> None:
        """Remove an entry."""
        self._c.swc_remove(self.handle, table, handle)

    def insert_all(self, table: int, keys: Sequence[bytes], actions: Sequence[int], args: bytes) -> list[int]:
        """Add entries, whose arguments follow each other in `args`; return their handles.

        There are fewer when memory ran out.
        """
        count = len(keys)
        handles = (c_uint32 * count)()
        added = self._c.swc_insert_all(
            self.handle, table, count, b"".join(keys), _numbers(actions), args, handles
        )
        return handles[:added]

    def modify_all(self, table: int, handles: Sequence[int], actions: Sequence[int], args: bytes) -> None:
        """Replace the actions of entries, in their order."""
        self._c.swc_modify_all(self.handle, table, len(handles), _numbers(handles), _numbers(actions), args)

    def remove_all(self, table: int, handles: Sequence[int]) -> None:
        """Remove entries."""
        self._c.swc_remove_all(self.handle, table, len(handles), _numbers(handles))

    def set_default(self, table: int, action: int, args: bytes) -> None:
        """Set what a miss does."""
        self._c.swc_default(self.handle, table, action, args)

    def entry_count(self, table: int, handle: int) -> tuple[int, int]:
        """Return packets and bytes an entry has matched."""
        out = _words([0, 0])
        self._c.swc_entry_count(self.handle, table, handle, out)
        return out[0], out[1]

    def set_entry_count(self, table: int, handle: int, packets: int, octets: int) -> None:
        """Set an entry's counter."""
        self._c.swc_set_entry_count(self.handle, table, handle, _words([packets, octets]))

    def set_member(self, profile: int, handle: int, action: int, args: bytes) -> None:
        """Make a member of an action profile, or replace its action."""
        if self._c.swc_set_member(self.handle, profile, handle, action, args):
            raise MemoryError("no memory for a member of an action profile")

    def remove_member(self, profile: int, handle: int) -> None:
        """Remove a member to which nothing refers."""
        self._c.swc_remove_member(self.handle, profile, handle)

    def set_member_group(self, profile: int, handle: int, members: Sequence[int]) -> None:
        """Make a group of members, or replace them; in the order in which a hash counts them."""
        if self._c.swc_set_member_group(self.handle, profile, handle, len(members), _numbers(members)):
            raise MemoryError("no memory for a group of an action profile")

    def remove_member_group(self, profile: int, handle: int) -> None:
        """Remove a group to which nothing refers."""
        self._c.swc_remove_member_group(self.handle, profile, handle)

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Make or replace a multicast group: pairs of egress port and replication id."""
        if self._c.swc_set_group(self.handle, group, len(replicas), _pairs(replicas)):
            raise MemoryError(f"no memory for multicast group {group}")

    def clear_group(self, group: int) -> None:
        """Remove a multicast group."""
        self._c.swc_clear_group(self.handle, group)

    def set_session(self, session: int, replicas: Sequence[tuple[int, int]], length: int) -> None:
        """Make or replace a clone session: replicas as in a multicast group."""
        if self._c.swc_set_session(self.handle, session, len(replicas), _pairs(replicas), length):
            raise MemoryError(f"no memory for clone session {session}")

    def clear_session(self, session: int) -> None:
        """Remove a clone session."""
        self._c.swc_clear_session(self.handle, session)

    def set_value_set(self, number: int, words: int, patterns: Sequence[int]) -> None:
        """Replace the members of a value set, given as values and masks of `words` words each."""
        count = len(patterns) // (2 * words)
        if self._c.swc_set_value_set(self.handle, number, count, words, _words(patterns)):
            raise MemoryError(f"no memory for a value set of {count} patterns")

    def read_counter(self, counter: int, index: int) -> tuple[int, int]:
        """Return packets and bytes of a counter cell."""
        out = _words([0, 0])
        self._c.swc_counter(self.handle, counter, index, out)
        return out[0], out[1]

    def write_counter(self, counter: int, index: int, packets: int, octets: int) -> None:
        """Set a counter cell."""
        self._c.swc_set_counter(self.handle, counter, index, _words([packets, octets]))

    def read_register(self, register: int, index: int, width: int) -> int:
        """Return a register cell stored in `width` bytes."""
        out = ctypes.create_string_buffer(width)
        self._c.swc_register(self.handle, register, index, out)
        return int.from_bytes(out.raw, sys.byteorder)

    def write_register(self, register: int, index: int, value: int, width: int) -> None:
        """Set a register cell stored in `width` bytes."""
        self._c.swc_set_register(self.handle, register, index, value.to_bytes(width, sys.byteorder))

    # -- meters, idle times and digests --------------------------------------------------------------

    def set_meters(self, array: int, first: int, count: int, config: Sequence[int]) -> None:
        """Configure meters of an array; `config` is a C sw_meter_config."""
        self._c.swc_set_meters(self.handle, array, first, count, _words(config))

    def meter(self, array: int, index: int) -> tuple[list[int], list[int]]:
        """Return a meter's C sw_meter_config, and packets and bytes by colour."""
        config, marked = _words([0] * 5), _words([0] * 6)
        self._c.swc_meter(self.handle, array, index, config, marked)
        return list(config), list(marked)

    def clear_marked(self, array: int, first: int, count: int) -> None:
        """Set the counters of meters of an array to zero."""
        self._c.swc_clear_marked(self.handle, array, first, count)

    def set_entry_meter(self, table: int, handle: int, config: Sequence[int]) -> None:
        """Configure an entry's meter."""
        self._c.swc_set_entry_meter(self.handle, table, handle, _words(config))

    def entry_marked(self, table: int, handle: int) -> list[int]:
        """Return packets and bytes of an entry's meter by colour."""
        marked = _words([0] * 6)
        self._c.swc_entry_marked(self.handle, table, handle, marked)
        return list(marked)

    def clear_entry_marked(self, table: int, handle: int) -> None:
        """Set the counters of an entry's meter to zero."""
        self._c.swc_clear_entry_marked(self.handle, table, handle)

    def tell(self, now: int) -> None:
        """Tell the switch the time."""
        self._c.swc_tell(self.handle, now)

    def begin_idle(self, table: int, handle: int) -> None:
        """Start a new entry's timer."""
        self._c.swc_begin_idle(self.handle, table, handle)

    def set_timeout(self, table: int, handle: int, timeout_ns: int) -> None:
        """Set after how long an entry is idle; 0 for never."""
        self._c.swc_set_timeout(self.handle, table, handle, timeout_ns)

    def idle_time(self, table: int, handle: int) -> int:
        """Return nanoseconds since an entry was hit, or made."""
        result: int = self._c.swc_idle_time(self.handle, table, handle)
        return result

    def expire(self, table: int, handle: int, now: int) -> tuple[bool, int]:
        """Return whether an entry is idle by `now`, and when it can be next; NEVER without a timeout."""
        due = _words([0])
        out = self._c.swc_expire(self.handle, table, handle, now, due)
        return bool(out), due[0]

    def take_digests(self, size: int) -> bytes:
        """Return all samples that wait, each of `size` bytes."""
        if not self._c.swc_digests_wait(self.handle):
            return b""
        out = ctypes.create_string_buffer(size * self._c.swc_digest_room())
        count: int = self._c.swc_take_digests(self.handle, out)
        return out.raw[: count * size]

    def lost_digests(self) -> int:
        """Return how many samples found no room."""
        result: int = self._c.swc_lost_digests(self.handle)
        return result

    def set_crc(self, number: int, parameters: Sequence[int]) -> None:
        """Set polynomial, initial remainder, final mask and reflections of a custom CRC."""
        self._c.swc_set_crc(self.handle, number, _words(parameters))

    def assertion_failures(self, number: int) -> int:
        """Return how often an assertion has failed."""
        failed: int = self._c.swc_assertion(self.handle, number)
        return failed


class _Part(Protocol):
    """A part of a switch's control plane."""

    @property
    def _native(self) -> NativeSwitch: ...


_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S", bound=_Part)


def exclusive(method: Callable[Concatenate[_S, _P], _R]) -> Callable[Concatenate[_S, _P], _R]:
    """Let a method run only on an open switch, and never beside another exclusive one of the same switch."""

    def alone(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._native.control:
            _ = self._native.handle
            return method(self, *args, **kwargs)

    functools.update_wrapper(alone, method)
    return alone
