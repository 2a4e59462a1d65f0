# SPDX-License-Identifier: Apache-2.0
"""Expressions to C.

BMv2 computes with unlimited integers and cuts the result when it stores it. Here every expression is
either compiled *modularly* (`low`: only its lowest bits are wanted, so machine arithmetic of that width
will do: what p4c's ``& mask`` gives almost everywhere, and what vectorises), or *exactly* (`exact`: in a C
type that its interval fits). Beyond 128 bits that type is `sw_wide` (`codegen.wide`).
"""

from collections.abc import Callable

from softp4.codegen.layout import Layout
from softp4.codegen.ranges import Interval, Ranges, of_width
from softp4.codegen.wide import WIDE, WideCompiler, extended, wide_literal
from softp4.codegen.widths import storage_bits
from softp4.program.errors import UnsupportedConstruct
from softp4.program.ir import (
    Binary,
    BoolConst,
    Const,
    Expr,
    FieldRef,
    HeadersEqual,
    Lookahead,
    Lvalue,
    ParamRef,
    RegisterRef,
    StackCount,
    StackField,
    StackLast,
    StackValid,
    Ternary,
    Unary,
    Valid,
    VarbitsEqual,
)
from softp4.program.types import HeaderType, Param

_MODULAR = frozenset(["+", "-", "*", "&", "|", "^"])
_COMPARE = frozenset(["==", "!=", "<", ">", "<=", ">="])


_BEYOND = 1 << 30  # as a C width: whatever `sw_wide` has


def machine_bits(bits: int) -> int:
    """Return the C width computations of `bits` bits are done in: 32, 64, 128 or that of `sw_wide`."""
    return 32 if bits <= 32 else 64 if bits <= 64 else 128 if bits <= 128 else _BEYOND


def unsigned(bits: int) -> str:
    """Return the C type of unsigned values of a C width."""
    return WIDE if bits == _BEYOND else "sw_u128" if bits == 128 else f"uint{bits}_t"


def signed(bits: int) -> str:
    """Return the C type of signed values of a C width."""
    return WIDE if bits == _BEYOND else "sw_i128" if bits == 128 else f"int{bits}_t"


def literal(value: int, bits: int) -> str:
    """Return a non-negative constant as C text of the unsigned type of a C width."""
    if bits == _BEYOND:
        return wide_literal(value)
    if bits == 128 and value >> 64:
        return f"((sw_u128)0x{value >> 64:x}u << 64 | 0x{value & (1 << 64) - 1:x}u)"
    suffix = "u" if value < 1 << 32 else "ull"
    text = f"{value}{suffix}" if value < 10 else f"0x{value:x}{suffix}"
    return text if bits == 32 or (value >= 1 << 32 and bits == 64) else f"({unsigned(bits)}){text}"


