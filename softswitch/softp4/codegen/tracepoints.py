# SPDX-License-Identifier: Apache-2.0
"""Tracepoints: C text that records what a packet goes through (runtime/trace.h).

Every part of the generator calls these; without tracing they are no text at all, and the generated code
knows nothing of them.
"""

from enum import IntEnum

from softp4.codegen.expressions import Compiler
from softp4.codegen.layout import Layout
from softp4.codegen.usage import destination, inputs
from softp4.program.expressions import is_boolean
from softp4.program.ir import (
    Assert,
    Assign,
    Binary,
    Const,
    Expr,
    Extract,
    ExtractNext,
    Jump,
    LogMessage,
    ParserOp,
    Statement,
)


class TraceKind(IntEnum):
    """The kinds of records, as in runtime/trace.h."""

    FRAME = 1
    TURN = 2
    PASS = 3
    STATE = 4
    PARSER_OP = 5
    BYTES = 6
    SELECT = 7
    PARSED = 8
    CHECKSUM = 9
    PIPELINE = 10
    CONDITION = 11
    TABLE = 12
    CALL = 13
    STATEMENT = 14
    CLONE = 15
    RESUBMIT = 16
    DESTINATION = 17
    QUEUED = 18
    EGRESS_DROP = 19
    HEADER = 20
    OUT = 21
    RECIRCULATE = 22
    LOST = 23


class Lost(IntEnum):
    """Reason for the loss of a packet or of a copy of it, as in runtime/trace.h."""

    TOO_LONG = 1
    PASSES = 2
    WAITING = 3
    ASSERTION = 4


