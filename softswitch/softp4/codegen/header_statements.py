# SPDX-License-Identifier: Apache-2.0
"""Statements about whole headers, stacks, unions and varbit fields to C."""

from dataclasses import dataclass

from softp4.codegen.expressions import Compiler
from softp4.codegen.layout import Layout
from softp4.codegen.usage import columns, sibling_stacks, siblings
from softp4.program.errors import UnsupportedConstruct
from softp4.program.ir import (
    Assign,
    CopyHeader,
    CopyStack,
    CopyUnion,
    CopyVarbit,
    Element,
    FieldRef,
    HeaderRef,
    Lvalue,
    SetValid,
    ShiftStack,
)
from softp4.program.types import HeaderType, Program

HeaderStatement = CopyHeader | CopyUnion | CopyStack | CopyVarbit | SetValid | ShiftStack


@dataclass(frozen=True)
class _Place:
    """Place of a header in C: its storage, the word of its validity and the bit in it."""

    type: HeaderType
    text: str
    word: str
    bit: str
    siblings: tuple[tuple[str, str], ...]  # words and bits of the other members of its union

    @property
    def mask(self) -> str:
        return f"1ull << {self.bit}" if self.bit.isdigit() else f"1ull << ({self.bit})"


class HeaderStatementWriter:
    """Writes such statements as C lines."""

    def __init__(self, layout: Layout, compiler: Compiler) -> None:
        self._layout = layout
        self._program: Program = layout.program
        self._compiler = compiler

    def write(self, statement: HeaderStatement) -> list[str]:
        """Return the C lines of one statement, but for what `metadata_copy` takes apart."""
        match statement:
            case SetValid(header, valid):
                return self._set_any_valid(header, valid)
            case CopyHeader(dst, src):
                return self._copy_header(dst, src)
            case CopyUnion(to, source):
                return self._copy_members(self._program.unions[to], self._program.unions[source])
            case CopyStack(to, source):
                return self._copy_stack(to, source)
            case CopyVarbit(to_field, source_field):
                return self._copy_varbit(to_field, source_field)
            case ShiftStack(stack, count):
                return [f"{shift_name(self._layout, stack)}(p, m, {count});"]

    # -- places ------------------------------------------------------------------------------------

    def _is_metadata(self, header: str) -> bool:
        return self._program.headers[header].metadata

    def _place(self, header: str) -> _Place:
        others = tuple(self._layout.valid_bit(each) for each in siblings(self._program, header))
        word, bit = self._layout.valid_bit(header)
        return _Place(
            self._program.headers[header].type,
            self._layout.header(header),
            word,
            str(bit),
            tuple((each, str(number)) for each, number in others),
        )

    def _element(self, element: Element, index: str) -> _Place:
        """Return the place of an element, `index` being a C variable that is in range."""
        stack = element.stack
        word, bit = self._layout.element_valid(stack, index)
        others = [each for each in sibling_stacks(self._program, stack) if each != stack]
        return _Place(
            self._program.stacks[stack].type,
            f"{self._layout.stack(stack)}[{index}]",
            word,
            bit,
            tuple(self._layout.element_valid(each, index) for each in others),
        )

    def _guarded(self, element: Element, index: str, inner: str, otherwise: str = "") -> str:
        size = len(self._program.stacks[element.stack].headers)
        value = self._compiler.index(element.index)
        return f"{{ const uint64_t {index} = {value}; if ({index} < {size}) {{ {inner} }}{otherwise} }}"

    # -- statements --------------------------------------------------------------------------------

    def _set_any_valid(self, header: HeaderRef, valid: bool) -> list[str]:
        if isinstance(header, Element):
            inner = self._set_valid(self._element(header, "i"), valid)
            return [self._guarded(header, "i", inner)]
        return [] if self._is_metadata(header) else [self._set_valid(self._place(header), valid)]

    def _set_valid(self, place: _Place, valid: bool) -> str:
        size = self._layout.header_bytes(place.type, place.text)
        if not valid:
            test = f"if ({place.word} & {place.mask})"
            return f"{test} {{ {place.word} &= ~({place.mask}); m->length -= {size}; }}"
        steps = [*_zeroed(self._layout, place), *_made_valid(place), f"m->length += {size};"]
        return f"if (!({place.word} & {place.mask})) {{ {' '.join(steps)} }}"

    def _copy_header(self, dst: HeaderRef, src: HeaderRef) -> list[str]:
        kinds = [self._type(each) for each in (dst, src)]
        where = self._compiler.where
        if kinds[0].name != kinds[1].name:
            raise UnsupportedConstruct(f"copying header {src} to {dst} of another type", where)
        if isinstance(dst, str) and isinstance(src, str) and self._is_metadata(dst):
            if not self._is_metadata(src):
                raise UnsupportedConstruct("copying between metadata and a header", where)
            raise AssertionError("metadata is copied field by field")
        if any(isinstance(each, str) and self._is_metadata(each) for each in (dst, src)):
            raise UnsupportedConstruct("copying between metadata and a header", where)
        to = self._place(dst) if isinstance(dst, str) else self._element(dst, "i")
        source = self._place(src) if isinstance(src, str) else self._element(src, "j")
        valid = f"({source.word} >> {_wrapped(source.bit)} & 1)"
        made = f"{to.text} = {source.text}; {' '.join(_made_valid(to))}"
        gone = f"{to.word} &= ~({to.mask});"
        line = f"if ({valid}) {{ {made} }} else {gone}"
        if isinstance(src, Element):
            line = self._guarded(src, "j", line, f" else {gone}")
        if isinstance(dst, Element):
            line = self._guarded(dst, "i", line)
        return [line]

    def metadata_copy(self, statement: CopyHeader) -> list[Assign | CopyVarbit] | None:
        """Return a copy between metadata structs as one statement per field; None when it is another copy."""
        dst, src = statement.dst, statement.src
        if not (isinstance(dst, str) and isinstance(src, str)):
            return None
        kind = self._program.headers[dst].type
        if not (self._is_metadata(dst) and self._is_metadata(src)) or kind != self._program.headers[src].type:
            return None
        pairs = [(FieldRef(dst, each.name), FieldRef(src, each.name), each.varbit) for each in kind.fields]
        return [CopyVarbit(a, b) if varbit else Assign(a, b) for a, b, varbit in pairs]

    def _type(self, header: HeaderRef) -> HeaderType:
        if isinstance(header, str):
            return self._program.headers[header].type
        return self._program.stacks[header.stack].type

    def _copy_members(self, dst: tuple[str, ...], src: tuple[str, ...]) -> list[str]:
        if len(dst) != len(src):
            raise UnsupportedConstruct(
                "copying a union or stack to one of another kind", self._compiler.where
            )
        return [line for a, b in zip(dst, src, strict=True) for line in self._copy_header(a, b)]

    def _copy_stack(self, dst: str, src: str) -> list[str]:
        counts = [self._layout.next_index(each) for each in (dst, src)]
        lines = [f"{counts[0]} = {counts[1]};"]
        pairs = [
            [self._program.stacks[each].headers for each in columns(self._program, stack)]
            for stack in (dst, src)
        ]
        if [len(each) for each in pairs[0]] != [len(each) for each in pairs[1]]:
            raise UnsupportedConstruct("copying a stack to one of another size", self._compiler.where)
        for to, source in zip(zip(*pairs[0], strict=True), zip(*pairs[1], strict=True), strict=True):
            lines += self._copy_members(to, source)
        return lines

    def _copy_varbit(self, dst: Lvalue, src: Lvalue) -> list[str]:
        """Copy length and bytes, as many as `dst` can hold."""
        (to, to_test), (source, test) = self._compiler.varbit(dst), self._compiler.varbit(src)
        most = self._compiler.ranges.any_field(dst).bits // 8
        copy = f"{to}.n = {source}.n < {most}u ? {source}.n : {most}u; memmove({to}.b, {source}.b, {to}.n);"
        tests = " && ".join(each for each in (to_test, test) if each)
        return [f"if ({tests}) {{ {copy} }}" if tests else copy]


