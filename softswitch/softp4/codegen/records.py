# SPDX-License-Identifier: Apache-2.0
"""Registers in memory: those that a packet uses at one index lie side by side, in an array of records.

P4 has no arrays of structs, so a program that keeps several values of one thing has a register for each, and
reads them all at the same index. As arrays of their own each would cost a packet a cache line and a pointer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from softp4.codegen.usage import inputs, walk
from softp4.codegen.widths import c_type, storage_bits
from softp4.program.ir import Expr, RegisterRead, RegisterRef, RegisterWrite, Statement
from softp4.program.types import Program, Register

_WIDEST: Final = 64  # bits of a cell that may share a record


@dataclass(frozen=True)
class Record:
    """Registers whose cells of one index make up a record, in the memory of the first, register `number`."""

    number: int
    registers: tuple[Register, ...]  # widest first, so that there are no holes

    @property
    def name(self) -> str:
        """Return the C type's name."""
        return f"record_{self.number}"

    def declaration(self) -> str:
        """Return the C text of the type."""
        members = (f"{c_type(storage_bits(each.bits))} {self.member(each)};" for each in self.registers)
        return f"typedef struct {{ {' '.join(members)} }} {self.name};\n"

    def member(self, register: Register) -> str:
        """Return the C member of a register."""
        return f"r{self.registers.index(register)}"


def records(program: Program) -> dict[str, Record]:
    """Return the record of each register that shares one with others.

    They have as many cells as one another, and some action uses each of them at the same index as another. A
    register that an action uses more than once stays an array, for loops over it (codegen/loops.py).
    """
    bodies = [action.body for action in program.actions.values()]
    lonely = {name for body in bodies for name in _used_twice(body)}
    together = {name: {name} for name, each in program.registers.items() if each.bits <= _WIDEST}
    for body in bodies:
        by_index: dict[Expr, str] = {}
        for name, index in _accesses(body):
            if name not in together or name in lonely:
                continue
            other = by_index.setdefault(index, name)
            if program.registers[other].size == program.registers[name].size:
                _join(together, other, name)
    return _numbered(program, together)


def _join(together: dict[str, set[str]], one: str, other: str) -> None:
    joined = together[one] | together[other]
    for name in joined:
        together[name] = joined


def _numbered(program: Program, together: Mapping[str, set[str]]) -> dict[str, Record]:
    found: dict[str, Record] = {}
    order = list(program.registers)
    for name in order:
        names = together.get(name, {name})
        if len(names) > 1 and name not in found:
            members = sorted(
                (program.registers[each] for each in order if each in names),
                key=lambda each: -storage_bits(each.bits),
            )
            record = Record(order.index(members[0].name), tuple(members))
            found.update(dict.fromkeys(names, record))
    return found


def _used_twice(body: Iterable[Statement]) -> Iterator[str]:
    """Yield the registers that an action reads or writes more than once."""
    for kind in (RegisterRead, RegisterWrite):
        counts = Counter(each.register for each in body if isinstance(each, kind))
        yield from (name for name, count in counts.items() if count > 1)


def _accesses(body: Iterable[Statement]) -> Iterator[tuple[str, Expr]]:
    for statement in body:
        if isinstance(statement, RegisterRead | RegisterWrite):
            yield statement.register, statement.index
        for expr in inputs(statement):
            yield from ((node.register, node.index) for node in walk(expr) if isinstance(node, RegisterRef))
