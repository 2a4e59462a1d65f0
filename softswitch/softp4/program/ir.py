# SPDX-License-Identifier: Apache-2.0
"""Expressions and statements of a v1model program.

Expressions have BMv2's meaning: integers of unlimited precision, cut to a field's width when stored.
"""

from dataclasses import dataclass

# -- expressions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Const:
    """An integer, possibly negative."""

    value: int


@dataclass(frozen=True)
class BoolConst:
    """true or false."""

    value: bool


@dataclass(frozen=True)
class FieldRef:
    """A field of a header instance or metadata struct."""

    header: str
    field: str


@dataclass(frozen=True)
class Valid:
    """Validity of a header, as 0 or 1 (BMv2's hidden field ``$valid$``)."""

    header: str


@dataclass(frozen=True)
class ParamRef:
    """Parameter `index` of the enclosing action."""

    index: int


@dataclass(frozen=True)
class Lookahead:
    """`bits` bits of the unparsed packet, `offset` bits ahead (parser only)."""

    offset: int
    bits: int


@dataclass(frozen=True)
class StackLast:
    """A field of the last valid element of a stack."""

    stack: str
    field: str


@dataclass(frozen=True)
class StackField:
    """Field number `field` of element `index` (known at run time only) of a stack."""

    stack: str
    index: "Expr"
    field: int


@dataclass(frozen=True)
class StackValid:
    """Validity of element `index` (known at run time only) of a stack, as 0 or 1."""

    stack: str
    index: "Expr"


@dataclass(frozen=True)
class Element:
    """Element `index` (known at run time only) of a stack, as a whole header."""

    stack: str
    index: "Expr"


HeaderRef = str | Element


@dataclass(frozen=True)
class StackCount:
    """Number of elements of a stack that are in use, less `minus` (1: BMv2's ``last_stack_index``)."""

    stack: str
    minus: int = 0


@dataclass(frozen=True)
class RegisterRef:
    """A register cell read in place."""

    register: str
    index: "Expr"


@dataclass(frozen=True)
class Unary:
    """``not`` ``~`` ``-`` ``d2b`` ``b2d``."""

    op: str
    operand: "Expr"


@dataclass(frozen=True)
class Binary:
    """A BMv2 operator over integers or booleans (``and``/``or``/``==b``/``!=b`` over booleans)."""

    op: str
    left: "Expr"
    right: "Expr"


@dataclass(frozen=True)
class HeadersEqual:
    """Both headers are valid and all their fields equal."""

    left: str
    right: str


@dataclass(frozen=True)
class VarbitsEqual:
    """Two varbit fields are the same number; as in BMv2, zero bytes in front do not count."""

    left: "Lvalue"
    right: "Lvalue"


@dataclass(frozen=True)
class Ternary:
    """``condition ? yes : no``."""

    condition: "Expr"
    yes: "Expr"
    no: "Expr"


Expr = (
    Const
    | BoolConst
    | FieldRef
    | Valid
    | ParamRef
    | Lookahead
    | StackLast
    | StackField
    | StackValid
    | StackCount
    | RegisterRef
    | Unary
    | Binary
    | HeadersEqual
    | VarbitsEqual
    | Ternary
)

Lvalue = FieldRef | StackField | StackLast

# -- statements ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Assign:
    """`dst` = `src`, cut to dst's width."""

    dst: Lvalue
    src: Expr


@dataclass(frozen=True)
class CopyHeader:
    """Makes `dst` equal to `src`, validity included. An element outside its stack is invalid and stays so."""

    dst: HeaderRef
    src: HeaderRef


@dataclass(frozen=True)
class CopyUnion:
    """Makes union `dst` equal to union `src`."""

    dst: str
    src: str


@dataclass(frozen=True)
class CopyStack:
    """Makes stack `dst`, of headers or unions, equal to stack `src`."""

    dst: str
    src: str


@dataclass(frozen=True)
class CopyVarbit:
    """Makes varbit field `dst` equal to `src`, length included."""

    dst: Lvalue
    src: Lvalue


@dataclass(frozen=True)
class SetValid:
    """Adds a header (its fields start at zero), or removes it. A union's other members become invalid."""

    header: HeaderRef
    valid: bool


@dataclass(frozen=True)
class ShiftStack:
    """push_front (`count` > 0) or pop_front (`count` < 0), of a stack of headers or unions."""

    stack: str
    count: int