def _wrapped(bit: str) -> str:
    return bit if bit.isdigit() else f"({bit})"


def _made_valid(place: _Place) -> list[str]:
    cleared = [f"{word} &= ~(1ull << {_wrapped(bit)});" for word, bit in place.siblings]
    return [f"{place.word} |= {place.mask};", *cleared]


def _zeroed(layout: Layout, place: _Place) -> list[str]:
    """Set every field to zero; a varbit field keeps its length, as in BMv2."""
    name = layout.type_name(place.type)
    if place.type.varbit is None:
        return [f"{place.text} = ({name}){{0}};"]
    access, _, _ = layout.member_access(place.type, place.type.varbit.name)
    return [
        f"const uint32_t n = {place.text}.{access}.n;",
        f"{place.text} = ({name}){{0}};",
        f"{place.text}.{access}.n = n;",
    ]


# -- shifting ----------------------------------------------------------------------------------------


def shift_name(layout: Layout, stack: str) -> str:
    """Return the C function that pushes to and pops from a stack."""
    return f"shift_{layout.next_index(stack).removeprefix('m->n_')}"


def shift_function(layout: Layout, stack: str) -> str:
    """Return the C text of push_front/pop_front on a stack of headers or unions."""
    first = layout.program.stacks[columns(layout.program, stack)[0]]
    size = len(first.headers)
    if stack in layout.program.union_stacks or first.type.varbit is not None or size > 64:
        return _shift_by_swaps(layout, stack, size)
    return _shift_headers(layout, stack, size)


