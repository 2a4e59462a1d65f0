# SPDX-License-Identifier: Apache-2.0
"""Events of a traced packet's way, with the names of its program.

The switch's records (runtime/trace.h, codegen/tracepoints.py) are numbers; `Decoder` turns them into events.
"""

import struct
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from softp4.codegen.keys import arg_words, key_layout
from softp4.codegen.tracepoints import Lost, TraceKind
from softp4.program.ir import Extract, ExtractNext, ParserOp, Statement
from softp4.program.types import Action, Conditional, HeaderType, ParserState, Program, Table
from softp4.state.action_profiles import BY_GROUP, BY_MEMBER

_NONE = (1 << 64) - 1
_SIGNED = 256
_VIA = {BY_MEMBER: "member", BY_GROUP: "group"}


@dataclass(frozen=True)
class FrameIn:
    """A frame came in; what follows, up to the next FrameIn or Turn, is its block."""

    number: int
    port: int
    length: int
    time: int  # nanoseconds


@dataclass(frozen=True)
class Turn:
    """A packet of frame `number` leaves the queue where it waited `waited` ns, and `behind` packets there."""

    number: int
    port: int
    time: int
    waited: int
    behind: int


@dataclass(frozen=True)
class Pass:
    """The packet, or a copy of it, starts again: `why` is "resubmitted", "recirculated" or "cloned"."""

    why: str
    length: int


@dataclass(frozen=True)
class State:
    """The parser enters a state."""

    state: ParserState


@dataclass(frozen=True)
class Extracted:
    """The parser extracts a header; `fields` are its values by name."""

    header: str
    type: HeaderType
    fields: Mapping[str, int]


@dataclass(frozen=True)
class Parsing:
    """Another operation of the parser: what it read, and what it assigned if it assigns."""

    op: ParserOp
    values: tuple[int, ...]


@dataclass(frozen=True)
class Selected:
    """The select keys of the state entered last."""

    state: ParserState
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Parsed:
    """The parser is done, after `count` bytes; `error` is a parser error's name, or None."""

    error: str | None
    count: int


@dataclass(frozen=True)
class ChecksumWrong:
    """A checksum of the parsed packet is wrong (whatever the program makes of it)."""


@dataclass(frozen=True)
class Ingress:
    """Ingress begins."""


@dataclass(frozen=True)
class Egress:
    """Egress begins, for one copy of the packet; `rid` is 0 where the program does not look at it."""

    port: int
    rid: int


@dataclass(frozen=True)
class Tested:
    """A conditional between tables."""

    conditional: Conditional
    result: bool


@dataclass(frozen=True)
class Applied:
    """A table lookup: the entry's `handle` and `priority` count on a hit, `action` None does nothing.

    `via` says whether the entry names a "member" or a "group" of an action profile, which has the action.
    """

    table: Table
    key: tuple[int, ...]
    hit: bool
    via: str | None
    handle: int
    priority: int
    action: Action | None
    args: tuple[int, ...]


@dataclass(frozen=True)
class Called:
    """An action that the program calls without a lookup."""

    action: Action
    args: tuple[int, ...]


@dataclass(frozen=True)
class Executed:
    """Statement `number` of an action: the values that it read, then the one that it assigned."""

    action: Action
    number: int
    values: tuple[int, ...]

    @property
    def statement(self) -> Statement:
        """Statement that was executed."""
        return self.action.body[self.number]


@dataclass(frozen=True)
class Cloned:
    """The pipeline asked for a clone; `copies` None: there is no such session."""

    session: int
    copies: int | None


@dataclass(frozen=True)
class Resubmitted:
    """The frame goes through ingress again."""


@dataclass(frozen=True)
class Destined:
    """Decision of ingress: a multicast group other than 0 counts; `copies` None: there is no such group."""

    egress_spec: int
    group: int
    copies: int | None


@dataclass(frozen=True)
class Queued:
    """A copy waits for its port behind `found` packets; None: the queue was full, and it is dropped."""

    port: int
    priority: int
    found: int | None


@dataclass(frozen=True)
class EgressDropped:
    """Egress dropped the packet: egress_spec 511."""


