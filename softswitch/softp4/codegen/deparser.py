# SPDX-License-Identifier: Apache-2.0
"""Deparser, checksums and other calculations to C."""

from collections.abc import Iterable, Iterator

from softp4.codegen.expressions import Compiler, literal, machine_bits
from softp4.codegen.headers import Bits, joined, store_bits, store_next, wide_bits
from softp4.codegen.layout import Layout
from softp4.codegen.statements import StatementWriter, word_assignment
from softp4.codegen.tracepoints import Tracepoints
from softp4.program.calculations import (
    Algorithm,
    Calculation,
    CalculationInput,
    InputConst,
    InputField,
    InputHeader,
)
from softp4.program.errors import UnsupportedConstruct
from softp4.program.ir import FieldRef
from softp4.program.types import Checksum, HeaderType


def deparse_function(layout: Layout, constant: set[str], trace: Tracepoints) -> str:
    """Return the C text of ``uint32_t deparse(p, m, out, before)``: writes the headers, returns their bytes.

    Args:
        layout: the layout.
        constant: headers that egress never changes. When `before` is what the last call returned, not
            UINT32_MAX, they are left as that call wrote them: right when the same headers are valid and
            only egress ran since.
        trace: the tracepoints.
    """
    lines = ["uint8_t *o = out;", "const int all = before == UINT32_MAX;"]
    order = layout.program.deparser
    last = max((at for at, name in enumerate(order) if name not in constant), default=-1)
    for at, name in enumerate(order):
        header = layout.program.headers[name]
        if header.metadata:
            raise UnsupportedConstruct(f"emitting metadata ({name})", "deparser")
        put = f"put_{layout.type_name(header.type)}(&{layout.header(name)}, o);"
        if name in constant:
            put = f"if (all) {put}"
        size = layout.header_bytes(header.type, layout.header(name))
        shown = trace.emitted(layout, name, size)
        lines.append(f"if ({layout.valid(name)}) {{ {put} o += {size};{shown} }}")
        if at == last:
            lines.append("if (!all) return before;")
    lines.append("return (uint32_t)(o - out);")
    body = "\n".join(f"    {line}" for line in lines)
    head = "SW_INLINE uint32_t deparse(const phv *p, const state *m, uint8_t *out, uint32_t before)"
    return f"{head} {{\n    (void)p, (void)m;\n{body}\n}}\n"


def lengths_change(layout: Layout, constant: set[str]) -> bool:
    """Return whether egress may change how long a header is, so that what follows it moves."""
    headers = layout.program.headers
    return any(headers[name].type.varbit is not None for name in set(layout.program.deparser) - constant)


def body_function(layout: Layout) -> str:
    """Return the C text of ``deparser_body(s, p, m)``: what comes before headers are written."""
    if not layout.program.deparser_body:
        return ""
    writer = StatementWriter(layout, Compiler(layout, (), "deparser"))
    lines = [line for statement in layout.program.deparser_body for line in writer.write(statement)]
    body = "\n".join(f"    {line}" for line in ["(void)s, (void)p, (void)m;", *lines])
    return f"SW_INLINE void deparser_body(sw_state *s, phv *p, state *m) {{\n{body}\n}}\n"


