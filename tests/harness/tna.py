# SPDX-License-Identifier: Apache-2.0
"""The program for Tofino as a test target: translated to v1model, on two soft switches.

It takes the entries that tests make for ``weir_v1model.p4``; the controller makes of them those that say the
same here.
"""

import functools
import hashlib
import itertools
import os
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from softp4.native.build import cache_folder
from softp4.p4runtime.names import Names
from softp4.program.loader import load_program
from softp4.program.types import Program
from softp4.state.entry import Entry, Exact, Match, Ternary
from softp4.state.table_store import TableStore
from softp4.switch import Switch
from tests.harness.keys import Count, Key
from tests.harness.keys import Ternary as GivenTernary
from tests.harness.target import EVENTS, Sent, Target
from tests.harness.tna_translation import MIRRORED, translate
from weir import p4src
from weir.controller.entries import Match as WantedMatch
from weir.controller.entries import TableEntry
from weir.controller.entries import Ternary as WantedTernary
from weir.controller.program import load_program as load_v1model
from weir.controller.tables import arp, tofino
from weir.controller.tofino import counterparts
from weir.controller.wiring import AGAIN_PORT, PIPE_PORTS
from weir.wire.definition import GROUP_LANES, V1MODEL_EVENTS

V1MODEL: Final = Names(load_v1model("weir_v1model").p4info)
SOURCE: Final = p4src.BUILD.parent / "weir_tna.p4"
_TM: Final = 7  # bytes of what ingress tells the traffic manager
CELLS: Final = 1 << 14  # of each register
_CUT: Final = 4  # ROLE_CUT
WITHOUT_LANES: Final = 14 + 64  # bytes of a frame, where mirrors of ports end
_BRIDGE: Final = 8  # bytes of what ingress tells egress


class NarrowTarget(Target):
    """A switch that runs the program for Tofino, by whatever means: entries and cells are the subclass's.

    lanes: of a packet of ADD, in the jobs that are installed. delays: what is to pass once more waits, in
    ``waiting``, until ``pass_again``.
    """

    shortest_frame = 0
    headroom = 0xFFFF
    forwards_what_it_cannot_parse = False
    guards_sources = raises_repeats = False

    def __init__(self, lanes: int = GROUP_LANES) -> None:
        self.lanes, self.lane_groups = lanes, lanes // GROUP_LANES
        self.delays = False
        self.waiting: list[tuple[int, bytes]] = []

    def send(self, port: int, frame: bytes) -> list[Sent]:
        sent = self._pass(port, frame)
        while self.waiting and not self.delays:
            sent += self.pass_again()
        return sorted(sent)

    def pass_again(self, which: int = 0) -> list[Sent]:
        """Return what comes out when one of those that wait, by default the first, passes once more."""
        return sorted(self._pass(*self.waiting.pop(which)))

    def _pass(self, port: int, frame: bytes) -> list[Sent]:
        sent = []
        for out in self.once(port, frame):
            if out.port % PIPE_PORTS == AGAIN_PORT:
                self.waiting.append((out.port, out.frame))
            else:
                sent.append(out)
        return sent

    @abstractmethod
    def once(self, port: int, frame: bytes) -> list[Sent]:
        """Put a frame into a port; return what leaves after one pass, also by the port for recirculation."""

    @abstractmethod
    def change(self, verb: str, entry: TableEntry) -> None:
        """Insert, modify or delete an entry of the program's own tables."""

    @abstractmethod
    def holds(self, entry: TableEntry) -> bool:
        """Return whether a table has this very entry."""

    @abstractmethod
    def zero(self, register: str, cell: int) -> None:
        """Zero one cell; of a register of pairs, both words."""

    def packet_out(self, port: int, frame: bytes) -> list[Sent]:
        raise NotImplementedError("the program for Tofino has no packet-out")

    def insert(
        self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = (), priority: int = 0
    ) -> None:
        there = counterparts(_as_the_controller_has_it(table, key, action, args, priority), self.lanes)
        for entry in sorted(there, key=lambda entry: entry.table == tofino.RANGES):
            self._put(entry)

    def _put(self, entry: TableEntry) -> None:
        """Insert an entry; ranges and audiences are told by each of a job's children."""
        if entry.table in (tofino.RANGES, tofino.AUDIENCES) and self.holds(entry):
            return
        self.change("INSERT", entry)
        if entry.table == tofino.RANGES:
            for name, cell in itertools.product(tofino.STAMPS, tofino.cells(entry, CELLS)):
                self.zero(name, cell)

    def modify(self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = ()) -> None:
        raise NotImplementedError(f"{table}: entries of the program for Tofino are not changed by tests")

    def set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        raise NotImplementedError(f"{table}: defaults of the program for Tofino are not changed by tests")

    def forget(self) -> None:
        """Forget what waits, and delay nothing any more."""
        self.waiting.clear()
        self.delays = False

    def answer_arp(self, ip: str, mac: str) -> None:
        """Let the switch answer for an address of its own."""
        self._put(arp.answer(ip, mac))

    def entry_counter(self, table: str, key: Sequence[Key]) -> Count:
        raise NotImplementedError("counters of entries are left out of the translation")


