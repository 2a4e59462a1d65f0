# SPDX-License-Identifier: Apache-2.0
"""The soft switch: a v1model program compiled to native code, without I/O.

Example::

    switch = Switch(Path("router.json"))
    switch.table("MyIngress.routes").insert(Entry((Lpm(0x0A000000, 8),), "MyIngress.forward", (2,)))
    for port, frame in switch.process(1, frame, now=0):
        ...
"""

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from softp4.errors import Code, ControlError
from softp4.program.types import Program
from softp4.runtime.bindings import EMIT, NativeSwitch
from softp4.runtime.compiler import load_switch_library
from softp4.runtime.queueing import NEVER
from softp4.runtime.read_programs import read_program
from softp4.state.action_profiles import ProfileStore
from softp4.state.cells import CounterArray, RegisterArray
from softp4.state.crcs import CustomCrcs
from softp4.state.digests import DigestQueue
from softp4.state.entry import Entry
from softp4.state.meters import MeterArray
from softp4.state.queues import PortQueues
from softp4.state.replication import CloneSessions, MulticastGroups
from softp4.state.table_store import TableStore
from softp4.state.threads import Threads
from softp4.state.value_sets import ValueSetStore
from softp4.tracing.events import Event
from softp4.tracing.recorder import Recorder

MAX_FRAME = 4216

_T = TypeVar("_T")


@dataclass(frozen=True)
class Statistics:
    """Totals of a switch since it was made."""

    packets_in: int
    packets_out: int
    packets_dropped: int
    bytes_in: int
    bytes_out: int


