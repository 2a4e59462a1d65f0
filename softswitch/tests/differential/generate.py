# SPDX-License-Identifier: Apache-2.0
"""Programs made at random: expressions over fields of many widths, each result in a field of its own."""

import random
from typing import Final

_WIDTHS: Final = (1, 3, 7, 8, 9, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 192, 256, 300)
_OPERANDS: Final = 10
_RESULTS: Final = 14
_MOST_BITS: Final = 3200  # of all results: BMv2 cannot add more than 512 bytes to a packet

_PROGRAM: Final = """#include <core.p4>
#include <v1model.p4>
header operands_t {{
{operands}
}}
header results_t {{
{results}
}}
struct headers_t {{ results_t r; operands_t o; }}
struct meta_t {{ {metadata} }}
parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{
    state start {{ packet.extract(hdr.o); transition accept; }}
}}
control Verify(inout headers_t hdr, inout meta_t meta) {{ apply {{}} }}
control Compute(inout headers_t hdr, inout meta_t meta) {{ apply {{}} }}
control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{
    apply {{
        sm.egress_spec = 1;
        hdr.r.setValid();
{statements}
    }}
}}
control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{ apply {{}} }}
control Deparse(packet_out packet, in headers_t hdr) {{ apply {{ packet.emit(hdr.r); packet.emit(hdr.o); }} }}
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
"""


def program(seed: int) -> str:
    """P4 text; the same seed makes the same."""
    return _Author(random.Random(seed)).text()


class _Author:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._operands = {f"o{number}": rng.choice(_WIDTHS) for number in range(_OPERANDS)}
        self._kept = {f"k{number}": rng.choice(_WIDTHS) for number in range(4)}

    def text(self) -> str:
        rng = self._rng
        statements = [
            f"        meta.{name} = {self._unsigned(bits, 2)};" for name, bits in self._kept.items()
        ]
        results: dict[str, int] = {}
        while len(results) < _RESULTS:
            name, bits = f"r{len(results)}", rng.choice(_WIDTHS)
            if sum(results.values()) + bits > _MOST_BITS:
                break
            results[name] = bits
            value = self._unsigned(bits, 3)
            if rng.random() < 0.25:
                other = self._unsigned(bits, 2)
                statements.append(f"        if ({self._boolean(2)}) {{ hdr.r.{name} = {value}; }} else {{")
                statements.append(f"            hdr.r.{name} = {other}; }}")
            elif bits > 8 and rng.random() < 0.2:
                low = rng.randrange(bits - 4)
                statements.append(f"        hdr.r.{name} = {value};")
                part = self._unsigned(4, 1)
                statements.append(f"        hdr.r.{name}[{low + 3}:{low}] = {part};")
            else:
                statements.append(f"        hdr.r.{name} = {value};")
        return _PROGRAM.format(
            operands=_fields(self._operands),
            results=_fields(results),
            metadata=" ".join(f"bit<{bits}> {name};" for name, bits in self._kept.items()),
            statements="\n".join(statements),
        )

    def _leaf(self, bits: int) -> str:
        """Something of that width that is no operation."""
        rng = self._rng
        if rng.random() < 0.2:
            value = rng.choice((0, 1, (1 << bits) - 1, rng.getrandbits(bits)))
            return f"{bits}w{value}"
        name, width = rng.choice([*self._operands.items(), *self._kept.items()])
        field = f"hdr.o.{name}" if name in self._operands else f"meta.{name}"
        if width == bits:
            return field
        if width > bits and rng.random() < 0.5:
            low = rng.randrange(width - bits + 1)
            return f"{field}[{low + bits - 1}:{low}]"
        return f"(bit<{bits}>){field}"

    def _unsigned(self, bits: int, depth: int) -> str:
        rng = self._rng
        if depth <= 0 or rng.random() < 0.1:
            return self._leaf(bits)
        left, right = self._unsigned(bits, depth - 1), self._unsigned(bits, depth - 1)
        match rng.randrange(13):
            case 0 | 1 | 2:
                return f"({left} {rng.choice('+-*&|^')} {right})"
            case 3:
                return f"({left} {rng.choice(('|+|', '|-|'))} {right})"
            case 4:
                return f"(~{left})" if rng.random() < 0.5 else f"(-{left})"
            case 5:
                return f"({left} {rng.choice(('<<', '>>'))} {self._leaf(8)})"
            case 6:
                return f"({left} {rng.choice(('<<', '>>'))} {rng.randrange(min(bits + 2, 257))})"
            case 7:
                return f"({self._boolean(depth - 1)} ? {left} : {right})"
            case 8 if bits > 1:
                low = rng.randrange(1, bits)
                return f"({self._unsigned(bits - low, depth - 1)} ++ {self._unsigned(low, depth - 1)})"
            case 9:
                return f"((bit<{bits}>){self._unsigned(rng.choice(_WIDTHS), depth - 1)})"
            case 10 if bits > 1:
                return f"((bit<{bits}>){self._signed(bits, depth - 1)})"
            case 11 if bits > 1:
                width = rng.choice([each for each in _WIDTHS if each > 1])
                narrow = f"(int<{width}>){self._unsigned(width, depth - 1)}"
                return f"((bit<{bits}>)(int<{bits}>)({narrow}))"
        return f"({left} ^ {right})"

    def _signed(self, bits: int, depth: int) -> str:
        rng = self._rng
        if depth <= 0:
            return f"((int<{bits}>){self._leaf(bits)})"
        left, right = self._signed(bits, depth - 1), self._signed(bits, depth - 1)
        match rng.randrange(4):
            case 0:
                return f"({left} {rng.choice(('+', '-', '*', '|+|', '|-|'))} {right})"
            case 1:
                return f"({left} >> {rng.choice((self._leaf(8), str(rng.randrange(min(bits + 2, 257)))))})"
            case 2:
                return f"({self._boolean(depth - 1)} ? {left} : {right})"
        return f"(-{left})"

    def _boolean(self, depth: int) -> str:
        rng = self._rng
        bits = rng.choice([each for each in _WIDTHS if each > 1])
        make = self._signed if rng.random() < 0.4 else self._unsigned
        left, right = make(bits, depth - 1), make(bits, depth - 1)
        compared = f"({left} {rng.choice(('==', '!=', '<', '<=', '>', '>='))} {right})"
        if depth > 0 and rng.random() < 0.3:
            return f"({compared} {rng.choice(('&&', '||'))} {self._boolean(depth - 1)})"
        return f"(!{compared})" if rng.random() < 0.2 else compared


def _fields(fields: dict[str, int]) -> str:
    """Return declarations, with padding to whole bytes."""
    lines = [f"    bit<{bits}> {name};" for name, bits in fields.items()]
    missing = -sum(fields.values()) % 8
    return "\n".join([*lines, f"    bit<{missing}> padding;"] if missing else lines)
