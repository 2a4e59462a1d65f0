# SPDX-License-Identifier: Apache-2.0
"""The C entry points of a compiled switch (softswitch/runtime/control.c) with Python types."""

import ctypes
import sys
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any

from weir.softswitch.dataplane.queueing import (
    Limits,
    QueueCounts,
    Queueing,
    QueueStatistics,
    queue_statistics,
)
from weir.softswitch.state.entry import Count, Replica

# void emit(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
EMIT = CFUNCTYPE(None, c_void_p, c_uint32, c_void_p, c_uint32)
_WORDS = POINTER(c_uint64)

_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "swc_create": (c_void_p, [c_uint64]),
    "swc_destroy": (None, [c_void_p]),
    "swc_lock": (None, [c_void_p]),
    "swc_unlock": (None, [c_void_p]),
    "swc_process": (None, [c_void_p, c_uint32, c_char_p, c_uint32, c_uint64, EMIT, c_void_p]),
    "swc_step": (None, [c_void_p, c_uint64, EMIT, c_void_p]),
    "swc_deadline": (c_uint64, [c_void_p]),
    "swc_set_queueing": (c_int, [c_void_p, c_uint32, c_void_p]),
    "swc_queue_stats": (None, [c_void_p, c_uint32, c_void_p]),
    "swc_stats": (None, [c_void_p, _WORDS]),
    "swc_start_trace": (c_int, [c_void_p, c_void_p, _WORDS, c_uint64, c_uint32]),
    "swc_stop_trace": (None, [c_void_p]),
    "swc_read_trace": (c_uint32, [c_void_p, c_void_p, _WORDS]),
    "swc_insert": (
        c_int64,
        [c_void_p, c_uint32, _WORDS, _WORDS, c_int32, c_uint32, _WORDS],
    ),
    "swc_modify": (None, [c_void_p, c_uint32, c_uint32, c_uint32, _WORDS]),
    "swc_remove": (None, [c_void_p, c_uint32, c_uint32]),
    "swc_default": (None, [c_void_p, c_uint32, c_uint32, _WORDS]),
    "swc_entry_count": (None, [c_void_p, c_uint32, c_uint32, _WORDS]),
    "swc_set_entry_count": (None, [c_void_p, c_uint32, c_uint32, _WORDS]),
    "swc_set_member": (c_int, [c_void_p, c_uint32, c_uint32, c_uint32, _WORDS]),
    "swc_remove_member": (None, [c_void_p, c_uint32, c_uint32]),
    "swc_set_member_group": (c_int, [c_void_p, c_uint32, c_uint32, c_uint32, POINTER(c_uint32)]),
    "swc_remove_member_group": (None, [c_void_p, c_uint32, c_uint32]),
    "swc_set_group": (c_int, [c_void_p, c_uint32, c_uint32, POINTER(c_uint32)]),
    "swc_clear_group": (None, [c_void_p, c_uint32]),
    "swc_set_session": (c_int, [c_void_p, c_uint32, c_uint32, POINTER(c_uint32), c_uint32]),
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


def _words(values: Sequence[int]) -> Any:
    return (c_uint64 * max(len(values), 1))(*values)


def _replicas(replicas: Sequence[Replica]) -> Any:
    flat = [number for replica in replicas for number in (replica.port, replica.rid)]
    return (c_uint32 * max(len(flat), 1))(*flat)