def deparsed_bytes(layout: Layout) -> int:
    """Return the most bytes `deparse` can write."""
    return sum(layout.program.headers[name].type.bits // 8 for name in layout.program.deparser)


def calculation_function(layout: Layout, number: int, calculation: Calculation) -> str:
    """Return the C text of ``uint64_t calculation_<number>(s, p, m)``.

    The input is laid out in a buffer, without the fields of headers that are not valid, then summed.
    """
    if _summable(layout, calculation):
        return _sum_function(layout, number, calculation)
    lines: list[str] = []
    most = sum(_input_bits(layout, each) for each in calculation.inputs)
    size = (most + 7) // 8
    payload = "SW_MAX_FRAME" if calculation.payload else "0"
    lines.append(f"uint8_t buffer[{size} + {payload} + 8];")
    lines.append("uint32_t at = 0;")
    runs = list(_runs(calculation.inputs))
    if not _any_varbit(layout, calculation) and all(
        sum(_input_bits(layout, each) for each in run) % 8 == 0 for _, run in runs
    ):
        for header, run in runs:
            stores = list(store_bits("(buffer + at)", 0, _bits(layout, run)))
            count = sum(_input_bits(layout, each) for each in run) // 8
            block = " ".join([*stores, f"at += {count};"])
            lines.append(f"if ({layout.valid(header)}) {{ {block} }}" if header else block)
    else:
        lines += ["uint32_t bits = 0;", "memset(buffer, 0, sizeof buffer);"]
        for header, run in runs:
            block = " ".join(store_next("buffer", "bits", each) for each in _bits(layout, run))
            lines.append(f"if ({layout.valid(header)}) {{ {block} }}" if header else block)
        lines.append("at = (bits + 7) / 8;")
    if calculation.payload:
        lines.append(
            "const uint32_t rest = m->payload_length < m->truncate ? m->payload_length : m->truncate;"
        )
        lines += ["memcpy(buffer + at, m->payload, rest);", "at += rest;"]
    lines.append(f"return sw_{calculation.algorithm.value}({_state(layout, calculation)}buffer, at);")
    body = "\n".join(f"    {line}" for line in lines)
    head = f"SW_INLINE uint64_t calculation_{number}(sw_state *s, const phv *p, const state *m)"
    return f"// {calculation.name}\n{head} {{\n    (void)s, (void)p, (void)m;\n{body}\n}}\n"


def _state(layout: Layout, calculation: Calculation) -> str:
    """Return the C text of the state of a calculation as first argument, if it has any."""
    if not calculation.algorithm.stateful:
        return ""
    return f"&s->calculations[{layout.program.stateful_calculations.index(calculation)}], "


def _summable(layout: Layout, calculation: Calculation) -> bool:
    """Return whether a calculation is an Internet checksum over fields that make up whole 16-bit words."""
    if calculation.algorithm is not Algorithm.CSUM16 or calculation.payload:
        return False
    if _any_varbit(layout, calculation):
        return False
    for _, run in _runs(calculation.inputs):
        group = 0
        for each in _bits(layout, run):
            group += each.bits
            if group > 128:
                return False
            if group % 16 == 0:
                group = 0
        if group:
            return False
    return True


def _sum_function(layout: Layout, number: int, calculation: Calculation) -> str:
    """Return the function without a buffer, which adds up the fields where they are (RFC 1071)."""
    lines = ["uint64_t sum = 0;"]
    for header, run in _runs(calculation.inputs):
        adds = " ".join(_word_sums(_bits(layout, run)))
        lines.append(f"if ({layout.valid(header)}) {{ {adds} }}" if header else adds)
    # A word and itself with its halves exchanged add up to their sum, with its carry, in the upper half.
    lines.append("const uint32_t half = (uint32_t)((sum + (sum << 32 | sum >> 32)) >> 32);")
    lines.append("return (uint16_t)~((half + (half << 16 | half >> 16)) >> 16);")
    body = "\n".join(f"    {line}" for line in lines)
    head = f"SW_INLINE uint64_t calculation_{number}(sw_state *s, const phv *p, const state *m)"
    return f"// {calculation.name}\n{head} {{\n    (void)s, (void)p, (void)m;\n{body}\n}}\n"


def _word_sums(fields: Iterator[Bits]) -> Iterator[str]:
    """Return C statements that add fields to `sum`; those that share 16-bit words are put together first."""
    group: list[Bits] = []
    for field in fields:
        group.append(field)
        width = sum(each.bits for each in group)
        if width % 16:
            continue
        kind = "uint32_t" if width <= 32 else "uint64_t" if width <= 64 else "sw_u128"
        parts = []
        below = width
        for each in group:
            below -= each.bits
            parts.append(f"({kind})({each.text}) << {below}")
        # 2^32 is 1 modulo 2^16 - 1: words of 32 bits can be added as they are
        value = " | ".join(parts)
        for shift in range(0, width, 32):
            yield f"sum += (uint32_t)(({value}) >> {shift});"
        group = []


def _any_varbit(layout: Layout, calculation: Calculation) -> bool:
    return any(bits.varbit for bits in _bits(layout, calculation.inputs))


def _input_bits(layout: Layout, each: CalculationInput) -> int:
    match each:
        case InputField(ref):
            return layout.field_type(ref).bits
        case InputConst(_, bits):
            return bits
        case InputHeader(name):
            return layout.program.headers[name].type.bits


def _runs(inputs: tuple[CalculationInput, ...]) -> Iterator[tuple[str | None, list[CalculationInput]]]:
    """Group inputs by the header whose validity decides about them (None for constants)."""
    current: str | None = None
    run: list[CalculationInput] = []
    for each in inputs:
        match each:
            case InputField(ref):
                header: str | None = ref.header
            case InputHeader(name):
                header = name
            case _:
                header = None
        if run and header != current:
            yield current, run
            run = []
        current = header
        run.append(each)
    if run:
        yield current, run


def _bits(layout: Layout, run: Iterable[CalculationInput]) -> Iterator[Bits]:
    """Return the fields and constants of a run, those that are neighbours in one machine word together."""
    return joined(_single_bits(layout, run))


def _single_bits(layout: Layout, run: Iterable[CalculationInput]) -> Iterator[Bits]:
    for each in run:
        match each:
            case InputField(ref):
                yield from _field_bits(layout, ref)
            case InputConst(value, bits):
                for low in range((bits - 1) // 128 * 128, -1, -128):
                    width = min(128, bits - low)
                    yield Bits(literal(value >> low & (1 << width) - 1, machine_bits(width)), width)
            case InputHeader(name):
                kind: HeaderType = layout.program.headers[name].type
                for field in kind.fields:
                    yield from _field_bits(layout, FieldRef(name, field.name))


def _field_bits(layout: Layout, ref: FieldRef) -> list[Bits]:
    slot = layout.slot(ref)
    if slot.varbit:
        return [Bits(slot.access, slot.bits, True)]
    whole = Bits(slot.access, slot.bits, word=slot.word, below=slot.below)
    return wide_bits(slot.access, slot.bits) if slot.bits > 128 else [whole]


def update_function(layout: Layout) -> str:
    """Return the C text of ``void update_checksums(s, p, m)``, run before deparsing."""
    lines = ["(void)s, (void)p, (void)m;"]
    for checksum in layout.program.checksums:
        if checksum.update:
            slot = layout.slot(checksum.target)
            mask = f" & 0x{(1 << slot.bits) - 1:x}ull" if slot.bits < 64 else ""
            update = word_assignment(layout, slot, f"{_call(layout, checksum)}{mask}")
            lines.append(_conditional(layout, checksum, update))
    body = "\n".join(f"    {line}" for line in lines)
    return f"SW_INLINE void update_checksums(sw_state *s, phv *p, state *m) {{\n{body}\n}}\n"


def verify_function(layout: Layout) -> str:
    """Return the C text of ``int checksums_wrong(s, p, m)``, run after parsing.

    BMv2 compares the lowest 64 bits.
    """
    lines = ["(void)s, (void)p, (void)m;", "int wrong = 0;"]
    for checksum in layout.program.checksums:
        if checksum.verify:
            slot = layout.slot(checksum.target)
            lowest = f"(uint64_t){slot.access}" if slot.bits > 64 else slot.access
            if slot.bits > 128:
                lowest = f"sw_load_lowest({slot.access}, 8)"
            test = f"wrong |= {lowest} != {_call(layout, checksum)};"
            inner = _conditional(layout, checksum, test)
            lines.append(f"if ({layout.valid(checksum.target.header)}) {{ {inner} }}")
    lines.append("return wrong;")
    body = "\n".join(f"    {line}" for line in lines)
    return f"SW_INLINE int checksums_wrong(sw_state *s, phv *p, state *m) {{\n{body}\n}}\n"


def _call(layout: Layout, checksum: Checksum) -> str:
    return f"calculation_{list(layout.program.calculations).index(checksum.calculation)}(s, p, m)"


def _conditional(layout: Layout, checksum: Checksum, action: str) -> str:
    if checksum.condition is None:
        return action
    condition = Compiler(layout, (), f"checksum {checksum.name}").boolean(checksum.condition)
    return f"if ({condition}) {{ {action} }}"