class TnaTarget(NarrowTarget):
    """The translated program: ingress on one switch, egress on another; multicast groups are this class's."""

    name = "tna"

    def __init__(self, lanes: int = GROUP_LANES) -> None:
        """Translate and compile the program, and load it."""
        super().__init__(lanes)
        self._ingress, self._egress = (Switch(program) for program in _translated())
        self._groups: dict[int, list[tuple[int, int]]] = {}

    @property
    def switches(self) -> tuple[Switch, Switch]:
        """Return the two soft switches."""
        return self._ingress, self._egress

    def once(self, port: int, frame: bytes) -> list[Sent]:
        sent: list[Sent] = []
        for _, told in self._ingress.process(port, frame, now=0):
            out, group = int.from_bytes(told[:2], "big"), int.from_bytes(told[2:4], "big")
            copies = self._groups.get(group, []) if group else [(out, 0)]
            queue = told[5].to_bytes(1, "big")
            for to, replica in copies:
                front = to.to_bytes(2, "big") + replica.to_bytes(2, "big") + queue + bytes(4)
                for where, out_frame in self._egress.process(0, front + told[_TM:], now=0):
                    sent += (
                        self._mirrored(front, out_frame) if where == MIRRORED else [Sent(where, out_frame)]
                    )
        return sent

    def _mirrored(self, front: bytes, frame: bytes) -> list[Sent]:
        """Cut what was mirrored, and let it pass egress once more, to the same port."""
        role = _CUT.to_bytes(1, "big") + bytes(_BRIDGE - 1)
        again = self._egress.process(0, front + role + frame[:WITHOUT_LANES], now=0)
        return [Sent(*out) for out in again]

    def change(self, verb: str, entry: TableEntry) -> None:
        table, made = self._table(entry), _made(entry)
        if verb == "INSERT":
            table.insert(made)
        elif verb == "MODIFY":
            table.modify(made)
        else:
            table.delete(made.key, made.priority)

    def zero(self, register: str, cell: int) -> None:
        stamp = f"Whole.weir.{register.partition('.')[2]}"
        for name in self._ingress.program.registers:
            if name == stamp or name.startswith(f"{stamp}_"):
                self._ingress.register(name).write(cell, 0)

    def holds(self, entry: TableEntry) -> bool:
        return _made(entry) in self._table(entry).entries()

    def _table(self, entry: TableEntry) -> TableStore:
        gress, _, table = entry.table.partition(".")
        return (self._egress if gress == "WeirEgress" else self._ingress).table(f"Whole.weir.{table}")

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._groups[group] = list(replicas)

    def counter(self, name: str, index: int) -> Count:
        if name != EVENTS or index in V1MODEL_EVENTS:
            return Count(0, 0)
        count = self._ingress.counter("Whole.weir.events").read(index)
        return Count(count.packets, count.bytes)

    def reset(self) -> None:
        self.forget()
        self._groups.clear()
        for switch in (self._ingress, self._egress):
            for name, table in switch.program.tables.items():
                if not table.immutable:
                    for entry in switch.table(name).entries():
                        switch.table(name).delete(entry.key, entry.priority)

    def close(self) -> None:
        self._ingress.close()
        self._egress.close()


def _as_the_controller_has_it(
    table: str, key: Sequence[Key], action: str, args: Sequence[int], priority: int
) -> TableEntry:
    known, control = V1MODEL.get("tables", table), table.rpartition(".")[0]
    act = V1MODEL.get("actions", action) or V1MODEL.get("actions", f"{control}.{action}")
    assert known is not None and act is not None, f"{table}, {action}"
    values: list[WantedMatch] = []
    for part in key:
        assert isinstance(part, int | GivenTernary)
        values.append(part if isinstance(part, int) else WantedTernary(part.value, part.mask))
    return TableEntry(
        known.preamble.name,
        tuple((field.name, value) for field, value in zip(known.match_fields, values, strict=True)),
        act.preamble.name,
        tuple((param.name, value) for param, value in zip(act.params, args, strict=True)),
        priority,
    )


def _made(entry: TableEntry) -> Entry:
    key = tuple(_match(value) for _, value in entry.match)
    action = f"Whole.weir.{entry.action.partition('.')[2]}"
    return Entry(key, action, tuple(int(value) for _, value in entry.params), entry.priority)


def _match(value: WantedMatch) -> Match:
    if isinstance(value, WantedTernary):
        return Ternary(value.value, value.mask)
    assert isinstance(value, int)
    return Exact(value)


@functools.cache
def _translated() -> list[Program]:
    """Return ingress and egress, translated and compiled."""
    with tempfile.TemporaryDirectory() as folder:
        return [load_program(program) for program in compile_translated(Path(folder))]


def compile_translated(folder: Path) -> tuple[Path, Path]:
    """Translate the program, and return what p4c makes of its ingress and its egress, in ``folder``."""
    made = []
    for name, text in zip(("ingress", "egress"), translate(SOURCE), strict=True):
        (folder / f"{name}.p4").write_text(text)
        program = folder / f"{name}.json"
        program.write_bytes(_compiled(folder / f"{name}.p4"))
        made.append(program)
    return made[0], made[1]


def _compiled(source: Path) -> bytes:
    """Return what p4c makes of a source: it takes seconds, so a cache keeps it by the source and the p4c."""
    version = subprocess.run(["p4c-bm2-ss", "--version"], capture_output=True, check=True).stdout
    digest = hashlib.sha256(version + source.read_bytes()).hexdigest()[:32]
    with cache_folder() as cache:
        kept, made = cache / f"p4c-{digest}.json", cache / f"p4c-{digest}-{os.getpid()}.json"
        if not kept.exists():
            command = ["p4c-bm2-ss", "-o", str(made), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made.replace(kept)
        return kept.read_bytes()
