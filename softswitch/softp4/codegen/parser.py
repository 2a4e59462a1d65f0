# SPDX-License-Identifier: Apache-2.0
"""The parser to C: states are labels, transitions gotos."""

from collections.abc import Set

from softp4.codegen.expressions import Compiler, literal, machine_bits, unsigned
from softp4.codegen.headers import load_field
from softp4.codegen.layout import Layout
from softp4.codegen.statements import StatementWriter
from softp4.codegen.tracepoints import TraceKind, Tracepoints
from softp4.codegen.usage import (
    header_and_siblings,
    headers_changed,
    sibling_stacks,
    siblings,
    walk,
)
from softp4.codegen.value_sets import member_test
from softp4.program.ir import (
    Advance,
    Assign,
    Expr,
    Extract,
    ExtractNext,
    Lookahead,
    ParserOp,
    Verify,
)
from softp4.program.types import HeaderType, ParserState, Program

MAX_STEPS = 4096  # states of a parser that can loop without consuming anything

# Numbers of P4's core errors, for programs that do not list them (p4c always does).
_CORE_ERRORS = {
    "NoError": 0,
    "PacketTooShort": 1,
    "NoMatch": 2,
    "StackOutOfBounds": 3,
    "HeaderTooShort": 4,
    "ParserTimeout": 5,
    "ParserInvalidArgument": 6,
}


