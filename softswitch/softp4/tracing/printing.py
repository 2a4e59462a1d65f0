# SPDX-License-Identifier: Apache-2.0
"""Traced packets as text: one packet, one block, with P4's names and, where known, its source.

Example::

    frames, events = switch.trace(1, frame, now=0)
    print_trace(TraceText(switch.program), events, sys.stdout)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from softp4.codegen.tracepoints import Lost
from softp4.program.source import Source
from softp4.program.types import DROP_PORT, Action, Program
from softp4.tracing.events import (
    Applied,
    Called,
    ChecksumWrong,
    Cloned,
    Destined,
    Dropped,
    Egress,
    EgressDropped,
    Emitted,
    Event,
    Executed,
    Extracted,
    FrameIn,
    FrameOut,
    Ingress,
    Parsed,
    Parsing,
    Pass,
    Queued,
    Recirculated,
    Resubmitted,
    Selected,
    State,
    Tested,
    Turn,
)
from softp4.tracing.notation import (
    arguments_text,
    expression_text,
    header_text,
    parser_op_text,
    statement_text,
    value_text,
)

_MOST: Final = 12  # statements of one action that are shown, unless all are wanted
_WAITING: Final = 4096  # packets in queues whose headers are remembered
_SOURCE_COLUMN: Final = 78
_LABEL: Final = 10
_TITLE, _PLAIN, _HIT, _MISS = "bold", "", "green", "yellow"
_BAD, _OUT, _FAINT = "bold red", "bold green", "dim"


@dataclass(frozen=True)
class Line:
    """A line of a block. `label` is the part of the switch that it begins, `style` one of rich's."""

    label: str
    text: str
    style: str = _PLAIN
    indent: int = 0
    source: Source | None = None

    @property
    def place(self) -> str:
        """Return where in the P4 source, or nothing."""
        if self.source is None:
            return ""
        where = f"{self.source.file}:{self.source.line}"
        return where if self.source.text in self.text else f"{where}  {self.source.text}"


