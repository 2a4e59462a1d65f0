# SPDX-License-Identifier: Apache-2.0
"""The compiled program for Tofino as a test target: its assembly, executed."""

import gzip
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from tests.harness.bfa.chip import Chip
from tests.harness.bfa.pipeline import Gress, Program, load
from tests.harness.bfa.tables import Table
from tests.harness.keys import Count
from tests.harness.target import Sent
from tests.harness.tna import WITHOUT_LANES, NarrowTarget
from weir.controller.entries import TableEntry, Ternary
from weir.p4src.build_tna import ASSEMBLY
from weir.wire.definition import GROUP_LANES

_PORTS: Final = 512
_FIRST_SESSION: Final = 512  # of mirrors: that of port 0


@cache
def assembly(path: Path = ASSEMBLY) -> str:
    """Return the text that is checked in."""
    return gzip.decompress(path.read_bytes()).decode()


class BfaTarget(NarrowTarget):
    """The compiled program on a chip of Python."""

    name = "bfa"

    def __init__(self, text: str | None = None, lanes: int = GROUP_LANES) -> None:
        """Load an assembly; that which is checked in if there is none."""
        super().__init__(lanes)
        self.program: Program = load(assembly() if text is None else text)
        mirrors = {_FIRST_SESSION + port: (port, WITHOUT_LANES) for port in range(_PORTS)}
        self.chip = Chip(self.program, mirrors)

    def once(self, port: int, frame: bytes) -> list[Sent]:
        return [Sent(*out) for out in self.chip.send(port, frame)]

    def change(self, verb: str, entry: TableEntry) -> None:
        table = self._table(entry)
        if verb != "INSERT":
            held = table.find(_match(entry), _rank(entry))
            assert held is not None, f"{entry.table} has no such entry"
            table.entries.remove(held)
        if verb != "DELETE":
            params = {name: int(value) for name, value in entry.params}
            table.insert(_match(entry), entry.action, params, _rank(entry))

    def holds(self, entry: TableEntry) -> bool:
        held = self._table(entry).find(_match(entry), _rank(entry))
        return held is not None and held.action.name == entry.action

    def zero(self, register: str, cell: int) -> None:
        self.program.ingress.registers[register].cells.pop(cell, None)

    def _table(self, entry: TableEntry) -> Table:
        return self._gress(entry.table).tables[entry.table]

    def _gress(self, name: str) -> Gress:
        return self.program.egress if name.startswith("WeirEgress") else self.program.ingress

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self.chip.groups[group] = list(replicas)

    def counter(self, name: str, index: int) -> Count:
        """Read a counter; bytes are not counted."""
        return Count(self._gress(name).counters.get(name, {}).get(index, 0), 0)

    def reset(self) -> None:
        self.forget()
        self.chip.groups.clear()
        for gress in (self.program.ingress, self.program.egress):
            for table in gress.tables.values():
                if not table.static:
                    table.entries.clear()

    def close(self) -> None:
        """Nothing runs."""


def _match(entry: TableEntry) -> dict[str, tuple[int, int | None]]:
    match: dict[str, tuple[int, int | None]] = {}
    for name, value in entry.match:
        assert isinstance(value, int | Ternary)
        match[name] = (value, None) if isinstance(value, int) else (value.value, value.mask)
    return match


def _rank(entry: TableEntry) -> int:
    """Return the order of an entry: the controller's greatest priority wins, a table's least rank."""
    return -entry.priority
