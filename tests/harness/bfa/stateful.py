# SPDX-License-Identifier: Apache-2.0
"""A register with its stateful ALU: reads an entry, compares, writes it, and says one word, in one go."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.harness.bfa.assembly import Items, Section, Text, UnknownLineError, arguments
from tests.harness.bfa.containers import Names, Values, sliced
from tests.harness.bfa.crossbar import Crossbar

WORD: Final = (1 << 32) - 1
_INPUT: Final = 8  # the byte of the crossbar's group from which on the ALU takes its two words
_PREDICATE: Final = 4  # bit of the output from which on the predicate stands, less the shift

# Of both words, unsigned; how many of them there are.
_OPERATIONS: Final[dict[str, tuple[int, Callable[[int, int], int]]]] = {
    "alu_a": (1, lambda a, _: a),
    "add": (2, lambda a, b: a + b),
    "and": (2, lambda a, b: a & b),
    "or": (2, lambda a, b: a | b),
    "maxu": (2, max),
    "minu": (2, min),
}
_COMPARISONS: Final[dict[str, Callable[[int], bool]]] = {
    "equ": lambda total: total & WORD == 0,
    "neq": lambda total: total & WORD != 0,
    "grt.u": lambda total: total > 0,
    "lss.u": lambda total: total < 0,
}


@dataclass(frozen=True)
class _Words:
    """What an ALU sees: the entry's two words, and the packet's."""

    lo: int
    hi: int
    phv_lo: int
    phv_hi: int


_Read = Callable[[_Words], int]


@dataclass
class _Program:
    """One of an ALU's programs."""

    comparisons: dict[str, Callable[[_Words], bool]] = field(default_factory=dict)  # cmplo, cmphi
    writes: list[tuple[str, Callable[[dict[str, bool]], bool], _Read]] = field(default_factory=list)
    output: str | None = None