class ParserWriter:
    """Writes the parser of one program, or the part of it that decides about some headers.

    Args:
        headers: the parser ends as soon as nothing can change these any more; None: all of it.
    """

    def __init__(self, layout: Layout, trace: Tracepoints, headers: Set[str] | None = None) -> None:
        self._layout = layout
        self._trace = trace
        self._parser = layout.program.parser
        self._labels = {name: f"S{number}" for number, name in enumerate(self._parser.states)}
        self._loops = _can_loop(layout.program)
        self._last = {} if headers is None else _last_operations(layout.program, headers)

    def function(self, name: str = "parse") -> str:
        """Return the C text of ``uint32_t NAME(s, p, m, b, length, error)``: returns the bytes parsed."""
        lines = ["uint32_t at = 0;"]
        if self._loops:
            lines.append("uint32_t steps = 0;")
        lines.append(self._go(self._parser.init_state))
        for state in self._reachable():
            lines.append(f"{self._labels[state.name]}: {{ // {state.name}")
            lines += (f"    {line}" for line in self._state(state))
            lines.append("}")
        lines += ["accept:", *self._trace.record(TraceKind.PARSED, "*error", "at"), "return at;"]
        body = "\n".join(f"    {line}" for line in lines)
        head = (
            f"SW_INLINE uint32_t {name}(sw_state *s, phv *p, state *m, const uint8_t *b, uint32_t length,\n"
            "                         uint32_t *error)"
        )
        return f"{head} {{\n    (void)s, (void)p, (void)m, (void)b, (void)length, (void)error;\n{body}\n}}\n"

    def error(self, name: str) -> int:
        """Return the program's number for one of P4's core errors."""
        return self._layout.program.errors.get(name, _CORE_ERRORS[name])

    def _reachable(self) -> list[ParserState]:
        states = self._parser.states
        if not self._last:
            return list(states.values())
        found: set[str | None] = set()
        waiting = [self._parser.init_state]
        while waiting:
            name = waiting.pop()
            if name is None or name in found:
                continue
            found.add(name)
            if name not in self._last:
                waiting += states[name].following
        return [state for name, state in states.items() if name in found]

    def _go(self, state: str | None) -> str:
        return "goto accept;" if state is None else f"goto {self._labels[state]};"

    def _fail(self, name: str) -> str:
        return f"{{ *error = {self.error(name)}; goto accept; }}"

    def _state(self, state: ParserState) -> list[str]:
        where = f"parser state {state.name}"
        compiler = Compiler(self._layout, (), where, lookahead=_lookahead)
        number = list(self._parser.states).index(state.name)
        lines = self._trace.record(TraceKind.STATE, number)
        if self._loops:
            lines.append(f"if (++steps > {MAX_STEPS}) {self._fail('ParserTimeout')}")
        ops = state.ops[: self._last.get(state.name)]
        for position, op in enumerate(ops):
            written = self._op(op, compiler)
            lines += self._trace.parser_op(number << 16 | position, op, written, self._layout)
        if state.name in self._last:
            return [*lines, self._go(None)]
        if not state.key:
            return [*lines, self._go(state.default)]
        needed = max((_bytes_ahead(expr) for expr in state.key), default=0)
        if needed:
            lines.append(f"if (SW_RARE(length - at < {needed})) {self._fail('PacketTooShort')}")
        return [*lines, *self._select(state, compiler)]

    def _select(self, state: ParserState, compiler: Compiler) -> list[str]:
        """Compare key elements one by one: the padding of the JSON's concatenated key is not matched."""
        lines = []
        for number, (expr, bits) in enumerate(zip(state.key, state.key_bits, strict=True)):
            kind = unsigned(machine_bits(bits))
            text = compiler.stored(expr, bits)
            if bits > 128:
                text = f"sw_wide_zext({text}, {bits})"
            lines.append(f"const {kind} k{number} = {text};")
        keys = [
            f"k{i}.w[{w}]" if state.key_bits[i] > 128 else f"(uint64_t)(k{i}{f' >> {64 * w}' if w else ''})"
            for i, w in _key_words(state)
        ]
        lines += self._trace.record(TraceKind.SELECT, list(self._parser.states).index(state.name), *keys)
        key = [(f"k{number}", bits) for number, bits in enumerate(state.key_bits)]
        for case in state.transitions:
            if case.value_set is not None:
                test = member_test(self._layout, case, key, compiler.where)
                lines.append(f"if ({test}) {self._go(case.next_state)}")
                continue
            tests = []
            shift = sum((bits + 7) // 8 * 8 for bits in state.key_bits)
            for number, bits in enumerate(state.key_bits):
                padded = (bits + 7) // 8 * 8
                shift -= padded
                every = (1 << padded) - 1
                value = case.value >> shift & every
                mask = every if case.mask is None else case.mask >> shift & every
                if value >> bits:
                    tests.append("0")  # no key has these bits
                elif mask & (1 << bits) - 1:
                    tests.append(_matches(f"k{number}", bits, value, mask & (1 << bits) - 1))
            lines.append(f"if ({' && '.join(tests) or '1'}) {self._go(case.next_state)}")
        lines.append(self._go(state.default))
        return lines

    def _op(self, op: ParserOp, compiler: Compiler) -> list[str]:
        match op:
            case Extract(header, varbit):
                return self._extract(header, varbit, compiler)
            case ExtractNext(stack, varbit):
                return self._extract_next(stack, varbit, compiler)
            case Advance(bits):
                amount = compiler.low(bits, 64)
                return [
                    f"if ({amount} % 8 != 0) {self._fail('ParserInvalidArgument')}",
                    f"if (length - at < {amount} / 8) {self._fail('PacketTooShort')}",
                    f"at += (uint32_t)({amount} / 8);",
                ]
            case Verify(condition, error):
                raised = f"{{ *error = {compiler.low(error, 32)}; goto accept; }}"
                return [f"if (!({compiler.boolean(condition)})) {raised}"]
            case Assign(_, src):
                needed = max((_bytes_ahead(node) for node in walk(src)), default=0)
                check = f"if (SW_RARE(length - at < {needed})) {self._fail('PacketTooShort')}"
                lines = StatementWriter(self._layout, compiler, "goto accept;").write(op)
                return [check, *lines] if needed else lines
            case _:
                return StatementWriter(self._layout, compiler, "goto accept;").write(op)

    def _extract(self, header: str, varbit: Expr | None, compiler: Compiler) -> list[str]:
        kind = self._layout.program.headers[header].type
        word, bit = self._layout.valid_bit(header)
        others = (self._layout.valid_bit(each) for each in siblings(self._layout.program, header))
        return [
            *self._take(kind, self._layout.header(header), varbit, compiler),
            f"{word} |= 1ull << {bit};",
            *(f"{each} &= ~(1ull << {number});" for each, number in others),
            *self._taken(kind, varbit),
        ]

    def _extract_next(self, stack: str, varbit: Expr | None, compiler: Compiler) -> list[str]:
        kind = self._layout.program.stacks[stack].type
        count = self._layout.next_index(stack)
        word, bit = self._layout.element_valid(stack, count)
        others = (
            self._layout.element_valid(each, count)
            for each in sibling_stacks(self._layout.program, stack)
            if each != stack
        )
        depth = len(self._layout.program.stacks[stack].headers)
        return [
            f"if (SW_RARE({count} >= {depth})) {self._fail('StackOutOfBounds')}",
            *self._take(kind, f"{self._layout.stack(stack)}[{count}]", varbit, compiler),
            f"{word} |= 1ull << ({bit});",
            *(f"{each} &= ~(1ull << ({number}));" for each, number in others),
            f"{count}++;",
            *self._taken(kind, varbit),
        ]

    def _take(self, kind: HeaderType, place: str, varbit: Expr | None, compiler: Compiler) -> list[str]:
        """Read a header if the packet is long enough; a varbit's length is checked in BMv2's order."""
        name = f"get_{self._layout.type_name(kind)}"
        size = kind.fixed_bits // 8
        if varbit is None or kind.varbit is None:
            return [
                f"if (SW_RARE(length - at < {size})) {self._fail('PacketTooShort')}",
                f"{name}(&{place}, b + at);",
            ]
        return [
            "{",
            f"    const uint32_t bits = {compiler.stored(varbit, 32)}, n = bits / 8;",
            f"    if (SW_RARE(bits % 8 != 0 || bits > INT32_MAX)) {self._fail('ParserInvalidArgument')}",
            f"    if (SW_RARE(length - at < {size} + n)) {self._fail('PacketTooShort')}",
            f"    if (SW_RARE(n > {kind.varbit.bits // 8})) {self._fail('HeaderTooShort')}",
            f"    {name}(&{place}, b + at, n);",
        ]

    def _taken(self, kind: HeaderType, varbit: Expr | None) -> list[str]:
        """Go on behind the header that `_take` read."""
        size = kind.fixed_bits // 8
        return [f"at += {size};"] if varbit is None else [f"    at += {size} + n;", "}"]


def _key_words(state: ParserState) -> list[tuple[int, int]]:
    """Return the 64-bit words of a select key: (element, word of it), lowest first."""
    return [(number, word) for number, bits in enumerate(state.key_bits) for word in range((bits + 63) // 64)]


def _bytes_ahead(expr: Expr) -> int:
    return (expr.offset + expr.bits + 7) // 8 if isinstance(expr, Lookahead) else 0


def _matches(key: str, bits: int, value: int, mask: int) -> str:
    width = machine_bits(bits)
    if bits > 128:
        masked = key if mask == (1 << bits) - 1 else f"sw_wide_and({key}, {literal(mask, width)})"
        return f"sw_wide_same({masked}, {literal(value, width)})"
    if mask == (1 << bits) - 1:
        return f"{key} == {literal(value, width)}"
    return f"({key} & {literal(mask, width)}) == {literal(value, width)}"


def _lookahead(expr: Lookahead) -> str:
    if expr.bits > 128:
        return f"sw_wide_bits(b + at, {expr.offset}, {expr.bits})"
    return load_field("(b + at)", expr.offset, expr.bits)


def _fixed_bits(program: Program, op: ParserOp) -> int:
    """Return bits that an operation extracts at least."""
    match op:
        case Extract(header):
            return program.headers[header].type.fixed_bits
        case ExtractNext(stack):
            return program.stacks[stack].type.fixed_bits
    return 0


def _changed(program: Program, op: ParserOp) -> set[str]:
    """Return the headers whose fields or validity an operation may change."""
    match op:
        case Extract(header):
            return header_and_siblings(program, header)
        case ExtractNext(stack):
            return {name for each in sibling_stacks(program, stack) for name in program.stacks[each].headers}
        case Advance() | Verify():
            return set()
    return headers_changed(program, op)


def _last_operations(program: Program, headers: Set[str]) -> dict[str, int]:
    """Return the states behind which nothing changes these headers, each with how many operations may."""
    states = program.parser.states
    places = {
        name: [place for place, op in enumerate(state.ops, 1) if headers & _changed(program, op)]
        for name, state in states.items()
    }
    leading = {name for name in states if places[name]}  # to a change
    before = -1
    while before != len(leading):
        before = len(leading)
        leading |= {name for name, state in states.items() if leading.intersection(state.following)}
    return {
        name: max(places[name], default=0)
        for name, state in states.items()
        if not leading.intersection(state.following)
    }


def _can_loop(program: Program) -> bool:
    """Return whether a state can be reached from itself without extracting anything on the way.

    A loop that extracts ends with the packet, unless what it extracts may be empty.
    """

    def consumes(state: ParserState) -> bool:
        return any(_fixed_bits(program, op) for op in state.ops)

    states = program.parser.states
    following = {name: () if consumes(state) else state.following for name, state in states.items()}
    done: set[str] = set()
    for start in states:
        path: list[tuple[str, int]] = [(start, 0)]
        active = {start}
        while path:
            name, position = path.pop()
            if position == len(following[name]):
                active.discard(name)
                done.add(name)
                continue
            path.append((name, position + 1))
            target = following[name][position]
            if target in active:
                return True
            if target is not None and target not in done:
                active.add(target)
                path.append((target, 0))
    return False