class Tracepoints:
    """Writes the tracepoints of one program.

    Args:
        enabled: False: every method returns nothing.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def declaration(self) -> str:
        """Return the C text that the others rely on."""
        if not self.enabled:
            return ""
        return '#include "trace.h"\nstatic _Thread_local sw_trace *tracing;\n'

    def record(self, kind: TraceKind, site: int | str = 0, *values: str) -> list[str]:
        """Return the C line that records something; `values` are texts of 64-bit integers."""
        if not self.enabled:
            return []
        listed = "".join(f", {value}" for value in values)
        return [f"SW_TRACE(tracing, SW_TRACE_{kind.name}, {site}{listed});"]

    def text(self, indent: int, kind: TraceKind, site: int | str = 0, *values: str) -> str:
        """Return what `record` does as a whole line of text, for templates."""
        return "".join(f"{' ' * indent}{line}\n" for line in self.record(kind, site, *values))

    # -- around the pipelines ------------------------------------------------------------------------

    def begin(self, port: str, length: str, now: str) -> str:
        """Record that a frame comes in."""
        return self._lines("tracing = s->trace;", f"sw_trace_frame(tracing, {port}, {length}, {now});")

    def turn(self) -> str:
        """Record that a packet leaves the queue, in the words of ``depart``."""
        return self._lines("tracing = s->trace;", "sw_trace_turn(tracing, packet, port, now_ns, depth);")

    def queued(self, place: str, port: str, priority: str) -> str:
        """Return the C expression `place`, where a packet waits or NULL; its number is kept with it."""
        return f"sw_trace_queued(tracing, {place}, {port}, {priority})" if self.enabled else place

    def destination(self, spec: str, group: str) -> str:
        """Record what ingress decided; `replicas` are the group's, in its scope only."""
        copies = f"{group} != 0 && s->groups[{group}] == NULL ? SW_TRACE_NONE : count"
        return self.text(4, TraceKind.DESTINATION, spec, group, copies)

    def clone(self, session: str) -> str:
        """Record that a clone is made, to the replicas `to` of a session."""
        copies = "to == NULL ? SW_TRACE_NONE : to->count"
        return self.text(4, TraceKind.CLONE, f"{session} & 0x7fff", copies)

    def checksum(self) -> list[str]:
        """Record whether the parsed packet's checksums are right, which the program itself may not ask."""
        return [f"if (checksums_wrong(s, p, m)) {line}" for line in self.record(TraceKind.CHECKSUM)]

    def lost(self, indent: int, why: Lost, value: str = "0") -> str:
        """Record that the switch itself drops a packet; `value` is its length, or the limit it met."""
        return self.text(indent, TraceKind.LOST, int(why), value)

    def _lines(self, *lines: str) -> str:
        return "".join(f"    {line}\n" for line in lines) if self.enabled else ""

    # -- parser ------------------------------------------------------------------------------------

    def parser_op(self, site: int, op: ParserOp, lines: list[str], layout: Layout) -> list[str]:
        """Record a parser operation, written as `lines`, with what it took from the packet or assigned."""
        if not self.enabled:
            return lines
        compiler = Compiler(layout, (), "tracepoint")
        if isinstance(op, Extract | ExtractNext):
            stack = [f"{layout.next_index(op.stack)} - 1u"] if isinstance(op, ExtractNext) else []
            after = [
                *self.record(TraceKind.PARSER_OP, site, *stack),
                "sw_trace_bytes(tracing, b + before, at - before);",
            ]
            return ["{ const uint32_t before = at; (void)before;", *lines, *after, "}"]
        if isinstance(op, LogMessage | Assert):
            return [*self.record(TraceKind.PARSER_OP, site, *_read(op, compiler)), *lines]
        if isinstance(op, Statement):
            return [*lines, *self.record(TraceKind.PARSER_OP, site, *_assigned(op, compiler))]
        return [*lines, *self.record(TraceKind.PARSER_OP, site)]

    def emitted(self, layout: Layout, header: str, count: str) -> str:
        """Return the C text for a header that has just been written in the `count` bytes below `o`."""
        if not self.enabled:
            return ""
        number = list(layout.program.headers).index(header)
        written = f"sw_trace_bytes(tracing, o - {count}, {count});"
        return " ".join(["", *self.record(TraceKind.HEADER, number), written])

    # -- pipelines ---------------------------------------------------------------------------------

    def table(self, number: int, key_words: int, arg_words: int) -> list[str]:
        """Record a lookup, with variables `hit`, `e`, `action`, `key` and `a` as the pipeline has them."""
        key = [f"key[{i}]" for i in range(key_words)]
        args = [f"a[{i}]" for i in range(arg_words)]
        values = ["(uint64_t)hit", "e->handle", "(uint64_t)(int64_t)e->priority", "e->action", "action"]
        return self.record(TraceKind.TABLE, number, *values, *key, *args)

    def statement(
        self, action: int, number: int, statement: Statement, lines: list[str], compiler: Compiler
    ) -> list[str]:
        """Trace statement `number` of an action, written as `lines`, with what it reads and assigns.

        `statement` is as the code has it, its private fields being C variables.
        """
        if not self.enabled:
            return lines
        if isinstance(statement, Jump):
            taken = "0" if statement.unless is None else f"!({compiler.boolean(statement.unless)})"
            return [*self.record(TraceKind.STATEMENT, action, str(number), taken), *lines]
        if isinstance(statement, LogMessage | Assert):
            values = _read(statement, compiler)
            return [*self.record(TraceKind.STATEMENT, action, str(number), *values), *lines]
        read = [] if isinstance(statement, Assign) else _read(statement, compiler)
        names = [f"read[{i}]" for i in range(len(read))]
        after = self.record(TraceKind.STATEMENT, action, str(number), *names, *_assigned(statement, compiler))
        if not read:
            return [*lines, *after]
        return [f"{{ const uint64_t read[] = {{{', '.join(read)}}};", *lines, *after, "}"]


def _read(statement: Statement, compiler: Compiler) -> list[str]:
    return [text for expr in inputs(statement) for text in _value(expr, compiler)]


def _assigned(statement: Statement, compiler: Compiler) -> list[str]:
    dst = destination(statement)
    return [] if dst is None else _value(dst, compiler)


def _value(expr: Expr, compiler: Compiler) -> list[str]:
    """Return the C texts of a value's words, lowest first, behind their number (256 more: it has a sign)."""
    if is_boolean(expr):
        return ["1", f"({compiler.boolean(expr)}) != 0"]
    interval = compiler.ranges(expr)
    words = max(1, (interval.bits + 63) // 64)
    parts = [expr, *(Binary(">>", expr, Const(64 * i)) for i in range(1, words))]
    return [str(words + 256 * interval.signed), *(compiler.low(part, 64) for part in parts)]