class Register:
    """One register. `cells` has the pairs of words that are not zero."""

    def __init__(self, section: Section, names: Names, stage: int) -> None:
        section.not_modelled("row", "logical_bus", "column", "maprams", "home_row")
        described = section.section("p4")
        sizes = section.section("format")
        if described is None or sizes is None:
            raise UnknownLineError(f"line {section.line}: a register needs a name, a size and a format")
        self.name = described.text("name").value
        self.size = int(described.text("size").value)
        described.done()
        # YAML takes "hi:32" for one word.
        keys = [key.value.replace(":", " ").split()[0] for _, key, _ in sizes.take()]
        if keys not in (["lo"], ["lo", "hi"]):
            raise UnknownLineError(f"line {sizes.line}: a register of one or two words was expected")
        self.bits = 32 * len(keys)
        self._shift = int(section.text("pred_shift").value) if "pred_shift" in section else None
        self._input = self._inputs(section, names, stage)
        self._programs: dict[str, _Program] = {}
        actions = section.section("actions")
        if actions is None:
            raise UnknownLineError(f"line {section.line}: a register without programs")
        for _, name, node in actions.each(Items, "instructions were expected"):
            self._programs[name.value] = self._program(node)
        section.done()
        self.cells: dict[int, tuple[int, int]] = {}

    def __contains__(self, program: str) -> bool:
        return program in self._programs

    def _inputs(self, section: Section, names: Names, stage: int) -> Callable[[Values], bytes]:
        crossbar = Crossbar(section.section("input_xbar"), names, stage)
        data, hashed = section.get("data_bytemask"), section.get("hash_bytemask")
        if isinstance(data, Text) and hashed is None:
            mask, raw = int(data.value), crossbar.raw(_INPUT, 8)
            return lambda values: bytes(b if mask >> i & 1 else 0 for i, b in enumerate(raw(values)))
        if isinstance(hashed, Text) and data is None:
            mask, function = int(hashed.value), crossbar.only_hash()
            return lambda values: bytes(
                b if mask >> i & 1 else 0
                for i, b in enumerate((function(values) & (1 << 64) - 1).to_bytes(8, "little"))
            )
        raise UnknownLineError(f"line {section.line}: an ALU takes bytes, or hash bits")

    def _program(self, instructions: Items) -> _Program:
        program = _Program()
        for text in instructions.texts():
            name, _, rest = text.value.partition(" ")
            operands = arguments(rest)
            if name in _COMPARISONS:
                self._compare(program, text, name, operands)
            elif name in _OPERATIONS:
                self._write(program, text, name, operands)
            elif name == "output" and len(operands) == 1 and program.output is None:
                program.output = operands[0]
                known = ("mem_lo", "mem_hi", "alu_lo", "alu_hi", "predicate")
                if operands[0] not in known or (operands[0] == "predicate" and self._shift is None):
                    text.refuse("unknown output")
            else:
                text.refuse("unknown instruction")
        return program

    def _compare(self, program: _Program, text: Text, name: str, operands: list[str]) -> None:
        where, *rest = operands
        if where not in ("lo", "hi") or f"cmp{where}" in program.comparisons:
            text.refuse("no such comparison, or a second one")
        outcome = _COMPARISONS[name]
        terms = [self._operand(text, term) for term in rest]
        program.comparisons[f"cmp{where}"] = lambda words: outcome(sum(term(words) for term in terms))

    def _write(self, program: _Program, text: Text, name: str, operands: list[str]) -> None:
        condition: Callable[[dict[str, bool]], bool] = lambda _: True  # noqa: E731
        if "cmp" in operands[0]:
            condition = _condition(text, operands.pop(0))
        count, operation = _OPERATIONS[name]
        where, *rest = operands
        if where not in ("lo", "hi") or len(rest) != count:
            text.refuse("a word to write and its operands were expected")
        terms = [self._operand(text, term) for term in rest]
        first, last = terms[0], terms[-1]
        program.writes.append(
            (where, condition, lambda words: operation(first(words) & WORD, last(words) & WORD) & WORD)
        )

    def _operand(self, text: Text, operand: str) -> _Read:
        if re.fullmatch(r"-?\d+", operand):
            constant = int(operand)
            return lambda _: constant
        sign = -1 if operand.startswith("-") else 1
        name, part = sliced(operand.removeprefix("-"))
        if name not in ("lo", "hi", "phv_lo", "phv_hi") or (name == "hi" and self.bits == 32):
            text.refuse(f"unknown operand {operand}")
        low, high = part or (0, 31)
        mask = (1 << high - low + 1) - 1
        return lambda words: sign * (getattr(words, name) >> low & mask)

    def run(self, name: str, address: int, values: Values) -> int:
        """Run a program at an address in bits; return the word that it says.

        Raises:
            UnknownLineError: the register has no such entry, or two instructions write one word.
        """
        index, rest = divmod(address, self.bits)
        if rest or index >= self.size:
            raise UnknownLineError(f"{self.name} has no entry at bit {address}")
        program = self._programs[name]
        data = self._input(values)
        low, high = self.cells.get(index, (0, 0))
        words = _Words(low, high, int.from_bytes(data[:4], "little"), int.from_bytes(data[4:], "little"))
        outcomes = {which: compare(words) for which, compare in program.comparisons.items()}
        after = {"lo": low, "hi": high}  # an ALU that no instruction moves passes on what it read
        written = set()
        for where, condition, value in program.writes:
            if condition(outcomes):
                if where in written:
                    raise UnknownLineError(f"{self.name}, {name}: two instructions write {where}")
                written.add(where)
                after[where] = value(words)
        self.cells[index] = (after["lo"], after["hi"])
        return self._said(program, words, outcomes, after)

    def _said(
        self, program: _Program, words: _Words, outcomes: dict[str, bool], after: dict[str, int]
    ) -> int:
        if program.output is None:
            return 0
        if program.output == "predicate":
            assert self._shift is not None
            which = outcomes.get("cmplo", False) + 2 * outcomes.get("cmphi", False)
            return 1 << which + _PREDICATE + self._shift
        kind, _, where = program.output.partition("_")
        return int(getattr(words, where)) if kind == "mem" else after[where]


def _condition(text: Text, expression: str) -> Callable[[dict[str, bool]], bool]:
    terms = []
    for term in expression.strip("()").split(" & "):
        match = re.fullmatch(r"(!?)(cmplo|cmphi)", term)
        if match is None:
            text.refuse(f"unknown predicate {expression}")
        terms.append((match[2], match[1] == ""))
    return lambda outcomes: all(outcomes.get(which, False) == wanted for which, wanted in terms)