@dataclass(frozen=True)
class RegisterRead:
    """`dst` = register[index]; nothing happens when the index is out of range.

    Where `dst` is a temporary, which has no value before, it is `otherwise` (None: 0) then.
    """

    dst: Lvalue
    register: str
    index: Expr
    otherwise: Expr | None = None


@dataclass(frozen=True)
class RegisterWrite:
    """register[index] = value; nothing happens when the index is out of range."""

    register: str
    index: Expr
    value: Expr


@dataclass(frozen=True)
class CounterAdd:
    """Counts the packet in an indirect counter; nothing happens when the index is out of range."""

    counter: str
    index: Expr


@dataclass(frozen=True)
class ExecuteMeter:
    """`dst` = the packet's colour (0 green, 1 yellow, 2 red); nothing when the index is out of range."""

    dst: Lvalue
    meter: str
    index: Expr


@dataclass(frozen=True)
class GenerateDigest:
    """Tells the control plane the fields of a digest as they are after ingress; in egress, nothing."""

    digest: int


@dataclass(frozen=True)
class MarkToDrop:
    """egress_spec = 511, mcast_grp = 0."""


@dataclass(frozen=True)
class Hash:
    """`dst` = base + calculation % modulus (modulus 0 counts as 1)."""

    dst: Lvalue
    base: Expr
    calculation: str
    modulus: Expr


@dataclass(frozen=True)
class Random:
    """`dst` = uniform integer in [low, high]; unchanged when low > high."""

    dst: Lvalue
    low: Expr
    high: Expr


@dataclass(frozen=True)
class Clone:
    """Asks for a clone at the end of the pipeline, keeping the fields of a field list."""

    session: Expr
    field_list: int


@dataclass(frozen=True)
class Resubmit:
    """Asks to run ingress again on the packet as it came."""

    field_list: int


@dataclass(frozen=True)
class Recirculate:
    """Asks to run ingress on the deparsed packet."""

    field_list: int


@dataclass(frozen=True)
class Truncate:
    """Cuts the outgoing packet to `length` bytes."""

    length: Expr


@dataclass(frozen=True)
class LogMessage:
    """log_msg: `parts` around the values of `operands`, one more than there are of these.

    It is what a trace shows; without one, nothing happens.
    """

    parts: tuple[str, ...]
    operands: tuple[Expr, ...]


@dataclass(frozen=True)
class Assert:
    """assert or assume: unless the condition holds, the packet ends and assertion `number` is counted."""

    condition: Expr
    number: int


@dataclass(frozen=True)
class Exit:
    """Ends the pipeline after this action."""


@dataclass(frozen=True)
class Jump:
    """Goes to statement `target` of the action; with a condition, only when it is zero or false.

    Going back too often ends the packet like the failure of assertion `number`, which only such jumps have.
    """

    target: int
    unless: Expr | None = None
    number: int | None = None


def can_fail(statement: object) -> bool:
    """Return whether a statement can end the packet."""
    return isinstance(statement, Assert) or (isinstance(statement, Jump) and statement.number is not None)


Statement = (
    Assign
    | CopyHeader
    | CopyUnion
    | CopyStack
    | CopyVarbit
    | SetValid
    | ShiftStack
    | RegisterRead
    | RegisterWrite
    | CounterAdd
    | ExecuteMeter
    | GenerateDigest
    | MarkToDrop
    | Hash
    | Random
    | Clone
    | Resubmit
    | Recirculate
    | Truncate
    | LogMessage
    | Assert
    | Exit
    | Jump
)

# -- parser operations ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Extract:
    """Extracts a header from the packet; `length` is the bits of its varbit field."""

    header: str
    length: Expr | None = None


@dataclass(frozen=True)
class ExtractNext:
    """Extracts the next element of a stack; full: error StackOutOfBounds. `length` as in Extract."""

    stack: str
    length: Expr | None = None


@dataclass(frozen=True)
class Advance:
    """Skips `bits` bits, which must be whole bytes (else error ParserInvalidArgument)."""

    bits: Expr


@dataclass(frozen=True)
class Verify:
    """Ends parsing with `error` unless the condition holds."""

    condition: Expr
    error: Expr


ParserOp = (
    Extract
    | ExtractNext
    | Advance
    | Verify
    | Assign
    | CopyHeader
    | CopyUnion
    | CopyStack
    | CopyVarbit
    | SetValid
    | ShiftStack
    | LogMessage
    | Assert
)
