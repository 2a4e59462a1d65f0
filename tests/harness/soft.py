# SPDX-License-Identifier: Apache-2.0
"""The soft switch as a test target."""

from collections.abc import Sequence
from pathlib import Path

from softp4.runtime.read_programs import read_program
from softp4.state.entry import Entry
from softp4.switch import Switch
from tests.harness.keys import Count, Key, entry_key
from tests.harness.target import CPU_PORT, PROGRAM, Sent, Target


class SoftTarget(Target):
    """A `softp4.switch.Switch`; time stands still."""

    name = "soft"
    shortest_frame = 0
    headroom = 0xFFFF

    def __init__(self, program: Path = PROGRAM) -> None:
        self._program = read_program(program)
        self._switch = Switch(self._program, cpu_port=CPU_PORT)

    def send(self, port: int, frame: bytes) -> list[Sent]:
        return sorted(Sent(*sent) for sent in self._switch.process(port, frame, now=0))

    def packet_out(self, port: int, frame: bytes) -> list[Sent]:
        header = (port << 7).to_bytes(2, "big")
        return sorted(Sent(*sent) for sent in self._switch.packet_out(header + frame, now=0))

    def insert(
        self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = (), priority: int = 0
    ) -> None:
        self._switch.table(table).insert(Entry(entry_key(key), action, tuple(args), priority))

    def modify(self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = ()) -> None:
        self._switch.table(table).modify(Entry(entry_key(key), action, tuple(args)))

    def set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        self._switch.table(table).set_default(action, args)

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._switch.multicast_groups.set(group, replicas)

    def counter(self, name: str, index: int) -> Count:
        count = self._switch.counter(name).read(index)
        return Count(count.packets, count.bytes)

    def entry_counter(self, table: str, key: Sequence[Key]) -> Count:
        count = self._switch.table(table).count(entry_key(key))
        return Count(count.packets, count.bytes)

    def reset(self) -> None:
        for name, table in self._program.tables.items():
            for entry in self._switch.table(name).entries():
                self._switch.table(name).delete(entry.key, entry.priority)
            if not table.default_const:
                self._switch.table(name).reset_default()
        for group in self._switch.multicast_groups.all():
            self._switch.multicast_groups.delete(group)

    def close(self) -> None:
        self._switch.close()
