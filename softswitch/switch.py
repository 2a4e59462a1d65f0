# SPDX-License-Identifier: Apache-2.0
"""The soft switch: a v1model program compiled to native code, without I/O.

Example::

    switch = Switch(Path("router.json"))
    switch.insert_entry("MyIngress.routes", Entry((Lpm(0x0A000000, 8),), "MyIngress.forward", (2,)))
    for port, frame in switch.process(1, frame, now=0):
        ...
"""

import ctypes
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weir.softswitch.bindings import EMIT, Library
from weir.softswitch.codegen.layout import storage_bits
from weir.softswitch.codegen.value_sets import member_words
from weir.softswitch.compiler import load_switch_library
from weir.softswitch.dataplane.queueing import NEVER, QUEUE_PORTS, Queueing, QueueStatistics
from weir.softswitch.errors import Code, ControlError
from weir.softswitch.program.ir import CrcParameters
from weir.softswitch.program.loader import Program, load_program
from weir.softswitch.program.types import Register, ValueSet
from weir.softswitch.state.action_profiles import ProfileStore
from weir.softswitch.state.digests import DigestQueue
from weir.softswitch.state.entry import CloneSession, Count, Entry, Marked, Match, MeterConfig, Replica
from weir.softswitch.state.meters import MeterArrays
from weir.softswitch.state.profile_control import ActionProfiles
from weir.softswitch.state.table_store import TableStore
from weir.softswitch.state.value_sets import Member, checked_members, member_patterns
from weir.softswitch.tracing.events import Decoder, Event

MAX_FRAME = 2040
MAX_TRACED_PORT = 511
_TRACE_ROOM = 1 << 19  # words of records kept until they are read


@dataclass(frozen=True)
class Statistics:
    """What the switch as a whole has seen since it was made."""

    packets_in: int
    packets_out: int
    packets_dropped: int
    bytes_in: int
    bytes_out: int


