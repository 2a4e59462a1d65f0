# SPDX-License-Identifier: Apache-2.0
"""Header types to C: reading one from packet bytes, writing one to packet bytes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from softp4.codegen.layout import Layout
from softp4.codegen.widths import c_type, storage_bits
from softp4.program.types import HeaderType


@dataclass(frozen=True)
class Bits:
    """`bits` bits to be written; `text` is a C expression of unsigned type with nothing above them.

    With `varbit` it is a varbit field, which `store_next` can write. `word` is the machine word (C text)
    whose bits they are, with `below` bits below them, when there is one.
    """

    text: str
    bits: int
    varbit: bool = False
    word: str | None = None
    below: int = 0


def joined(fields: Iterable[Bits]) -> Iterator[Bits]:
    """Put neighbours in one machine word together, to be taken from it at once."""
    for _, group in groupby(fields, lambda each: each.word):
        pending: list[Bits] = []
        for each in group:
            if each.word is None or (pending and pending[-1].below != each.below + each.bits):
                yield from _slice(pending)
                pending = []
            pending.append(each)
        yield from _slice(pending)


def _slice(neighbours: list[Bits]) -> list[Bits]:
    if len(neighbours) < 2:
        return neighbours
    word, below, bits = neighbours[-1].word, neighbours[-1].below, sum(each.bits for each in neighbours)
    mask = f"0x{(1 << bits) - 1:x}ull"
    return [Bits(f"({word} >> {below} & {mask})", bits, word=word, below=below)]


def load_field(base: str, offset: int, bits: int) -> str:
    """Return the C expression of `bits` (at most 128) bits, `offset` bits behind pointer `base`."""
    first, skip = divmod(offset, 8)
    count = (skip + bits + 7) // 8
    if count > 16:
        return f"sw_load_bits({base}, {offset}, {bits})"
    simple = {1: f"{base}[{first}]", 2: f"sw_load16({base} + {first})", 4: f"sw_load32({base} + {first})"}
    simple[8] = f"sw_load64({base} + {first})"
    kind = "uint32_t" if count <= 4 else "uint64_t" if count <= 8 else "sw_u128"
    text = simple.get(count) or f"({kind})sw_load({base} + {first}, {count})"
    below = 8 * count - skip - bits
    if below:
        text = f"{text} >> {below}"
    if skip:
        mask = (1 << bits) - 1
        if mask >> 64:
            return f"sw_load_bits({base}, {offset}, {bits})"
        text = f"({text}) & 0x{mask:x}{'u' if mask < 1 << 32 else 'ull'}"
    return text


def wide_bits(access: str, bits: int) -> list[Bits]:
    """Split a field of more than 128 bits into bytes, highest first."""
    top, *rest = (Bits(f"{access}[{i}]", 8) for i in range((bits + 7) // 8 - 1, -1, -1))
    return [Bits(top.text, bits % 8 or 8), *rest]


def store_bits(base: str, offset: int, fields: Iterable[Bits]) -> Iterator[str]:
    """Return C statements that write fields one after the other from `offset` bits behind `base` on.

    Fields that share a byte are put together first. Starts and ends on whole bytes.
    """
    group: list[Bits] = []
    width = 0
    for field in fields:
        group.append(field)
        width += field.bits
        if width % 8:
            continue
        if width <= 128:
            yield _store_group(base, offset // 8, group, width)
        else:
            at = offset
            for each in group:
                yield f"sw_store_bits({base}, {at}, {each.bits}, {each.text});"
                at += each.bits
        offset += width
        group, width = [], 0
    assert not group, "fields end within a byte"


def _store_group(base: str, byte: int, group: list[Bits], width: int) -> str:
    kind = "uint32_t" if width <= 32 else "uint64_t" if width <= 64 else "sw_u128"
    parts = []
    below = width
    for field in group:
        below -= field.bits
        parts.append(f"({kind})({field.text}) << {below}" if below else f"({kind})({field.text})")
    value = " | ".join(parts)
    if width == 8:
        return f"{base}[{byte}] = (uint8_t)({value});"
    if width in (16, 32, 64):
        return f"sw_store{width}({base} + {byte}, (uint{width}_t)({value}));"
    return f"sw_store({base} + {byte}, {width // 8}, {value});"


def store_next(base: str, offset: str, field: Bits) -> str:
    """Return C statements that write a field `offset` (a C variable) bits behind `base` and advance it."""
    if field.varbit:
        store = f"sw_store_bits({base}, {offset}, 8, {field.text}.b[i]);"
        return f"for (uint32_t i = 0; i < {field.text}.n; i++, {offset} += 8) {store}"
    return f"sw_store_bits({base}, {offset}, {field.bits}, {field.text}); {offset} += {field.bits};"


def header_functions(layout: Layout, kind: HeaderType) -> tuple[str, str]:
    """Return the C text of ``get_<type>(h, b)`` and of ``put_<type>(h, b)``: between struct and packet bytes.

    With a varbit field, ``get`` takes its length in bytes besides.
    """
    name = layout.type_name(kind)
    length = "" if kind.varbit is None else ", uint32_t n"
    get = (
        f"static inline void get_{name}({name} *restrict h, const uint8_t *restrict b{length}) {{\n"
        + "".join(f"    {line}\n" for line in _get(layout, kind))
        + "}\n"
    )
    put = (
        f"static inline void put_{name}(const {name} *restrict h, uint8_t *restrict b) {{\n"
        + "".join(f"    {line}\n" for line in _put(layout, kind))
        + "}\n"
    )
    return get, put


def _get(layout: Layout, kind: HeaderType) -> Iterator[str]:
    offset = 0
    for word in layout.words(kind):
        member = word.members[0]
        storage = storage_bits(member.bits)
        if member.varbit:
            yield f"h->{member.name}.n = n;"
            if offset % 8:
                text = load_field("b", offset, 8)
                yield f"for (uint32_t i = 0; i < n; i++, b++) h->{member.name}.b[i] = (uint8_t)({text});"
            else:
                yield f"memcpy(h->{member.name}.b, b + {offset // 8}, n);"
                yield "b += n;"
            continue
        if word.shared:
            yield f"h->{word.name} = {load_field('b', offset, word.bits)};"
        elif member.is_run and member.bits == 8:
            yield f"memcpy(h->{member.name}, b + {offset // 8}, {member.count});"
        elif member.is_run and offset % 8 == 0:
            yield f"sw_load_run{member.bits}(h->{member.name}, b + {offset // 8}, {member.count});"
        elif member.is_run:
            for i in range(member.count):
                text = load_field("b", offset + i * member.bits, member.bits)
                yield f"h->{member.name}[{i}] = (uint{member.bits}_t)({text});"
        elif storage > 128:
            yield f"sw_load_wide(h->{member.name}, b, {offset}, {member.bits});"
        else:
            yield f"h->{member.name} = ({c_type(storage)})({load_field('b', offset, member.bits)});"
        offset += word.bits


def _put(layout: Layout, kind: HeaderType) -> Iterator[str]:
    pending: list[Bits] = []
    start = offset = 0
    for word in layout.words(kind):
        member = word.members[0]
        storage = storage_bits(member.bits)
        if member.varbit:
            yield from _store_ragged("b", start, pending)
            yield from _put_varbit(f"h->{member.name}", offset)
            pending, start = [], offset
            continue
        if member.is_run and offset % 8 == 0:
            yield from _store_ragged("b", start, pending)
            if member.bits == 8:
                yield f"memcpy(b + {offset // 8}, h->{member.name}, {member.count});"
            else:
                yield f"sw_store_run{member.bits}(b + {offset // 8}, h->{member.name}, {member.count});"
            pending, start = [], offset + member.bits * member.count
        elif word.shared:
            pending.append(Bits(f"h->{word.name}", word.bits))
        elif member.is_run:
            pending += (Bits(f"h->{member.name}[{i}]", member.bits) for i in range(member.count))
        elif storage > 128:
            pending += wide_bits(f"h->{member.name}", member.bits)
        else:
            pending.append(Bits(f"h->{member.name}", member.bits))
        offset += word.bits
    yield from _store_ragged("b", start, pending)


def _store_ragged(base: str, offset: int, fields: list[Bits]) -> Iterator[str]:
    """Write fields as `store_bits` does, also where (beside a varbit) they do not fill whole bytes."""
    width = sum(field.bits for field in fields)
    if offset % 8 == 0 and width % 8 == 0:
        yield from store_bits(base, offset, fields)
        return
    for field in fields:
        yield f"sw_store_bits({base}, {offset}, {field.bits}, {field.text});"
        offset += field.bits


def _put_varbit(field: str, offset: int) -> Iterator[str]:
    """Write a varbit field and moves `b` on by its length, so that offsets behind it hold."""
    if offset % 8:
        store = f"sw_store_bits(b, {offset}, 8, {field}.b[i])"
        yield f"for (uint32_t i = 0; i < {field}.n; i++, b++) {store};"
    else:
        yield f"memcpy(b + {offset // 8}, {field}.b, {field}.n);"
        yield f"b += {field}.n;"
