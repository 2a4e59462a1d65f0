# SPDX-License-Identifier: Apache-2.0
"""Layout of a packet in the generated C: two structs of plain fields.

`state` is a local variable of the packet's pass, reached through ``m``: metadata (only the fields the
program uses) and validity, one bit per header. All code that touches it is inlined into one function, so
that the compiler takes it apart into registers and removes what nobody needs; a replica's copy of it costs
what its egress changes. Where a call is not inlined, all of it goes to memory: right, but slower.

`phv` lies in memory, reached through ``p``: the headers. Runs of equal fields are arrays, so that loops
over them can be vector code; other fields that make up a machine word are bit-fields of one, so that parser,
deparser and checksums take them at once. Stack elements lie next to each other, so that a run-time index is a
C index.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from softp4.codegen.loose import loose_registers
from softp4.codegen.members import Member, Word, members, words
from softp4.codegen.records import records
from softp4.codegen.widths import c_type, storage_bits
from softp4.program.ir import FieldRef
from softp4.program.types import FieldType, HeaderType, Program

_LINE_BITS: Final = 512  # of a cache line: runs as long as this begin with one
LOCAL: Final = "$local"  # header name of action-local temporaries (see codegen.locals)


@dataclass(frozen=True)
class Slot:
    """A field in C. `array` is the C array it is element `index` of, when it is in a run.

    `word` is the machine word it is bits of, when it shares one, with `below` bits below it. A varbit field
    is a struct: `n` bytes of `b`, most significant first.
    """

    access: str
    bits: int
    signed: bool
    array: str | None = None
    index: int = 0
    varbit: bool = False
    word: str | None = None
    below: int = 0

    @property
    def storage(self) -> int:
        """Return width of the C type in bits."""
        return storage_bits(self.bits)


def is_temporary(ref: object) -> bool:
    """Return whether a destination is a C variable of an action (not, as in loops, other C text)."""
    return isinstance(ref, FieldRef) and ref.header == LOCAL and ref.field.isidentifier()


class Names:
    """C identifiers for P4 names, each P4 name getting its own."""

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}
        self._used: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._taken:
            stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "x"
            unique, number = stem, 1
            while unique in self._used:
                number += 1
                unique = f"{stem}_{number}"
            self._used.add(unique)
            self._taken[name] = unique
        return self._taken[name]


class Layout:
    """The C layout of a program's packet state.

    Args:
        program: the program.
        used: the metadata fields to keep.
    """

    def __init__(self, program: Program, used: Collection[FieldRef]) -> None:
        self.program = program
        self.records = records(program)
        self.loose = loose_registers(program)
        self._names = Names()
        self._type_names = Names()
        self._used = used
        self._members: dict[str, list[Member]] = {}
        self._words: dict[str, list[Word]] = {}
        self._locals: dict[str, FieldType] = {}
        stacked = {name: stack for stack in program.stacks.values() for name in stack.headers}
        self.header_index: dict[str, int] = {}
        following = 0
        for name, header in program.headers.items():
            if header.metadata or name in self.header_index:
                continue
            group = stacked[name].headers if name in stacked else (name,)
            if following // 64 != (following + len(group) - 1) // 64:
                following += -following % 64  # the bits of a stack lie in one word, or begin one
            for each in group:
                self.header_index[each] = following
                following += 1
        self._stack_of = {
            name: (stack.name, position)
            for stack in program.stacks.values()
            for position, name in enumerate(stack.headers)
        }
        self._slots: dict[FieldRef, Slot] = {}
        self._wide_bits = 0

    # -- wide values -------------------------------------------------------------------------------

    def need_wide(self, bits: int) -> None:
        """Say that code computes with values of `bits` bits, more than 128."""
        self._wide_bits = max(self._wide_bits, bits)

    @property
    def wide_words(self) -> int:
        """Return the 64-bit words of the program's wide values (`codegen.wide`); 0 when it has none."""
        return max((self._wide_bits + 63) // 64, 3) if self._wide_bits else 0

    # -- names -------------------------------------------------------------------------------------

    def type_name(self, kind: HeaderType) -> str:
        """Return the name of the struct of a header type."""
        return f"ht_{self._type_names(kind.name)}"

    def header(self, name: str) -> str:
        """Return the C lvalue of a header instance."""
        if name in self._stack_of:
            stack, position = self._stack_of[name]
            return f"{self.stack(stack)}[{position}]"
        return f"p->h_{self._names(name)}"

    def stack(self, name: str) -> str:
        """Return the C lvalue of a stack's array of headers."""
        return f"p->s_{self._names(name)}"

    def next_index(self, stack: str) -> str:
        """Return the C lvalue of how many elements of a stack are in use."""
        union_stack = self.program.stacks[stack].union_stack if stack in self.program.stacks else None
        return f"m->n_{self._names(union_stack or stack)}"

    def counts(self) -> list[str]:
        """Return the members of `state` that hold how many elements of each stack are in use."""
        stacks = [*self.program.stacks, *self.program.union_stacks]
        return list(dict.fromkeys(self.next_index(stack).removeprefix("m->") for stack in stacks))

    def members(self, kind: HeaderType) -> list[Member]:
        """Return the struct members of a packet header type."""
        if kind.name not in self._members:
            self._members[kind.name] = members(kind)
        return self._members[kind.name]

    def words(self, kind: HeaderType) -> list[Word]:
        """Return the same members, those that share a machine word together."""
        if kind.name not in self._words:
            self._words[kind.name] = words(self.members(kind))
        return self._words[kind.name]

    # -- fields ------------------------------------------------------------------------------------

    def add_local(self, name: str, bits: int, signed: bool) -> FieldRef:
        """Declare an action-local temporary, a plain C variable."""
        self._locals[name] = FieldType(name, bits, signed)
        return FieldRef(LOCAL, name)

    def field_type(self, ref: FieldRef) -> FieldType:
        """Return width and sign of a field or local temporary."""
        return self._locals[ref.field] if ref.header == LOCAL else self.program.field(ref)

    def slot(self, ref: FieldRef) -> Slot:
        """Return where a field is."""
        if ref not in self._slots:
            self._slots[ref] = self._find(ref)
        return self._slots[ref]

    def _find(self, ref: FieldRef) -> Slot:
        if ref.header == LOCAL:
            local = self._locals[ref.field]
            return Slot(ref.field, local.bits, local.signed)
        header = self.program.headers[ref.header]
        kind = self.program.field(ref)
        if header.metadata:
            name = f"m->{self._names(f'{ref.header}.{ref.field}')}"
            return Slot(name, kind.bits, kind.signed, varbit=kind.varbit)
        access, array, index = self.member_access(header.type, ref.field)
        base = self.header(ref.header)
        whole = f"{base}.{array}" if array else None
        word = next((each for each in self.words(header.type) if each.shared and each.has(access)), None)
        if word is not None:
            shared = f"{base}.{word.name}"
            return Slot(f"{base}.{access}", kind.bits, kind.signed, word=shared, below=word.below(access))
        return Slot(f"{base}.{access}", kind.bits, kind.signed, whole, index, kind.varbit)

    def header_bytes(self, kind: HeaderType, header: str) -> str:
        """Return the C expression of the bytes that a header, itself C text, takes in a packet."""
        if kind.varbit is None:
            return str(kind.bits // 8)
        access, _, _ = self.member_access(kind, kind.varbit.name)
        return f"({kind.fixed_bits // 8} + {header}.{access}.n)"

    def member_access(self, kind: HeaderType, field: str) -> tuple[str, str | None, int]:
        """Return a field inside its struct: access, and array name and index when in a run."""
        position = kind.index(field)
        for member in self.members(kind):
            if member.first <= position < member.first + member.count:
                if member.is_run:
                    index = position - member.first
                    return f"{member.name}[{index}]", member.name, index
                return member.name, None, 0
        raise KeyError(field)

    # -- validity ----------------------------------------------------------------------------------

    @property
    def valid_words(self) -> int:
        """Return the 64-bit words of the validity bits."""
        return (max(self.header_index.values(), default=0) + 64) // 64

    def valid(self, header: str) -> str:
        """Return the C expression, 0 or 1; metadata is always valid."""
        if header not in self.header_index:
            return "1"
        word, shift = self.valid_bit(header)
        return f"(uint32_t)({word} >> {shift} & 1)"

    def valid_bit(self, header: str) -> tuple[str, int]:
        """Return the word of a header's validity (C lvalue) and the bit in it."""
        bit = self.header_index[header]
        return f"m->valid[{bit // 64}]", bit % 64

    def element_valid(self, stack: str, index: str) -> tuple[str, str]:
        """Return the word of an element's validity (C lvalue) and the bit in it; `index` is C text, in
        range.
        """
        stored = self.program.stacks[stack].headers
        word, first = self.valid_bit(stored[0])
        if len(stored) <= 64:
            return word, f"{index} + {first}" if first else index
        return f"m->valid[{self.header_index[stored[0]] // 64} + ({index}) / 64]", f"({index}) % 64"

    def masks(self, headers: Iterable[str]) -> list[tuple[int, int]]:
        """Return the validity bits of headers as (word, mask) pairs, no mask zero."""
        words: dict[int, int] = {}
        for name in headers:
            if name in self.header_index:
                bit = self.header_index[name]
                words[bit // 64] = words.get(bit // 64, 0) | 1 << bit % 64
        return sorted(words.items())

    # -- declarations ------------------------------------------------------------------------------

    def metadata_fields(self) -> list[FieldRef]:
        """Return the metadata fields kept, widest first so that the struct has no holes."""
        kept = [
            FieldRef(name, field.name)
            for name, header in self.program.headers.items()
            if header.metadata
            for field in header.type.fields
            if FieldRef(name, field.name) in self._used
        ]
        return sorted(kept, key=lambda ref: -self.slot(ref).storage)

    def packet_types(self) -> list[HeaderType]:
        """Return the types of packet headers (not metadata), each once."""
        headers = (header for header in self.program.headers.values() if not header.metadata)
        return list({header.type.name: header.type for header in headers}.values())

    def _all_types(self) -> list[HeaderType]:
        return [header.type for header in self.program.headers.values()]

    def declarations(self) -> str:
        """Return the C text of the header structs, of `state` and of `phv`."""
        sizes = {field.bits // 8 for each in self._all_types() for field in each.fields if field.varbit}
        lines = [f"typedef struct {{ uint32_t n; uint8_t b[{n}]; }} varbit_{n};" for n in sorted(sizes)]
        lines += [self._struct(kind) for kind in self.packet_types()]
        words = self.valid_words
        lines += ["typedef struct {", "    const uint8_t *payload; // what was not parsed"]
        lines.append(f"    uint64_t valid[{words}];")
        lines.append("    uint32_t payload_length, ingress_length, length, truncate;")
        lines.append("    uint32_t clone_session, clone_list, resubmit, recirculate, exit;")
        if self.program.digests:
            lines.append("    uint32_t digest; // asked for by ingress, 0 for none")
        lines += (f"    uint32_t {count};" for count in self.counts())
        for ref in self.metadata_fields():
            slot = self.slot(ref)
            lines.append(f"    {_declare(slot.access[3:], slot.bits, slot.varbit)}")
        lines += ["} state;", "", "typedef struct {"]
        lines.append(f"    uint64_t touched[{words}]; // headers whose storage is not all zero")
        lines += self._stored()
        lines += ["} phv;", ""]
        return "\n".join(lines)

    def _stored(self) -> list[str]:
        lines = []
        for stack in self.program.stacks.values():
            kind, count = self.type_name(stack.type), len(stack.headers)
            lines.append(f"    {kind} {self.stack(stack.name)[3:]}[{count}];")
        for name in self.header_index:
            if name not in self._stack_of:
                kind = self.type_name(self.program.headers[name].type)
                lines.append(f"    {kind} {self.header(name)[3:]};")
        return lines

    def _struct(self, kind: HeaderType) -> str:
        lines = ["typedef struct {"]
        for word in self.words(kind):
            member = word.members[0]
            if word.shared:
                lines.append(f"    {_declare_word(word)}")
            elif member.is_run:
                aligned = "_Alignas(64) " if member.count * member.bits >= _LINE_BITS else ""
                lines.append(f"    {aligned}{c_type(member.bits)} {member.name}[{member.count}];")
            else:
                lines.append(f"    {_declare(member.name, member.bits, member.varbit)}")
        if not kind.fields:
            lines.append("    uint8_t nothing;")
        return "\n".join([*lines, f"}} {self.type_name(kind)};", ""])


def _declare(name: str, bits: int, varbit: bool) -> str:
    if varbit:
        return f"varbit_{bits // 8} {name};"
    storage = storage_bits(bits)
    if storage > 128:
        return f"uint8_t {name}[{storage // 8}];"
    return f"{c_type(storage)} {name};"


def _declare_word(word: Word) -> str:
    # Of bit-fields the first has the lowest bits.
    kind = f"uint{word.bits}_t"
    fields = " ".join(f"{kind} {each.name} : {each.bits};" for each in reversed(word.members))
    return f"union {{ {kind} {word.name}; struct {{ {fields} }}; }};"