class Switch:
    """A running program with its tables, counters, registers and replication state.

    All methods are thread-safe, also against a native driver that runs the data path through
    `handle` (see runtime/switch.h): control calls fall between its batches. A control call that
    cannot be done raises `ControlError` and changes nothing.

    Args:
        program: a loaded program, or the path of a BMv2 JSON file.
        device_id: carried for the control plane; the program does not see it.
        cpu_port: the port that leads to the control plane, or None. Frames for it come out of
            `process` like any other, controller header first.
        seed: what the program's random() starts from: the same seed, the same numbers.

    Attributes:
        meters: the indirect meters.
        digests: what packets told the control plane.

    Raises:
        ProgramError, UnsupportedConstruct: from `load_program`.
        native.build.NoCompilerError, native.build.CompileError: from the first use on a machine.
    """

    def __init__(
        self, program: Program | Path, *, device_id: int = 0, cpu_port: int | None = None, seed: int = 0
    ) -> None:
        self.program: Program = load_program(program) if isinstance(program, Path) else program
        self.device_id = device_id
        self.cpu_port = cpu_port
        self._library: Library = load_switch_library(self.program)
        address = self._library.create(seed)
        if not address:
            raise MemoryError(f"no memory for the registers and counters of {self.program.digest[:12]}")
        self._handle: int | None = address
        self._control = threading.RLock()
        self._sent: list[tuple[int, bytes]] = []
        self._emit = EMIT(self._take)
        self._decoder: Decoder | None = None
        self._crcs = {
            name: each.crc for name, each in self.program.calculations.items() if each.crc is not None
        }
        self._groups: dict[int, tuple[Replica, ...]] = {}
        self._sessions: dict[int, CloneSession] = {}
        stores = {
            name: ProfileStore(self._library, address, number, self.program, profile)
            for number, (name, profile) in enumerate(self.program.action_profiles.items())
        }
        self.profiles = ActionProfiles(stores, self._control, lambda: self.handle)
        self._value_sets: dict[str, tuple[Member, ...]] = {}
        self._tables = {
            name: TableStore(
                self._library, address, number, self.program, table, stores.get(table.profile or "")
            )
            for number, (name, table) in enumerate(self.program.tables.items())
        }
        self.meters = MeterArrays(self._library, lambda: self.handle, self.program)
        self.digests = DigestQueue(self._library, lambda: self.handle, self.program)

    # -- data path -------------------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """Return address of the C `sw_switch`, for native drivers; valid until `close`."""
        if self._handle is None:
            raise ValueError("the switch is closed")
        return self._handle

    def process(self, port: int, frame: bytes, now: int) -> list[tuple[int, bytes]]:
        """Run one frame through the program.

        Args:
            port: ingress port.
            frame: the frame as it came in, at most MAX_FRAME bytes (a longer one is dropped and counted).
            now: time in nanoseconds from any monotonic origin; the program sees microseconds.

        Returns:
            The frames that leave, as (egress port, frame), in order: first those that waited in queues and
            were due by `now`.
        """
        with self._control:
            self._library.process(self.handle, port, frame, now, self._emit)
            return self._taken()

    def step(self, now: int) -> list[tuple[int, bytes]]:
        """Run the frames that wait in queues and are due by `now` (see `process`) through egress.

        Each is run as of the time it was due, so that a late call changes neither rates nor timestamps.
        Returns what leaves, like `process`. Packets that go round without end and multiply are left due
        after a part of the work, for the next call.
        """
        with self._control:
            self._library.step(self.handle, now, self._emit)
            return self._taken()

    def deadline(self) -> int | None:
        """When the next frame that waits in a queue is due; None when none waits."""
        due = self._library.deadline(self.handle)
        return None if due == NEVER else due

    def _take(self, _: int | None, port: int, data: int, length: int) -> None:
        self._sent.append((port, ctypes.string_at(data, length)))

    def _taken(self) -> list[tuple[int, bytes]]:
        sent, self._sent = self._sent, []
        return sent

    def packet_out(self, frame: bytes, now: int) -> list[tuple[int, bytes]]:
        """Inject a frame of the control plane (controller header first) at the CPU port.

        Returns what leaves the switch, like `process`.
        """
        if self.cpu_port is None:
            raise ControlError(Code.FAILED_PRECONDITION, "packet-out needs a switch with a CPU port")
        return self.process(self.cpu_port, frame, now)

    # -- tracing -----------------------------------------------------------------------------------

    def start_trace(self, ports: Collection[int] | None = None, frames: int | None = None) -> None:
        """Records what happens to frames from now on, until `read_trace` takes it; the rest runs as ever.

        The first time, the program is compiled once more, with tracepoints. Its state stays. Traced frames
        take many times as long, and are numbered from 1.

        Args:
            ports: trace what comes in on these ports only.
            frames: trace so many frames only.
        """
        wanted = range(MAX_TRACED_PORT + 1) if ports is None else [p for p in ports if p <= MAX_TRACED_PORT]
        traced = load_switch_library(self.program, trace=True)
        limit = NEVER if frames is None else frames
        with self._control:
            self._library.start_trace(self.handle, traced, wanted, limit, _TRACE_ROOM)
            self._decoder = Decoder(self.program)

    def stop_trace(self) -> None:
        """Records no more. What was not read is lost. Harmless when nothing is traced."""
        with self._control:
            self._library.stop_trace(self.handle)

    def read_trace(self) -> tuple[list[Event], int]:
        """Take what was recorded, and how many packets were lost because nobody took it in time."""
        with self._control:
            if self._decoder is None:
                return [], 0
            records, lost = self._library.read_trace(self.handle, _TRACE_ROOM)
            return list(self._decoder.events(records)), lost

    def trace(self, port: int, frame: bytes, now: int) -> tuple[list[tuple[int, bytes]], list[Event]]:
        """`process`, and what happened on the way. Ends a trace that was started."""
        with self._control:
            self.start_trace()
            try:
                sent = self.process(port, frame, now)
                return sent, self.read_trace()[0]
            finally:
                self.stop_trace()

    def statistics(self) -> Statistics:
        """Return totals over all ports."""
        return Statistics(*self._library.statistics(self.handle))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While it lasts, no frame is processed, so that all changes in it take effect for the same frame.

        Frames wait in their ports meanwhile, and other threads' control calls wait, too.
        """
        with self._control:
            self._library.lock(self.handle)
            try:
                yield
            finally:
                self._library.unlock(self.handle)

    def close(self) -> None:
        """Free the switch. No driver may use `handle` any more. Closing twice is harmless."""
        with self._control:
            if self._handle is not None:
                self._library.destroy(self._handle)
                self._handle = None

    def __enter__(self) -> "Switch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- queues ------------------------------------------------------------------------------------

    def set_queueing(self, port: int, queueing: Queueing) -> None:
        """Limits a port (0 to 511), which then has eight queues; or changes its limits.

        What waits stays and leaves under the new limits, which count from the last `process` or `step`. Where
        a `PortLoop` drives the switch, use its own `set_queueing`: this does not wake it.
        """
        _check_port(port)
        with self._control:
            self._library.set_queueing(self.handle, port, queueing)

    def clear_queueing(self, port: int) -> None:
        """Lifts a port's limits: what waits there is due at once, and what follows waits no more."""
        _check_port(port)
        with self._control:
            self._library.set_queueing(self.handle, port, None)

    def queue_statistics(self, port: int) -> tuple[QueueStatistics, ...]:
        """Return what each of a port's eight queues has seen, by priority; zeros for a port without
        limits.
        """
        _check_port(port)
        with self._control:
            return self._library.queue_statistics(self.handle, port)

    # -- tables ----------------------------------------------------------------------------------

    def insert_entry(self, table: str, entry: Entry) -> None:
        """Add an entry. ALREADY_EXISTS for the same key (and priority), RESOURCE_EXHAUSTED when full."""
        with self._control:
            self._table(table).insert(entry)

    def modify_entry(self, table: str, entry: Entry) -> None:
        """Replace action and arguments of the entry with this key (and priority); counters go on."""
        with self._control:
            self._table(table).modify(entry)

    def delete_entry(self, table: str, key: tuple[Match, ...], priority: int = 0) -> None:
        """Remove the entry with this key (and priority)."""
        with self._control:
            self._table(table).delete(key, priority)

    def entries(self, table: str) -> list[Entry]:
        """Return all entries, constant ones included, in order of insertion."""
        with self._control:
            return self._table(table).entries()

    def entry(self, table: str, key: tuple[Match, ...], priority: int = 0) -> Entry:
        """Return the entry with this key (and priority); NOT_FOUND without one."""
        with self._control:
            return self._table(table).entry(key, priority)

    def set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        """Set what the table does on a miss. PERMISSION_DENIED when the program fixed it."""
        with self._control:
            self._table(table).set_default(action, tuple(args))

    def reset_default(self, table: str) -> None:
        """Put the program's own default action back."""
        with self._control:
            self._table(table).reset_default()

    def default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the default action and its arguments; None for a table that does nothing on a miss."""
        with self._control:
            return self._table(table).default()

    def entry_counter(self, table: str, key: tuple[Match, ...], priority: int = 0) -> Count:
        """Read the direct counter of an entry."""
        with self._control:
            return self._table(table).count(key, priority)

    def write_entry_counter(
        self, table: str, key: tuple[Match, ...], count: Count, priority: int = 0
    ) -> None:
        """Set the direct counter of an entry."""
        with self._control:
            self._table(table).set_count(key, count, priority)

    def set_entry_meter(
        self, table: str, key: tuple[Match, ...], config: MeterConfig | None, priority: int = 0
    ) -> None:
        """Configure the direct meter of an entry; None finds every packet green."""
        with self._control:
            self._table(table).set_meter(key, config, priority)

    def entry_marked(self, table: str, key: tuple[Match, ...], priority: int = 0) -> Marked:
        """Return what the direct meter of an entry has found green, yellow and red."""
        with self._control:
            return self._table(table).marked(key, priority)

    def clear_entry_marked(self, table: str, key: tuple[Match, ...], priority: int = 0) -> None:
        """Set these counters to zero."""
        with self._control:
            self._table(table).clear_marked(key, priority)

    def idle_time(self, table: str, key: tuple[Match, ...], priority: int = 0) -> int:
        """Return nanoseconds since an entry was hit, or made, as of the last time that the switch was
        told.
        """
        with self._control:
            return self._table(table).idle_time(key, priority)

    def expired(self, now: int) -> list[tuple[str, Entry]]:
        """Return the entries that no packet has hit for their `timeout_ns` by `now`, each with its table's
        name.

        Each is reported once; then its time begins again. Ask regularly: this also tells the switch the time.
        """
        with self._control:
            self._library.tell(self.handle, now)
            return [(name, entry) for name, table in self._tables.items() for entry in table.expired(now)]

    # -- parser value sets -----------------------------------------------------------------------

    def set_value_set(self, name: str, members: Sequence[Member]) -> None:
        """Replace all members of a parser value set: one match per element of the select key each.

        INVALID_ARGUMENT for a wrong match, ALREADY_EXISTS for the same member twice, RESOURCE_EXHAUSTED for
        more than the set holds.
        """
        with self._control:
            kind = self._value_set(name)
            wanted = checked_members(kind, members)
            number = list(self.program.value_sets).index(name)
            patterns = member_patterns(kind, wanted)
            self._library.set_value_set(self.handle, number, member_words(kind.bits), patterns)
            self._value_sets[name] = wanted

    def value_set(self, name: str) -> tuple[Member, ...]:
        """Return the members of a parser value set, in the order in which they were given."""
        with self._control:
            self._value_set(name)
            return self._value_sets.get(name, ())

    # -- replication -----------------------------------------------------------------------------

    def set_multicast_group(self, group: int, replicas: Sequence[Replica | tuple[int, int]]) -> None:
        """Make or replaces multicast group `group` (1 to 65535): copies leave in the order given."""
        if not 1 <= group <= 0xFFFF:
            raise ControlError(Code.INVALID_ARGUMENT, f"multicast group {group} is not in 1..65535")
        wanted = tuple(_replica(replica) for replica in replicas)
        with self._control:
            self._library.set_group(self.handle, group, wanted)
            self._groups[group] = wanted

    def delete_multicast_group(self, group: int) -> None:
        """Remove a multicast group."""
        with self._control:
            if group not in self._groups:
                raise ControlError(Code.NOT_FOUND, f"no multicast group {group}")
            self._library.clear_group(self.handle, group)
            del self._groups[group]

    def multicast_groups(self) -> dict[int, tuple[Replica, ...]]:
        """Return all multicast groups by number."""
        with self._control:
            return dict(self._groups)

    def set_clone_session(
        self, session: int, replicas: Sequence[Replica | tuple[int, int]], packet_length: int = 0
    ) -> None:
        """Make or replaces clone session `session` (0 to 32767).

        Args:
            session: what the program passes to clone().
            replicas: where copies go, in order.
            packet_length: bytes a copy keeps; 0 keeps all.
        """
        if not 0 <= session <= 0x7FFF:
            raise ControlError(Code.INVALID_ARGUMENT, f"clone session {session} is not in 0..32767")
        wanted = CloneSession(tuple(_replica(replica) for replica in replicas), packet_length)
        with self._control:
            self._library.set_session(self.handle, session, wanted.replicas, packet_length)
            self._sessions[session] = wanted

    def delete_clone_session(self, session: int) -> None:
        """Remove a clone session; what is cloned to it from then on is not copied."""
        with self._control:
            if session not in self._sessions:
                raise ControlError(Code.NOT_FOUND, f"no clone session {session}")
            self._library.clear_session(self.handle, session)
            del self._sessions[session]

    def clone_sessions(self) -> dict[int, CloneSession]:
        """Return all clone sessions by number."""
        with self._control:
            return dict(self._sessions)

    # -- counters and registers --------------------------------------------------------------------

    def read_counter(self, name: str, index: int) -> Count:
        """Read one cell of an indirect counter."""
        number = self._counter(name, index)
        return Count(*self._library.read_counter(self.handle, number, index))

    def write_counter(self, name: str, index: int, count: Count) -> None:
        """Set one cell of an indirect counter."""
        number = self._counter(name, index)
        self._library.write_counter(self.handle, number, index, count)

    def read_register(self, name: str, index: int) -> int:
        """Read one cell of a register."""
        number, register = self._register(name, index)
        return self._library.read_register(self.handle, number, index, storage_bits(register.bits) // 8)

    def write_register(self, name: str, index: int, value: int) -> None:
        """Set one cell of a register; `value` must fit its width."""
        number, register = self._register(name, index)
        if not 0 <= value < 1 << register.bits:
            raise ControlError(Code.OUT_OF_RANGE, f"{value} does not fit the {register.bits} bits of {name}")
        width = storage_bits(register.bits) // 8
        self._library.write_register(self.handle, number, index, value, width)

    # -- calculations and assertions -----------------------------------------------------------------

    def set_crc_parameters(self, calculation: str, parameters: CrcParameters) -> None:
        """Change a custom CRC (``crc16_custom`` and its like), as BMv2's Thrift interface does.

        Args:
            calculation: its name in the BMv2 JSON, such as ``calc_0``.
            parameters: what it computes from the next packet on.
        """
        found = self.program.calculations.get(calculation)
        if found is None:
            raise ControlError(Code.NOT_FOUND, f"the program has no calculation {calculation}")
        if found.crc is None:
            raise ControlError(Code.INVALID_ARGUMENT, f"{calculation} is no custom CRC")
        values = (parameters.polynomial, parameters.initial, parameters.final_xor)
        for value in values:
            if not 0 <= value < 1 << found.crc_bits:
                message = f"{calculation}: {value:#x} does not fit {found.crc_bits} bits"
                raise ControlError(Code.OUT_OF_RANGE, message)
        number = self.program.stateful_calculations.index(found)
        with self._control:
            reflections = (int(parameters.reflect_data), int(parameters.reflect_remainder))
            self._library.set_crc(self.handle, number, (*values, *reflections))
            self._crcs[calculation] = parameters

    def crc_parameters(self) -> dict[str, CrcParameters]:
        """Return what every custom CRC computes, by the calculation's name."""
        with self._control:
            return dict(self._crcs)

    def assertion_failures(self) -> dict[str, int]:
        """Return how often each assert and assume of the program has failed, by its place.

        A packet that fails one ends there: it is dropped, and counted as dropped, too.
        """
        with self._control:
            places = self.program.assertions
            failures = (self._library.assertion_failures(self.handle, i) for i in range(len(places)))
            return dict(zip(places, failures, strict=True))

    # -- helpers -----------------------------------------------------------------------------------

    def _table(self, name: str) -> TableStore:
        _ = self.handle
        try:
            return self._tables[name]
        except KeyError:
            raise ControlError(Code.NOT_FOUND, f"the program has no table {name}") from None

    def _value_set(self, name: str) -> ValueSet:
        _ = self.handle
        try:
            return self.program.value_sets[name]
        except KeyError:
            raise ControlError(Code.NOT_FOUND, f"the program has no parser value set {name}") from None

    def _counter(self, name: str, index: int) -> int:
        counter = self.program.counters.get(name)
        if counter is None or counter.table is not None:
            raise ControlError(Code.NOT_FOUND, f"the program has no indirect counter {name}")
        if not 0 <= index < counter.size:
            raise ControlError(
                Code.OUT_OF_RANGE, f"counter {name} has cells 0..{counter.size - 1}, not {index}"
            )
        return list(self.program.counters).index(name)

    def _register(self, name: str, index: int) -> tuple[int, Register]:
        register = self.program.registers.get(name)
        if register is None:
            raise ControlError(Code.NOT_FOUND, f"the program has no register {name}")
        if not 0 <= index < register.size:
            raise ControlError(
                Code.OUT_OF_RANGE, f"register {name} has cells 0..{register.size - 1}, not {index}"
            )
        return list(self.program.registers).index(name), register


def _check_port(port: int) -> None:
    if not 0 <= port < QUEUE_PORTS:
        raise ControlError(
            Code.INVALID_ARGUMENT, f"port {port} cannot have queues: ports are 0 to {QUEUE_PORTS - 1}"
        )


def _replica(value: Replica | tuple[int, int]) -> Replica:
    replica = value if isinstance(value, Replica) else Replica(*value)
    if not (0 <= replica.port < 1 << 32 and 0 <= replica.rid < 1 << 16):
        raise ControlError(Code.INVALID_ARGUMENT, f"{replica} needs a 32-bit port and a 16-bit rid")
    return replica