@dataclass(frozen=True)
class Emitted:
    """The deparser writes a header."""

    header: str
    type: HeaderType
    fields: Mapping[str, int]


@dataclass(frozen=True)
class FrameOut:
    """A frame leaves."""

    port: int
    length: int


@dataclass(frozen=True)
class Recirculated:
    """The deparsed packet goes through ingress again."""

    length: int


@dataclass(frozen=True)
class Dropped:
    """The switch itself drops a packet; `value` is its length, or the limit that it met."""

    why: Lost
    value: int


Event = (
    FrameIn
    | Turn
    | Pass
    | State
    | Extracted
    | Parsing
    | Selected
    | Parsed
    | ChecksumWrong
    | Ingress
    | Egress
    | Tested
    | Applied
    | Called
    | Executed
    | Cloned
    | Resubmitted
    | Destined
    | Queued
    | EgressDropped
    | Emitted
    | FrameOut
    | Recirculated
    | Dropped
)


@dataclass(frozen=True)
class _Record:
    kind: TraceKind
    site: int
    values: tuple[int, ...]


class Decoder:
    """Turns the records of one program into events."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._states = list(program.parser.states.values())
        self._tables = list(program.tables.values())
        self._conditionals = list(program.conditionals.values())
        self._headers = list(program.headers.values())
        self._errors = {number: name for name, number in program.errors.items()}
        self._anew: deque[str] = deque()  # what will start again, in order
        self._in_egress = False

    def events(self, records: bytes) -> Iterator[Event]:
        """Yield the events of whole blocks, as `Library.read_trace` gives them."""
        taken: _Record | None = None  # the record that bytes belong to
        for record in _records(records):
            if record.kind is TraceKind.BYTES:
                assert taken is not None
                yield self._with_bytes(taken, _bytes(record))
            elif record.kind is TraceKind.HEADER or (
                record.kind is TraceKind.PARSER_OP and self._takes(record)
            ):
                taken = record
            else:
                yield self._event(record)

    # -- records with bytes --------------------------------------------------------------------------

    def _op(self, record: _Record) -> ParserOp:
        return self._states[record.site >> 16].ops[record.site & 0xFFFF]

    def _takes(self, record: _Record) -> bool:
        return isinstance(self._op(record), Extract | ExtractNext)

    def _with_bytes(self, record: _Record, data: bytes) -> Event:
        if record.kind is TraceKind.HEADER:
            header = self._headers[record.site]
            return Emitted(header.name, header.type, field_values(header.type, data))
        match self._op(record):
            case Extract(name):
                header = self._program.headers[name]
            case ExtractNext(name):
                header = self._program.headers[self._program.stacks[name].headers[record.values[0]]]
            case op:
                raise AssertionError(op)
        return Extracted(header.name, header.type, field_values(header.type, data))

    # -- the others ----------------------------------------------------------------------------------

    def _event(self, record: _Record) -> Event:
        site, values = record.site, record.values
        match record.kind:
            case TraceKind.FRAME:
                self._begin(in_egress=False)
                return FrameIn(values[0], site, values[1], values[2])
            case TraceKind.TURN:
                self._begin(in_egress=True)
                return Turn(values[0], site, *values[1:])
            case TraceKind.PASS:
                return Pass("cloned" if site else self._next_anew(), values[0])
            case TraceKind.STATE:
                return State(self._states[site])
            case TraceKind.PARSER_OP:
                return Parsing(self._op(record), tuple(_tagged(values)))
            case TraceKind.SELECT:
                return Selected(self._states[site], tuple(_split(values, self._states[site].key_bits)))
            case TraceKind.PARSED:
                name = self._errors.get(site, f"error {site}")
                return Parsed(None if name == "NoError" or not site else name, values[0])
            case TraceKind.CHECKSUM:
                return ChecksumWrong()
            case TraceKind.PIPELINE:
                self._in_egress = site == 1
                return Egress(*values) if site else Ingress()
            case _:
                return self._in_pipeline(record)

    def _in_pipeline(self, record: _Record) -> Event:
        site, values = record.site, record.values
        match record.kind:
            case TraceKind.CONDITION:
                return Tested(self._conditionals[site], bool(values[0]))
            case TraceKind.TABLE:
                return self._applied(self._tables[site], values)
            case TraceKind.CALL:
                action = self._program.actions[site]
                return Called(action, _arguments(action, values))
            case TraceKind.STATEMENT:
                return Executed(self._program.actions[site], values[0], tuple(_tagged(values[1:])))
            case _:
                return self._around(record)

    def _around(self, record: _Record) -> Event:
        site, values = record.site, record.values
        match record.kind:
            case TraceKind.CLONE:
                copies = _optional(values[0])
                if self._in_egress and copies is not None:
                    self._anew.append("cloned")
                return Cloned(site, copies)
            case TraceKind.RESUBMIT:
                self._anew.append("resubmitted")
                return Resubmitted()
            case TraceKind.RECIRCULATE:
                self._anew.append("recirculated")
                return Recirculated(values[0])
            case TraceKind.DESTINATION:
                return Destined(site, values[0], _optional(values[1]))
            case TraceKind.QUEUED:
                return Queued(site, values[0], _optional(values[1]))
            case TraceKind.EGRESS_DROP:
                return EgressDropped()
            case TraceKind.OUT:
                return FrameOut(site, values[0])
            case TraceKind.LOST:
                if site == Lost.WAITING and self._anew:
                    self._anew.pop()
                return Dropped(Lost(site), values[0])
            case _:
                raise AssertionError(record)

    def _begin(self, in_egress: bool) -> None:
        self._anew.clear()
        self._in_egress = in_egress

    def _next_anew(self) -> str:
        return self._anew.popleft() if self._anew else "again"

    def _applied(self, table: Table, values: tuple[int, ...]) -> Applied:
        hit, handle, priority, by, action_id, *rest = values
        layout = key_layout(table)
        action = self._program.actions.get(action_id)
        return Applied(
            table,
            layout.unpack(rest[: layout.words]),
            bool(hit),
            _VIA.get(by),
            handle,
            priority - (1 << 64) if priority >> 63 else priority,
            action,
            () if action is None else _arguments(action, rest[layout.words :]),
        )


def field_values(kind: HeaderType, data: bytes) -> dict[str, int]:
    """Return the fields of a header, from its bytes in the packet."""
    value, left = int.from_bytes(data, "big"), 8 * len(data)
    spare = left - kind.fixed_bits  # what its varbit field takes
    result = {}
    for field in kind.fields:
        width = spare if field.varbit else field.bits
        left -= width
        bits = value >> left & (1 << width) - 1
        result[field.name] = bits - (1 << width) if field.signed and bits >> width - 1 else bits
    return result


def _records(data: bytes) -> Iterator[_Record]:
    words = struct.unpack(f"={len(data) // 8}Q", data)
    at = 0
    while at < len(words):
        count = words[at] >> 8 & 0xFFFFFF
        yield _Record(TraceKind(words[at] & 0xFF), words[at] >> 32, words[at + 1 : at + 1 + count])
        at += 1 + count


def _bytes(record: _Record) -> bytes:
    return struct.pack(f"={len(record.values)}Q", *record.values)[: record.site]


def _split(words: tuple[int, ...], widths: tuple[int, ...]) -> Iterator[int]:
    at = 0
    for bits in widths:
        count = (bits + 63) // 64
        yield _joined(words[at : at + count])
        at += count


def _tagged(words: tuple[int, ...]) -> Iterator[int]:
    at = 0
    while at < len(words):
        count = words[at] % _SIGNED
        value = _joined(words[at + 1 : at + 1 + count])
        negative = words[at] >= _SIGNED and value >> 64 * count - 1
        yield value - (1 << 64 * count) if negative else value
        at += 1 + count


def _joined(words: tuple[int, ...] | list[int]) -> int:
    return sum(word << 64 * i for i, word in enumerate(words))


def _arguments(action: Action, words: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    return tuple(_joined(words[first : first + count]) for first, count in arg_words(action))


def _optional(value: int) -> int | None:
    return None if value == _NONE else value