class TraceText:
    """Turns events of one program into lines.

    Args:
        program: the program.
        full: show every statement, however many an action has.
    """

    def __init__(self, program: Program, *, full: bool = False) -> None:
        self._program = program
        self._most = 1 << 62 if full else _MOST
        self._came: dict[int, dict[str, dict[str, int]]] = {}  # headers by frame, while packets of it wait
        self._number = 0
        self._headers: dict[str, dict[str, int]] = {}
        self._path = ""
        self._parsed: list[Line] = []
        self._emitted: list[str] = []
        self._section = ""
        self._action: Action | None = None
        self._statements = 0
        self._depth = 0

    def lines(self, events: Iterable[Event]) -> Iterator[Line]:
        """Yield the lines of whole blocks. A line without label goes on with what the last label began."""
        for event in events:
            if not isinstance(event, Executed):
                yield from self._end_of_action()
            if not isinstance(event, Emitted):
                yield from self._deparsed()
            yield from self._line(event)
        yield from self._end_of_action()
        yield from self._deparsed()

    def _labelled(self, section: str) -> str:
        """Return a label, unless the last line has it already."""
        if section == self._section:
            return ""
        self._section = section
        return section

    def _say(self, section: str, text: str, style: str = _PLAIN) -> Line:
        return Line(self._labelled(section), text, style)

    # -- a packet's way ------------------------------------------------------------------------------

    def _line(self, event: Event) -> Iterator[Line]:
        match event:
            case FrameIn(number, port, length, _):
                self._begin(number)
                yield Line(f"#{number}", f"in port {port}, {length} bytes", _TITLE)
            case Turn(number, port, _, waited, behind):
                self._begin(number)
                yield Line(f"#{number}", f"leaves the queue of port {port} after {_time(waited)}", _TITLE)
                if behind:
                    yield Line("queue", f"{_packets(behind)} left behind")
            case Pass(why, length):
                self._section = ""
                yield self._say("again", f"{why}, {length} bytes", _TITLE)
            case State() | Selected() | Extracted() | Parsing() | Parsed() | ChecksumWrong():
                yield from self._parser_line(event)
            case Ingress():
                self._section = ""
            case Egress(port, rid):
                self._section = ""
                yield self._say("egress", f"port {port}" + (f", replica {rid}" if rid else ""))
            case Tested() | Applied() | Called() | Executed():
                yield from self._pipeline_line(event)
            case Emitted(header, kind, fields):
                before = self._headers.get(header)
                self._emitted.append(header_text(header, kind, fields, before))
            case _:
                yield from self._traffic_line(event)

    def _begin(self, number: int) -> None:
        self._number = number
        self._section = ""
        self._headers = dict(self._came.get(number, {}))

    def _parser_line(self, event: Event) -> Iterator[Line]:
        match event:
            case State(state):
                self._path += f" → {state.name}" if self._path else state.name
            case Selected(state, keys):
                shown = (
                    f"{expression_text(expr)}={value_text(key, bits, expression_text(expr))}"
                    for expr, key, bits in zip(state.key, keys, state.key_bits, strict=True)
                )
                self._path += f" ({', '.join(shown)})"
            case Extracted(header, kind, fields):
                self._headers[header] = dict(fields)
                self._parsed.append(Line("", header_text(header, kind, fields)))
            case Parsing(op, values):
                shown_op = parser_op_text(op, values, self._program)
                if shown_op is not None:
                    self._parsed.append(Line("", shown_op))
            case Parsed(error, count):
                end = f" → {'accept' if error is None else f'error {error}'}, {count} bytes parsed"
                style = _PLAIN if error is None else _BAD
                self._section = ""
                yield self._say("parser", (self._path or "nothing to parse") + end, style)
                yield from self._parsed
                self._path, self._parsed = "", []
            case ChecksumWrong():
                yield Line("", "checksum wrong", _BAD)

    def _pipeline_line(self, event: Event) -> Iterator[Line]:
        section = self._section if self._section in ("ingress", "egress") else "ingress"
        match event:
            case Tested(conditional, result):
                source = conditional.source
                shown = expression_text(conditional.condition) if source is None else source.text
                text = f"if ({shown}) → {str(result).lower()}"
                yield Line(self._labelled(section), text, source=source)
            case Applied():
                yield Line(self._labelled(section), *_applied(event))
                self._begin_action(event.action, 1)
            case Called(action, args):
                named = "." in action.name or bool(action.params)
                if named:
                    text = f"{_short(action.name)}({arguments_text(action.params, args)})"
                    yield Line(self._labelled(section), text)
                self._begin_action(action, int(named))
            case Executed(action, _, values):
                done = statement_text(event.statement, values, self._program, action.params)
                if done is not None:
                    self._statements += 1
                    if self._statements <= self._most:
                        source = action.sources[event.number] if action.sources else None
                        yield Line(self._labelled(section), done, _PLAIN, self._depth, source)

    def _begin_action(self, action: Action | None, depth: int) -> None:
        self._action, self._statements, self._depth = action, 0, depth

    def _end_of_action(self) -> Iterator[Line]:
        if self._statements > self._most:
            text = f"… {self._statements - self._most} more statements"
            yield Line("", text, _FAINT, self._depth)
        self._statements = 0

    def _deparsed(self) -> Iterator[Line]:
        if self._emitted:
            yield Line("deparser", " ".join(self._emitted))
            self._emitted = []

    def _traffic_line(self, event: Event) -> Iterator[Line]:
        match event:
            case Cloned(session, None):
                yield self._say("clone", f"no clone session {session}: no copy is made", _BAD)
            case Cloned(session, copies):
                yield self._say("clone", f"session {session}: {_copies(copies or 0)}")
            case Resubmitted():
                yield self._say("traffic", "resubmit: through ingress again, unchanged")
            case Recirculated(length):
                yield self._say("traffic", f"recirculate: through ingress again, {length} bytes")
            case Destined(spec, group, copies):
                yield self._say("traffic", *_destination(spec, group, copies))
            case Queued(port, priority, None):
                yield self._say("queue", f"dropped: queue {priority} of port {port} is full", _BAD)
            case Queued(port, priority, found):
                self._remember()
                yield self._say("queue", f"port {port}, priority {priority}, behind {_packets(found or 0)}")
            case EgressDropped():
                yield self._say("traffic", f"dropped: egress_spec is {DROP_PORT}", _BAD)
            case FrameOut(port, length):
                yield Line("out", f"port {port}, {length} bytes", _OUT)
            case Dropped(why, value):
                yield self._say("traffic", _lost(why, value), _BAD)

    def _remember(self) -> None:
        self._came[self._number] = self._headers
        while len(self._came) > _WAITING:
            del self._came[next(iter(self._came))]