class Compiler:
    """Compiles the expressions of one action, condition or parser state.

    Args:
        layout: where fields are.
        params: the action's parameters; parameter i is read through `args`.
        where: named when something is refused.
        arguments: C text of each parameter.
        lookahead: C text of a lookahead (parser only).
        read: C text of a field; replaced inside loops that keep fields in C variables.
    """

    def __init__(
        self,
        layout: Layout,
        params: tuple[Param, ...],
        where: str,
        *,
        arguments: tuple[str, ...] = (),
        lookahead: Callable[[Lookahead], str] | None = None,
        read: Callable[[FieldRef], str] | None = None,
    ) -> None:
        self.layout = layout
        self.ranges = Ranges(layout, params, where)
        self.where = where
        self._arguments = arguments
        self._lookahead = lookahead
        self._read = read or (lambda ref: layout.slot(ref).access)
        self._wide = WideCompiler(self, layout, where)

    # -- entry points ------------------------------------------------------------------------------

    def boolean(self, expr: Expr) -> str:
        """Return the C text of a condition."""
        match expr:
            case BoolConst(value):
                return "1" if value else "0"
            case Unary("not", operand):
                return f"!({self.boolean(operand)})"
            case Unary("d2b", Unary("b2d", operand)):
                return self.boolean(operand)
            case Unary("d2b", operand):
                return self._nonzero(operand)
            case Binary("and", left, right):
                return f"(({self.boolean(left)}) && ({self.boolean(right)}))"
            case Binary("or", left, right):
                return f"(({self.boolean(left)}) || ({self.boolean(right)}))"
            case Binary("==b", left, right):
                return f"(!({self.boolean(left)}) == !({self.boolean(right)}))"
            case Binary("!=b", left, right):
                return f"(!({self.boolean(left)}) != !({self.boolean(right)}))"
            case Binary(op, left, right) if op in _COMPARE:
                return self._compare(op, left, right)
            case HeadersEqual(left_name, right_name):
                return self._headers_equal(left_name, right_name)
            case VarbitsEqual(one, other):
                return self._varbits_equal(one, other)
            case Ternary(condition, yes, no):
                return f"(({self.boolean(condition)}) ? ({self.boolean(yes)}) : ({self.boolean(no)}))"
            case _:
                return self._nonzero(expr)

    def stored(self, expr: Expr, bits: int) -> str:
        """Return the C text of an expression cut to `bits` bits, the bits above being zero.

        Beyond 128 bits they are anything: they are cut off when such a value becomes a field again.
        """
        if bits > 128:
            return self._wide.low(expr, bits)
        width = machine_bits(bits)
        if bits == width or self._fits(expr, bits):
            return self.low(expr, width)
        return f"({self.low(expr, bits)} & {literal((1 << bits) - 1, width)})"

    def index(self, expr: Expr) -> str:
        """Return the C text (uint64_t) of an array index. BMv2 takes an index modulo 2^32."""
        interval = self.ranges(expr)
        if interval.low >= 0 and interval.high < 1 << 32:
            return f"(uint64_t)({self.low(expr, 32)})"
        return f"(uint64_t)(uint32_t)({self.low(expr, 32)})"

    def amount(self, expr: Expr) -> str:
        """Return the C text of a shift amount, of an unsigned type of at most 128 bits."""
        if self.type_of(expr) == WIDE:
            return f"sw_wide_amount({self.exact(expr)})"
        if self.ranges(expr).signed:  # a negative one shifts everything out
            return f"({unsigned(self._bits(self.ranges(expr)))})({self.exact(expr)})"
        return self.exact(expr)

    # -- modular -----------------------------------------------------------------------------------

    def low(self, expr: Expr, bits: int) -> str:
        """Return the C text of type unsigned(machine_bits(bits)) whose lowest `bits` bits are the value's."""
        if bits > 128:
            return self._wide.low(expr, bits)
        width = machine_bits(bits)
        kind = unsigned(width)
        match expr:
            case Const(value):
                return literal(value % (1 << width), width)
            case FieldRef() | StackField() | StackLast():
                field = self.ranges.field(expr)
                if field.bits <= 128 and (not field.signed or field.bits >= bits):
                    return f"({kind}){self._field(expr)}"
            case Unary("~", operand):
                return f"(~{self.low(operand, bits)})"
            case Unary("-", operand):
                return f"(({kind})0 - {self.low(operand, bits)})"
            case Binary("&", left, Const(mask)) if mask & (1 << bits) - 1 == (1 << bits) - 1:
                return self.low(left, bits)
            case Binary(op, left, right) if op in _MODULAR:
                return f"({self.low(left, bits)} {op} {self.low(right, bits)})"
            case Binary("<<", left, right):
                return self._shift_left(left, right, bits)
            case Binary("two_comp_mod", left, right) if self.ranges.width(right) >= bits:
                return self.low(left, bits)
            case Binary("usat_cast", Binary("-", left, right), Const(limit)) if limit <= width:
                if self._fits(left, limit) and self._fits(right, limit):
                    a, b = self.low(left, width), self.low(right, width)
                    return f"({a} > {b} ? {a} - {b} : 0)"  # stays in `width` bits, so it vectorises
            case Ternary(condition, yes, no):
                return f"(({self.boolean(condition)}) ? {self.low(yes, bits)} : {self.low(no, bits)})"
        return self._narrow(self.exact(expr), self.type_of(expr), kind)

    def _narrow(self, text: str, source: str, kind: str) -> str:
        return f"({kind})sw_wide_low({text})" if source == WIDE else f"({kind})({text})"

    def _nonzero(self, expr: Expr) -> str:
        text = self.exact(expr)
        return f"sw_wide_nonzero({text})" if self.type_of(expr) == WIDE else f"({text}) != 0"

    def _fits(self, expr: Expr, bits: int) -> bool:
        interval = self.ranges(expr)
        return interval.low >= 0 and interval.high < 1 << bits

    def _shift_left(self, left: Expr, right: Expr, bits: int) -> str:
        width = machine_bits(bits)
        if isinstance(right, Const):
            if right.value >= bits:
                return literal(0, width)
            return f"({self.low(left, bits)} << {right.value})"
        amount = self.amount(right)
        return f"(({amount}) < {width} ? {self.low(left, bits)} << ({amount}) : ({unsigned(width)})0)"

    # -- exact -------------------------------------------------------------------------------------

    def exact(self, expr: Expr) -> str:
        """Return the C text of the exact value, of type `self.type_of(expr)`."""
        interval = self.ranges(expr)
        if interval.bits > 128:
            return self._wide.value(expr)
        bits = self._bits(interval)
        kind = self.type_of(expr)
        match expr:
            case Const(value):
                if value >= 0:
                    return literal(value, bits)
                return f"({kind})(-{literal(-value, bits)})"
            case FieldRef() | StackField() | StackLast():
                return self.exact_field(expr)
            case Valid(header):
                return self.layout.valid(header)
            case StackValid(stack, index):
                return self._stack_valid(stack, index)
            case StackCount(stack, minus):
                count = self.layout.next_index(stack)
                return f"(({kind}){count} - {minus})" if minus else f"({kind}){count}"
            case ParamRef(index):
                return f"({kind})({self.argument(index)})"
            case Lookahead():
                return f"({kind})({self.lookahead(expr)})"
            case RegisterRef(name, index):
                return self.register(name, index)
            case Ternary(condition, yes, no):
                return f"(({self.boolean(condition)}) ? {self._as(yes, kind)} : {self._as(no, kind)})"
            case Unary("b2d", operand):
                return f"(({self.boolean(operand)}) ? 1u : 0u)"
            case Unary(op, operand) if op in ("~", "-"):
                # modular in the result's own width: the interval says that it fits
                return f"({kind})({self.low(Unary(op, operand), bits)})"
            case Binary(op, left, right) if op in _MODULAR or op == "<<":
                return f"({kind})({self.low(Binary(op, left, right), bits)})"
            case Binary(">>", left, right):
                return self._shift_right(left, right, kind)
            case Binary(op, left, right) if op in ("/", "%"):
                return self._divide(op, left, right, kind)
            case Binary("two_comp_mod", left, right):
                return self._sign_extend(self.low(left, self.ranges.width(right)), self.ranges.width(right))
            case Binary(op, left, right) if op in ("sat_cast", "usat_cast"):
                return self._saturate(left, of_width(self.ranges.width(right), op == "sat_cast"), kind)
        raise UnsupportedConstruct(f"a boolean where a number is needed ({expr})", self.where)

    def type_of(self, expr: Expr) -> str:
        """Return the C type of `exact(expr)`."""
        interval = self.ranges(expr)
        bits = self._bits(interval)
        return signed(bits) if interval.signed else unsigned(bits)

    def _bits(self, interval: Interval) -> int:
        return machine_bits(interval.bits)

    def _as(self, expr: Expr, kind: str) -> str:
        if kind == WIDE:
            return self._wide.value(expr)
        text = self.exact(expr)
        return text if self.type_of(expr) == kind else f"({kind})({text})"

    def _common(self, left: Expr, right: Expr, result: Interval | None = None) -> str:
        interval = self.ranges(left).union(self.ranges(right))
        interval = interval if result is None else interval.union(result)
        bits = self._bits(interval)
        return signed(bits) if interval.signed else unsigned(bits)

    def _compare(self, op: str, left: Expr, right: Expr) -> str:
        kind = self._common(left, right)
        if kind == WIDE:
            return self._wide.compared(op, left, right)
        return f"({self._as(left, kind)} {op} {self._as(right, kind)})"

    def _shift_right(self, left: Expr, right: Expr, kind: str) -> str:
        source = self.type_of(left)
        if source == WIDE:
            return self._narrow(self._wide.shifted_right(left, right), WIDE, kind)
        width = self._bits(self.ranges(left))
        value = self.exact(left)
        if isinstance(right, Const):
            amount = min(right.value, width - 1)
            if right.value >= width and not self.ranges(left).signed:
                return f"({kind})0"
            return f"({kind})(({source})({value}) >> {amount})"
        amount_text = self.amount(right)
        beyond = f"({source})({value}) >> {width - 1}" if self.ranges(left).signed else f"({source})0"
        return f"({kind})(({amount_text}) < {width} ? ({source})({value}) >> ({amount_text}) : {beyond})"

    def _divide(self, op: str, left: Expr, right: Expr, kind: str) -> str:
        """Divide towards zero, as C does, with zero for a division by zero."""
        common = self._common(left, right, self.ranges(Binary(op, left, right)))
        if common == WIDE:
            return self._narrow(self._wide.divided(op, left, right), WIDE, kind)
        a, b = self._as(left, common), self._as(right, common)
        if isinstance(right, Const) and right.value > 0:
            return f"({kind})({a} {op} {b})"
        return f"({kind})({b} != 0 ? {a} {op} {b} : 0)"

    def _saturate(self, operand: Expr, limits: Interval, kind: str) -> str:
        interval = self.ranges(operand)
        if interval.union(limits).bits > 128:
            return self._narrow(self._wide.saturated(operand, limits), WIDE, kind)
        bits = self._bits(interval.union(limits))
        wide = signed(bits) if interval.union(limits).signed else unsigned(bits)
        value = text = self._as(operand, wide)
        most = literal(limits.high, bits)
        if interval.high > limits.high:
            text = f"({value} > ({wide}){most} ? ({wide}){most} : {text})"
        if interval.low < limits.low:
            least = f"({wide})0" if limits.low == 0 else f"(({wide})(-({wide}){most} - 1))"
            text = f"({value} < {least} ? {least} : {text})"
        return f"({kind})({text})"

    def _sign_extend(self, text: str, bits: int) -> str:
        width = machine_bits(bits)
        if bits == width:
            return f"({signed(width)})({text})"
        return f"(({signed(width)})({text} << {width - bits}) >> {width - bits})"

    # -- operands ----------------------------------------------------------------------------------

    def argument(self, index: int) -> str:
        """Return the C text of a parameter of the enclosing action."""
        return self._arguments[index]

    def lookahead(self, expr: Lookahead) -> str:
        """Return the C text of bits of the packet (parser only)."""
        if self._lookahead is None:
            raise UnsupportedConstruct("lookahead outside a parser", self.where)
        return self._lookahead(expr)

    def exact_field(self, expr: FieldRef | StackField | StackLast) -> str:
        """Return the C text of a field's value."""
        field = self.ranges.field(expr)
        text = self._field(expr)
        if field.bits > 128:
            return text
        if field.signed:
            width = machine_bits(field.bits)
            return self._sign_extend(f"({unsigned(width)}){text}", field.bits)
        return f"({unsigned(machine_bits(field.bits))}){text}"

    def _field(self, expr: FieldRef | StackField | StackLast) -> str:
        match expr:
            case FieldRef():
                kind_of = self.ranges.field(expr)
                text = self._read(expr)
                return text if kind_of.bits <= 128 else self._wide.field(text, kind_of.bits, kind_of.signed)
            case StackField(stack, index, number):
                kind = self.layout.program.stacks[stack].type
                return self._element(stack, self.index(index), kind, kind.fields[number].name)
            case StackLast(stack, name):
                kind = self.layout.program.stacks[stack].type
                count = self.layout.next_index(stack)
                return self._element(stack, f"(uint64_t)({count} - 1u)", kind, name)

    def _element(self, stack: str, index: str, kind: HeaderType, field: str) -> str:
        access, _, _ = self.layout.member_access(kind, field)
        size = len(self.layout.program.stacks[stack].headers)
        found = kind.fields[kind.index(field)]
        text = f"{self.layout.stack(stack)}[{index}].{access}"
        if found.bits > 128:
            return f"({index} < {size} ? {self._wide.field(text, found.bits, found.signed)} : sw_wide_u(0))"
        return f"({index} < {size} ? {text} : 0)"

    def _stack_valid(self, stack: str, index: Expr) -> str:
        size = len(self.layout.program.stacks[stack].headers)
        at = self.index(index)
        word, bit = self.layout.element_valid(stack, at)
        return f"({at} < {size} ? (uint32_t)({word} >> ({bit}) & 1) : 0u)"

    def register(self, name: str, index: Expr) -> str:
        """Return the C text of a register cell read in place; 0 beyond the array."""
        register = self.layout.program.registers[name]
        at = self.index(index)
        if register.bits > 128:
            return f"({at} < {register.size} ? {self.cell(name, at)} : sw_wide_u(0))"
        kind = unsigned(machine_bits(register.bits))
        return f"({at} < {register.size} ? ({kind}){self.cell(name, at)} : ({kind})0)"

    def cell(self, name: str, at: str) -> str:
        """Return the C text of the value of register cell `at` (C text), which is in range."""
        bits = self.layout.program.registers[name].bits
        text = register_cell(self.layout, name, at)
        if name in self.layout.loose:
            return f"SW_LOOSE_GET({text})"
        return self._wide.field(text, bits, False) if bits > 128 else text

    def cell_of_width(self, name: str, at: str, bits: int) -> str:
        """Return the C text of the lowest `bits` bits of register cell `at` (C text), which is in range."""
        width = self.layout.program.registers[name].bits
        cell = self.cell(name, at)
        if bits > 128:
            return cell if width > 128 else extended(cell, "sw_u128")
        if width > 128:
            cell = f"sw_wide_low({cell})"
        if bits < width:
            return f"({cell} & {literal((1 << bits) - 1, machine_bits(min(width, 128)))})"
        return cell

    def _headers_equal(self, left: str, right: str) -> str:
        a, b = (self.layout.program.headers[name] for name in (left, right))
        if a.type.name != b.type.name:
            return "0"
        parts = [self.layout.valid(left), self.layout.valid(right)]
        for member in self.layout.members(a.type):
            x, y = (f"{self.layout.header(name)}.{member.name}" for name in (left, right))
            if member.varbit:
                parts.append(f"sw_same_number({x}.b, {x}.n, {y}.b, {y}.n)")
            elif member.is_run or storage_bits(member.bits) > 128:
                parts.append(f"memcmp({x}, {y}, sizeof {x}) == 0")
            else:
                parts.append(f"{x} == {y}")
        return "(" + " && ".join(parts) + ")"

    def varbit(self, field: Lvalue) -> tuple[str, str]:
        """Return the C lvalue of a varbit field, and the condition under which it is there."""
        if isinstance(field, FieldRef):
            return self.layout.slot(field).access, ""
        stack = self.layout.program.stacks[field.stack]
        if isinstance(field, StackField):
            index, name = self.index(field.index), stack.type.fields[field.field].name
        else:
            index, name = f"(uint64_t)({self.layout.next_index(field.stack)} - 1u)", field.field
        access, _, _ = self.layout.member_access(stack.type, name)
        return f"{self.layout.stack(field.stack)}[{index}].{access}", f"{index} < {len(stack.headers)}"

    def _varbits_equal(self, left: Lvalue, right: Lvalue) -> str:
        (x, there), (y, also) = self.varbit(left), self.varbit(right)
        tests = [each for each in (there, also) if each]
        return "(" + " && ".join([*tests, f"sw_same_number({x}.b, {x}.n, {y}.b, {y}.n)"]) + ")"


def register_cell(layout: Layout, name: str, at: str) -> str:
    """Return the C lvalue of register cell `at` (C text), which is in range."""
    record = layout.records.get(name)
    if record is None:
        return f"{register_array(layout, name)}[{at}]"
    member = record.member(layout.program.registers[name])
    return f"(({record.name} *)s->registers[{record.number}])[{at}].{member}"


def register_array(layout: Layout, name: str) -> str:
    """Return the C text of the cells of a register that is in no record (a pointer of their own type)."""
    assert name not in layout.records, name
    number = list(layout.program.registers).index(name)
    kind = storage_bits(layout.program.registers[name].bits)
    if kind > 128:
        return f"((uint8_t (*)[{kind // 8}])s->registers[{number}])"
    return f"(({'sw_u128' if kind == 128 else f'uint{kind}_t'} *)s->registers[{number}])"
