# SPDX-License-Identifier: Apache-2.0
"""Gateways: up to four rows over a few bits of the packet that decide whether a table runs."""

from dataclasses import dataclass

from tests.harness.bfa.assembly import Section, Text, UnknownLineError, bounds, pattern
from tests.harness.bfa.containers import Names, Slice, Values
from tests.harness.bfa.crossbar import Crossbar


@dataclass(frozen=True)
class Gateway:
    """Rows that decide whether the table runs, or else which one is next."""

    inputs: tuple[tuple[int, Slice], ...]  # bit of the key, what is there
    xored: tuple[tuple[int, Slice], ...]
    rows: tuple[tuple[int, int, str | None], ...]  # value, mask, next: None if the table runs
    miss: str | None
    # An entry, where the rows name a table: values, and their bits.
    payload: dict[str, tuple[int, int]]

    def next(self, values: Values) -> str | None:
        """Return the table that is next, or None if this one runs."""
        key = 0
        for at, place in self.inputs:
            key |= place.read(values) << at
        for at, place in self.xored:
            key ^= place.read(values) << at
        for value, mask, next in self.rows:
            if key & mask == value & mask:
                return next
        return self.miss


def gateway(section: Section, names: Names, stage: int) -> Gateway:
    """Read a gateway."""
    # The condition is the source's, as text, for debuggers.
    section.not_modelled("name", "row", "bus", "unit", "condition", "payload_row", "payload_unit")
    crossbar = Crossbar(section.section("input_xbar"), names, stage)
    inputs, xored = (_keys(section.section(key), names, stage) for key in ("match", "xor"))
    there = crossbar.bits()
    if any(not place.bits() <= there for _, place in (*inputs, *xored)):
        raise UnknownLineError(f"line {section.line}: a gateway compares what is not on its crossbar")
    compared = sum((1 << place.width) - 1 << at for at, place in inputs)
    shift = min((at for at, _ in inputs), default=0)
    miss_node = section.get("miss")
    if miss_node is None:
        raise UnknownLineError(f"line {section.line}: a gateway without a miss")
    rows = []
    for _, key, node in section.take(r"0[bx].*"):
        value, mask, _ = pattern(key)
        if value << shift & ~compared:
            key.refuse("compares more than the gateway sees")
        rows.append((value << shift, mask << shift & compared, _outcome(node)))
    payload = _payload(section)
    section.done()
    return Gateway(inputs, xored, tuple(rows), _outcome(miss_node), payload)


def _payload(section: Section) -> dict[str, tuple[int, int]]:
    word, layout = section.get("payload"), section.section("format")
    if not isinstance(word, Text) or layout is None:
        if word is not None or layout is not None:
            raise UnknownLineError(f"line {section.line}: a payload has a number and a format")
        return {}
    value = int(word.value, 16)
    fields = {}
    for _, name, node in layout.each(Text, "bits were expected"):
        low, high = bounds(node.value)
        fields[name.value] = value >> low & (1 << high - low + 1) - 1, high - low + 1
    return fields


def _keys(section: Section | None, names: Names, stage: int) -> tuple[tuple[int, Slice], ...]:
    found = []
    if section is not None:
        for match, _, node in section.each(Text, "a container was expected", r"(\d+)"):
            found.append((int(match[1]), names.slice(node, stage)))
        section.done()
    return tuple(found)


def _outcome(node: object) -> str | None:
    if isinstance(node, Text):
        return node.value
    if not isinstance(node, Section):
        raise UnknownLineError("a gateway's row says whether the table runs, or which is next")
    runs, next = node.get("run_table"), node.get("next")
    node.done()
    if isinstance(runs, Text) and runs.value == "true" and next is None:
        return None
    if isinstance(next, Text) and runs is None:
        return next.value
    raise UnknownLineError(f"line {node.line}: a gateway's row runs the table or names the next one")