def print_trace(text: TraceText, events: Iterable[Event], out: TextIO) -> None:
    """Write events to a file, or in colours and as wide as it is to a terminal."""
    if out.isatty():
        _print_rich(text, events, Console(file=out, highlight=False))
        return
    for line in text.lines(events):
        out.write(_plain(line) + "\n")


def _plain(line: Line) -> str:
    if line.label.startswith("#"):
        return f"{line.label} {line.text}"
    body = f"  {line.label:{_LABEL}}{'  ' * line.indent}{line.text}"
    return f"{body:{_SOURCE_COLUMN}}  {line.place}" if line.place else body


def _print_rich(text: TraceText, events: Iterable[Event], console: Console) -> None:
    for line in text.lines(events):
        if line.label.startswith("#"):
            console.print(Text.assemble((line.label, "bold cyan"), " ", (line.text, line.style)))
            continue
        grid = Table.grid(padding=0, expand=bool(line.place))
        grid.add_column(width=_LABEL + 2 + 2 * line.indent)
        grid.add_column(ratio=1, overflow="fold")
        row = [Text(f"  {line.label}", "cyan"), Text(line.text, line.style)]
        if line.place:
            grid.add_column(max_width=console.width // 3, no_wrap=True, overflow="ellipsis", justify="right")
            row.append(Text(f"  {line.place}", _FAINT))
        grid.add_row(*row)
        console.print(grid)


# -- pieces ------------------------------------------------------------------------------------------


def _short(name: str) -> str:
    """Return a name without the control at its front."""
    return name.partition(".")[2] or name


def _applied(event: Applied) -> tuple[str, str]:
    table = event.table
    key = (
        f"{each.name}={value_text(value, each.bits, each.name)}"
        for each, value in zip(table.keys, event.key, strict=True)
    )
    if event.hit:
        priority = f", priority {event.priority}" if table.prioritised else ""
        result = f"hit #{event.handle}{priority}" + (f" → {event.via}" if event.via else "")
    else:
        result = "miss" if table.keys else "no key"
    action = "no action"
    if event.action is not None:
        action = f"{_short(event.action.name)}({arguments_text(event.action.params, event.args)})"
    text = f"{_short(table.name)}({', '.join(key)}) {result} → {action}"
    return text, _HIT if event.hit else _MISS if table.keys else _PLAIN


def _destination(spec: int, group: int, copies: int | None) -> tuple[str, str]:
    if group == 0:
        return (f"dropped: egress_spec is {spec}", _BAD) if spec == DROP_PORT else (f"to port {spec}", _PLAIN)
    if copies is None:
        return f"dropped: there is no multicast group {group}", _BAD
    if copies == 0:
        return f"dropped: multicast group {group} is empty", _BAD
    return f"multicast group {group}: {_copies(copies)}", _PLAIN


def _lost(why: Lost, value: int) -> str:
    match why:
        case Lost.TOO_LONG:
            return f"dropped: {value} bytes are too many" if value else "dropped: no byte is left to send"
        case Lost.PASSES:
            return f"dropped: its frame caused {value} passes through egress"
        case Lost.WAITING:
            return "dropped: too many packets wait to start again"
        case Lost.ASSERTION:
            return "dropped: an assertion failed"


def _copies(count: int) -> str:
    return "1 copy" if count == 1 else f"{count} copies"


def _packets(count: int) -> str:
    return "1 packet" if count == 1 else f"{count or 'no'} packets"


def _time(nanoseconds: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds} ns"