class Library:
    """A compiled program. Methods take the switch's address; each takes the switch's lock."""

    def __init__(self, library: ctypes.CDLL) -> None:
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
        self._c = library

    def create(self, seed: int) -> int | None:
        """Return a new switch with all tables empty and all state zero; None when memory ran out."""
        address: int | None = self._c.swc_create(seed)
        return address

    def destroy(self, switch: int) -> None:
        """Free a switch."""
        self._c.swc_destroy(switch)

    def lock(self, switch: int) -> None:
        """Stop the data path at the end of its batch; this thread's own calls go on."""
        self._c.swc_lock(switch)

    def unlock(self, switch: int) -> None:
        """Let the data path go on. By the thread that called `lock`."""
        self._c.swc_unlock(switch)

    def process(self, switch: int, port: int, frame: bytes, now: int, emit: Any) -> None:
        """Run a frame; calls `emit` for each that leaves."""
        self._c.swc_process(switch, port, frame, len(frame), now, emit, None)

    def step(self, switch: int, now: int, emit: Any) -> None:
        """Send what waits in queues and is due; calls `emit` for each frame that leaves."""
        self._c.swc_step(switch, now, emit, None)

    def deadline(self, switch: int) -> int:
        """When the next frame that waits is due; NEVER without one."""
        due: int = self._c.swc_deadline(switch)
        return due

    def set_queueing(self, switch: int, port: int, queueing: Queueing | None) -> None:
        """Limits a port, or no longer."""
        limits = None if queueing is None else ctypes.byref(Limits.of(queueing))
        if self._c.swc_set_queueing(switch, port, limits):
            raise MemoryError(f"no memory for the queues of port {port}")

    def queue_statistics(self, switch: int, port: int) -> tuple[QueueStatistics, ...]:
        """Return what each queue of a port has seen."""
        counts = QueueCounts()
        self._c.swc_queue_stats(switch, port, counts)
        return queue_statistics(counts)

    def start_trace(
        self, switch: int, traced: "Library", ports: Sequence[int], frames: int, room: int
    ) -> None:
        """Trace the next `frames` frames of `ports`, by the library that has the tracepoints."""
        bits = [sum(1 << port % 64 for port in ports if port // 64 == word) for word in range(8)]
        program = ctypes.addressof(ctypes.c_char.in_dll(traced._c, "sw_generated"))
        if self._c.swc_start_trace(switch, program, _words(bits), frames, room):
            raise MemoryError(f"no memory for a trace of {8 * room} bytes")

    def stop_trace(self, switch: int) -> None:
        """Trace no more; what was not read is lost."""
        self._c.swc_stop_trace(switch)

    def read_trace(self, switch: int, room: int) -> tuple[bytes, int]:
        """Take the records, and how many blocks were lost."""
        words, lost = (c_uint64 * room)(), _words([0])
        used = self._c.swc_read_trace(switch, words, lost)
        return bytes(memoryview(words).cast("B")[: 8 * used]), lost[0]

    def statistics(self, switch: int) -> tuple[int, int, int, int, int]:
        """Return packets in, out, dropped; bytes in, out."""
        out = _words([0] * 5)
        self._c.swc_stats(switch, out)
        return out[0], out[1], out[2], out[3], out[4]

    def insert(
        self,
        switch: int,
        table: int,
        key: Sequence[int],
        check: Sequence[int],
        priority: int,
        action: int,
        args: Sequence[int],
    ) -> int:
        """Add an entry (see runtime/table.h); returns its handle, or -1 when memory ran out."""
        handle: int = self._c.swc_insert(
            switch, table, _words(key), _words(check), priority, action, _words(args)
        )
        return handle

    def modify(self, switch: int, table: int, handle: int, action: int, args: Sequence[int]) -> None:
        """Replace an entry's action."""
        self._c.swc_modify(switch, table, handle, action, _words(args))

    def remove(self, switch: int, table: int, handle: int) -> None:
        """Remove an entry."""
        self._c.swc_remove(switch, table, handle)

    def set_default(self, switch: int, table: int, action: int, args: Sequence[int]) -> None:
        """Set what a miss does."""
        self._c.swc_default(switch, table, action, _words(args))

    def entry_count(self, switch: int, table: int, handle: int) -> tuple[int, int]:
        """Return packets and bytes an entry has matched."""
        out = _words([0, 0])
        self._c.swc_entry_count(switch, table, handle, out)
        return out[0], out[1]

    def set_entry_count(self, switch: int, table: int, handle: int, count: Count) -> None:
        """Set an entry's counter."""
        self._c.swc_set_entry_count(switch, table, handle, _words([count.packets, count.bytes]))

    def set_member(self, switch: int, profile: int, handle: int, action: int, args: Sequence[int]) -> None:
        """Make a member of an action profile, or replaces its action."""
        if self._c.swc_set_member(switch, profile, handle, action, _words(args)):
            raise MemoryError("no memory for a member of an action profile")

    def remove_member(self, switch: int, profile: int, handle: int) -> None:
        """Remove a member to which nothing refers."""
        self._c.swc_remove_member(switch, profile, handle)

    def set_member_group(self, switch: int, profile: int, handle: int, members: Sequence[int]) -> None:
        """Make a group of members, or replaces them; in the order in which a hash counts them."""
        handles = (c_uint32 * max(len(members), 1))(*members)
        if self._c.swc_set_member_group(switch, profile, handle, len(members), handles):
            raise MemoryError("no memory for a group of an action profile")

    def remove_member_group(self, switch: int, profile: int, handle: int) -> None:
        """Remove a group to which nothing refers."""
        self._c.swc_remove_member_group(switch, profile, handle)

    def set_group(self, switch: int, group: int, replicas: Sequence[Replica]) -> None:
        """Make or replaces a multicast group."""
        if self._c.swc_set_group(switch, group, len(replicas), _replicas(replicas)):
            raise MemoryError(f"no memory for multicast group {group}")

    def clear_group(self, switch: int, group: int) -> None:
        """Remove a multicast group."""
        self._c.swc_clear_group(switch, group)

    def set_session(self, switch: int, session: int, replicas: Sequence[Replica], length: int) -> None:
        """Make or replaces a clone session."""
        if self._c.swc_set_session(switch, session, len(replicas), _replicas(replicas), length):
            raise MemoryError(f"no memory for clone session {session}")

    def clear_session(self, switch: int, session: int) -> None:
        """Remove a clone session."""
        self._c.swc_clear_session(switch, session)

    def set_value_set(self, switch: int, number: int, words: int, patterns: Sequence[int]) -> None:
        """Replace the members of a value set, given as values and masks of `words` words each."""
        count = len(patterns) // (2 * words)
        if self._c.swc_set_value_set(switch, number, count, words, _words(patterns)):
            raise MemoryError(f"no memory for a value set of {count} patterns")

    def read_counter(self, switch: int, counter: int, index: int) -> tuple[int, int]:
        """Return packets and bytes of a counter cell."""
        out = _words([0, 0])
        self._c.swc_counter(switch, counter, index, out)
        return out[0], out[1]

    def write_counter(self, switch: int, counter: int, index: int, count: Count) -> None:
        """Set a counter cell."""
        self._c.swc_set_counter(switch, counter, index, _words([count.packets, count.bytes]))

    def read_register(self, switch: int, register: int, index: int, width: int) -> int:
        """Return a register cell stored in `width` bytes."""
        out = ctypes.create_string_buffer(width)
        self._c.swc_register(switch, register, index, out)
        return int.from_bytes(out.raw, sys.byteorder)

    def write_register(self, switch: int, register: int, index: int, value: int, width: int) -> None:
        """Set a register cell stored in `width` bytes."""
        self._c.swc_set_register(switch, register, index, value.to_bytes(width, sys.byteorder))

    # -- meters, idle times and digests --------------------------------------------------------------

    def set_meters(self, switch: int, array: int, first: int, count: int, config: Sequence[int]) -> None:
        """Configure meters of an array; `config` is a C sw_meter_config."""
        self._c.swc_set_meters(switch, array, first, count, _words(config))

    def meter(self, switch: int, array: int, index: int) -> tuple[list[int], list[int]]:
        """Return a meter's C sw_meter_config, and packets and bytes by colour."""
        config, marked = _words([0] * 5), _words([0] * 6)
        self._c.swc_meter(switch, array, index, config, marked)
        return list(config), list(marked)

    def clear_marked(self, switch: int, array: int, first: int, count: int) -> None:
        """Set the counters of meters of an array to zero."""
        self._c.swc_clear_marked(switch, array, first, count)

    def set_entry_meter(self, switch: int, table: int, handle: int, config: Sequence[int]) -> None:
        """Configure an entry's meter."""
        self._c.swc_set_entry_meter(switch, table, handle, _words(config))

    def entry_marked(self, switch: int, table: int, handle: int) -> list[int]:
        """Return packets and bytes of an entry's meter by colour."""
        marked = _words([0] * 6)
        self._c.swc_entry_marked(switch, table, handle, marked)
        return list(marked)

    def clear_entry_marked(self, switch: int, table: int, handle: int) -> None:
        """Set the counters of an entry's meter to zero."""
        self._c.swc_clear_entry_marked(switch, table, handle)

    def tell(self, switch: int, now: int) -> None:
        """Tell the switch the time."""
        self._c.swc_tell(switch, now)

    def begin_idle(self, switch: int, table: int, handle: int) -> None:
        """Start a new entry's timer."""
        self._c.swc_begin_idle(switch, table, handle)

    def set_timeout(self, switch: int, table: int, handle: int, timeout_ns: int) -> None:
        """Set after how long an entry is idle; 0 for never."""
        self._c.swc_set_timeout(switch, table, handle, timeout_ns)

    def idle_time(self, switch: int, table: int, handle: int) -> int:
        """Return nanoseconds since an entry was hit, or made."""
        result: int = self._c.swc_idle_time(switch, table, handle)
        return result

    def expire(self, switch: int, table: int, handle: int, now: int) -> tuple[bool, int]:
        """Return whether an entry is idle by `now`, and when it can be next; NEVER without a timeout."""
        due = _words([0])
        out = self._c.swc_expire(switch, table, handle, now, due)
        return bool(out), due[0]

    def take_digests(self, switch: int, size: int) -> bytes:
        """Return all samples that wait, each of `size` bytes."""
        if not self._c.swc_digests_wait(switch):
            return b""
        out = ctypes.create_string_buffer(size * self._c.swc_digest_room())
        count: int = self._c.swc_take_digests(switch, out)
        return out.raw[: count * size]

    def lost_digests(self, switch: int) -> int:
        """Samples that found no room."""
        result: int = self._c.swc_lost_digests(switch)
        return result

    def set_crc(self, switch: int, number: int, parameters: Sequence[int]) -> None:
        """Set polynomial, initial remainder, final mask and reflections of a custom CRC."""
        self._c.swc_set_crc(switch, number, _words(parameters))

    def assertion_failures(self, switch: int, number: int) -> int:
        """Return how often an assertion has failed."""
        failed: int = self._c.swc_assertion(switch, number)
        return failed
