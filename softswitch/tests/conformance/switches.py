# SPDX-License-Identifier: Apache-2.0
"""The two switches that run the cases, behind what STF asks of one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from google.protobuf import text_format

from softp4.errors import ControlError
from softp4.p4rt.p4info import P4InfoIndex
from softp4.p4runtime.schema import p4info_pb2
from softp4.program.errors import ProgramError
from softp4.program.loader import load_program
from softp4.state.entry import Entry
from softp4.switch import Switch
from tests.conformance.cases import Compiled
from tests.harness.bmv2_stream import Bmv2Stream
from tests.harness.keys import Key, entry_key

Frames = list[tuple[int, bytes]]

_GAP_NS: Final = 1000  # between two frames


class RefusedError(Exception):
    """The switch does not take the program, or a command; the message says why."""


class Runner(Protocol):
    """A switch with a program."""

    def insert(self, table: str, key: Sequence[Key], action: str, args: Sequence[int], priority: int) -> None:
        """Add a table entry."""

    def set_default(self, table: str, action: str, args: Sequence[int]) -> None:
        """Set what a table does on a miss."""

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Make a multicast group of (port, replication id)."""

    def set_session(self, session: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Make a clone session of (port, replication id)."""

    def send(self, port: int, frame: bytes) -> Frames:
        """Let a frame come in; everything that leaves because of it, (port, frame), in order per port."""

    def close(self) -> None:
        """Stop it."""


class SoftRunner:
    """The soft switch, in this process. It must take p4c's P4Info, too."""

    def __init__(self, compiled: Compiled) -> None:
        try:
            program = load_program(compiled.program)
            if compiled.p4info is not None:
                info = text_format.Parse(compiled.p4info.read_text(), p4info_pb2.P4Info())
                P4InfoIndex(info).check_against(program)
            self._switch = Switch(program)
        except ProgramError as error:
            raise RefusedError(str(error).removeprefix("the soft switch does not support ")) from error
        self._now = 0

    def insert(self, table: str, key: Sequence[Key], action: str, args: Sequence[int], priority: int) -> None:
        entry = Entry(entry_key(key), action, tuple(args), priority)
        try:
            self._switch.table(table).insert(entry)
        except ControlError as error:
            raise RefusedError(str(error)) from error

    def set_default(self, table: str, action: str, args: Sequence[int]) -> None:
        try:
            self._switch.table(table).set_default(action, args)
        except ControlError as error:
            raise RefusedError(str(error)) from error

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._switch.multicast_groups.set(group, replicas)

    def set_session(self, session: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._switch.clone_sessions.set(session, replicas)

    def send(self, port: int, frame: bytes) -> Frames:
        self._now += _GAP_NS
        return self._switch.process(port, frame, self._now)

    def close(self) -> None:
        self._switch.close()


class Bmv2Runner:
    """`simple_switch_grpc`, a process for each case."""

    def __init__(self, compiled: Compiled) -> None:
        try:
            assert compiled.p4info is not None
            self._switch = Bmv2Stream(compiled.program, compiled.p4info)
        except RuntimeError as error:
            raise RefusedError(str(error)) from error
        self._control = self._switch.control

    def insert(self, table: str, key: Sequence[Key], action: str, args: Sequence[int], priority: int) -> None:
        try:
            self._control.insert(table, key, action, args, priority)
        except RuntimeError as error:
            raise RefusedError(str(error)) from error

    def set_default(self, table: str, action: str, args: Sequence[int]) -> None:
        try:
            self._control.set_default(table, action, args)
        except RuntimeError as error:
            raise RefusedError(str(error)) from error

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._control.set_group(group, replicas)

    def set_session(self, session: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._control.set_session(session, replicas)

    def send(self, port: int, frame: bytes) -> Frames:
        [left] = self._switch.process([(port, frame)])
        return left

    def close(self) -> None:
        self._switch.close()


SWITCHES: Final[Mapping[str, Callable[[Compiled], Runner]]] = {"soft": SoftRunner, "bmv2": Bmv2Runner}