def _shift_headers(layout: Layout, stack: str, size: int) -> str:
    """Shift headers; what is pushed is invalid (P4_16)."""
    word, first = layout.valid_bit(layout.program.stacks[stack].headers[0])
    array, count = layout.stack(stack), layout.next_index(stack)
    ones = (1 << size) - 1
    return f"""SW_INLINE void {shift_name(layout, stack)}(phv *p, state *m, int by) {{
    const unsigned wanted = (unsigned)(by < 0 ? -by : by), n = wanted < {size}u ? wanted : {size}u;
    uint64_t valid = {word} >> {first} & 0x{ones:x}ull;
    if (by < 0) {{
        memmove(&{array}[0], &{array}[n], ({size}u - n) * sizeof {array}[0]);
        valid = n < 64 ? valid >> n : 0;
        {count} = {count} > n ? {count} - n : 0;
    }} else {{
        memmove(&{array}[n], &{array}[0], ({size}u - n) * sizeof {array}[0]);
        valid = n < 64 ? valid << n & 0x{ones:x}ull : 0;
        {count} = {count} + n < {size}u ? {count} + n : {size}u;
    }}
    {word} = ({word} & ~(0x{ones:x}ull << {first})) | valid << {first};
}}
"""


def _shift_by_swaps(layout: Layout, stack: str, size: int) -> str:
    """Shift one element at a time, as BMv2 does it.

    So it is seen how long a varbit field was in the element that is pushed; and in a stack of unions, of
    which BMv2 never makes one invalid, what is pushed out at one end comes in at the other.
    """
    count = layout.next_index(stack)
    swaps, gone = [], []
    for name in columns(layout.program, stack):
        kind = layout.type_name(layout.program.stacks[name].type)
        array, first = layout.stack(name), layout.header_index[layout.program.stacks[name].headers[0]]
        swaps += [
            f"const {kind} t{first} = {array}[i];",
            f"{array}[i] = {array}[j];",
            f"{array}[j] = t{first};",
            f"sw_swap_bits(m->valid, {first} + i, {first} + j);",
        ]
        if stack not in layout.program.union_stacks:
            gone.append(
                f"    for (unsigned i = 0; i < n && i < {size}u; i++) "
                f"sw_set_bit(m->valid, {first} + (by < 0 ? {size}u - 1 - i : i), 0);\n"
            )
    body = "\n".join(f"        {line}" for line in swaps)
    return f"""SW_INLINE void {shift_name(layout, stack)}(phv *p, state *m, int by) {{
    const unsigned n = (unsigned)(by < 0 ? -by : by);
    for (unsigned step = n; n != 0 && step < {size}u; step++) {{
        const unsigned i = by < 0 ? step - n : {size}u - 1 - (step - n), j = by < 0 ? i + n : i - n;
{body}
    }}
{"".join(gone)}    if (by < 0) {count} = {count} > n ? {count} - n : 0;
    else {count} = n < {size}u - {count} ? {count} + n : {size}u;
}}
"""