class Switch:
    """A running program: frames go through `process`; what the program has is reached by name.

    `table`, `profile`, `counter`, `register`, `meter`, `value_set` and `queues` find one thing each, and
    raise ControlError NOT_FOUND without one. All methods, also of what they find, are thread-safe, even
    against a native driver that runs the data path through `handle` (see runtime/switch.h): control calls
    fall between its batches. A control call that cannot be done raises ControlError and changes nothing.

    Args:
        program: a loaded program, or the path of a BMv2 JSON file.
        device_id: carried for the control plane; the program does not see it.
        cpu_port: the port that leads to the control plane, or None. Frames for it come out of
            `process` like any other, controller header first.
        seed: what the program's random() starts from: the same seed, the same numbers.
        threads: how many may run frames that are handed over together, once `threads.share` finds by what.

    Attributes:
        multicast_groups: where copies of multicast packets go.
        clone_sessions: where clones go.
        digests: what packets told the control plane.
        crcs: the calculations whose parameters can be changed.
        recorder: what happens to frames on their way.
        threads: by what threads share frames.

    Raises:
        ProgramError, UnsupportedConstruct: from `read_program`.
        softp4.native.NoCompilerError, softp4.native.CompileError: from the first use on a machine.
    """

    def __init__(
        self,
        program: Program | Path,
        *,
        device_id: int = 0,
        cpu_port: int | None = None,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        self.program: Program = read_program(program) if isinstance(program, Path) else program
        self.device_id = device_id
        self.cpu_port = cpu_port
        self._native = native = NativeSwitch(load_switch_library(self.program), seed, threads)
        self._sent: list[tuple[int, bytes]] = []
        self._emit = EMIT(self._take)
        self.multicast_groups = MulticastGroups(native)
        self.clone_sessions = CloneSessions(native)
        self.digests = DigestQueue(native, self.program)
        self.crcs = CustomCrcs(native, self.program)
        self.recorder = Recorder(native, self.program)
        self._profiles = {
            name: ProfileStore(native, number, self.program, profile)
            for number, (name, profile) in enumerate(self.program.action_profiles.items())
        }
        self._tables = {
            name: TableStore(native, number, self.program, table, self._profiles.get(table.profile or ""))
            for number, (name, table) in enumerate(self.program.tables.items())
        }
        self.threads = Threads(native, self.program, self._tables, threads)
        self._counters = {
            name: CounterArray(native, number, counter)
            for number, (name, counter) in enumerate(self.program.counters.items())
            if counter.table is None
        }
        self._registers = {
            name: RegisterArray(native, number, register)
            for number, (name, register) in enumerate(self.program.registers.items())
        }
        self._meters = {
            name: MeterArray(native, number, meter)
            for number, (name, meter) in enumerate(self.program.meters.items())
            if meter.table is None
        }
        self._value_sets = {
            name: ValueSetStore(native, number, kind)
            for number, (name, kind) in enumerate(self.program.value_sets.items())
        }

    # -- what the program has ------------------------------------------------------------------------

    def table(self, name: str) -> TableStore:
        """Return a table."""
        return _find(self._tables, name, "table")

    def profile(self, name: str) -> ProfileStore:
        """Return an action profile."""
        return _find(self._profiles, name, "action profile")

    def counter(self, name: str) -> CounterArray:
        """Return an indirect counter."""
        return _find(self._counters, name, "indirect counter")

    def register(self, name: str) -> RegisterArray:
        """Return a register."""
        return _find(self._registers, name, "register")

    def meter(self, name: str) -> MeterArray:
        """Return an indirect meter array."""
        return _find(self._meters, name, "indirect meter")

    def value_set(self, name: str) -> ValueSetStore:
        """Return a parser value set."""
        return _find(self._value_sets, name, "parser value set")

    def queues(self, port: int) -> PortQueues:
        """Return the queues of a port (0 to 511). INVALID_ARGUMENT for another one."""
        return PortQueues(self._native, port)

    def set_port_up(self, port: int, up: bool) -> None:
        """Tell the action profiles whether a port works. All do until told otherwise."""
        with self._native.control:
            for profile in self._profiles.values():
                profile.set_port_up(port, up)

    def expired(self, now: int) -> list[tuple[str, Entry]]:
        """Return the entries that no packet has hit for their `timeout_ns` by `now`, each with its table.

        Each is reported once; then its time begins again. Ask regularly: this also tells the switch the time.
        """
        with self._native.control:
            self._native.tell(now)
            return [(name, entry) for name, table in self._tables.items() for entry in table.expired(now)]

    def assertion_failures(self) -> dict[str, int]:
        """Return how often each assert and assume of the program has failed, by its place.

        A packet that fails one ends there: it is dropped, and counted as dropped, too.
        """
        with self._native.control:
            places = self.program.assertions
            failures = (self._native.assertion_failures(number) for number in range(len(places)))
            return dict(zip(places, failures, strict=True))

    # -- data path -------------------------------------------------------------------------------

    @property
    def handle(self) -> int:
        """Address of the C `sw_switch`, for native drivers; valid until `close`."""
        return self._native.handle

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
        with self._native.control:
            self._native.process(port, frame, now, self._emit)
            return self._taken()

    def process_many(self, frames: Sequence[tuple[int, bytes]], now: int) -> list[tuple[int, bytes]]:
        """Run frames, each with its ingress port, as `process` would one after the other."""
        with self._native.control:
            self._native.process_many(frames, now, self._emit)
            return self._taken()

    def step(self, now: int) -> list[tuple[int, bytes]]:
        """Run the frames that wait in queues and are due by `now` (see `process`) through egress.

        Each is run as of the time it was due, so that a late call changes neither rates nor timestamps.
        Returns what leaves, like `process`. Packets that go round without end and multiply are left due
        after a part of the work, for the next call.
        """
        with self._native.control:
            self._native.step(now, self._emit)
            return self._taken()

    def deadline(self) -> int | None:
        """Return when the next frame that waits in a queue is due; None when none waits."""
        due = self._native.deadline()
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

    def trace(self, port: int, frame: bytes, now: int) -> tuple[list[tuple[int, bytes]], list[Event]]:
        """Run `process`, and return also what happened on the way. Ends a recording that was started."""
        with self._native.control:
            self.recorder.start()
            try:
                sent = self.process(port, frame, now)
                return sent, self.recorder.read()[0]
            finally:
                self.recorder.stop()

    def statistics(self) -> Statistics:
        """Return totals over all ports."""
        return Statistics(*self._native.statistics())

    def paused(self) -> AbstractContextManager[None]:
        """Keep frames from being processed, so that all changes meanwhile take effect for the same frame.

        Frames wait in their ports meanwhile, and other threads' control calls wait, too.
        """
        return self._native.paused()

    def close(self) -> None:
        """Free the switch. No driver may use `handle` any more. Closing twice is harmless."""
        self._native.close()

    def __enter__(self) -> "Switch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _find(found: Mapping[str, _T], name: str, kind: str) -> _T:
    try:
        return found[name]
    except KeyError:
        raise ControlError(Code.NOT_FOUND, f"the program has no {kind} {name}") from None
