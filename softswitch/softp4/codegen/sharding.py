# SPDX-License-Identifier: Apache-2.0
"""Which bits of a frame decide what state it touches: by them threads can share the frames and nothing else.

The question is Maestro's (Pereira et al., NSDI 2024) for network functions: frames that may touch the same
register cell or meter must go to the same thread. Here it is answered for v1model programs. An abstract run
through both pipelines follows each bit of the fields that indices are computed from (`codegen/bits.py`). A
cell's index says which frames touch it: where a bit of the index is always the same bit of the frame, frames
that differ in it never meet in that register. Bits that hold for all state of the program are its key.
Counters do not matter, as sums of each thread's add up to the same.

The run takes only the actions that entries have, and with the bits of their arguments that all entries agree
on (`Facts`): that a job's slots begin at a multiple of 64 is what makes the low bits of the slot decide, and
a table without entries leads nowhere. Whoever uses the result must ask again when an entry contradicts the
facts.

Loose registers (`codegen/loose.py`) do not matter either.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from softp4.codegen.abstract_run import FORBIDDEN, PORT, Facts, Prepared, Run, can_decide
from softp4.codegen.bits import Bits, FrameBit
from softp4.codegen.ifconvert import if_convert
from softp4.codegen.pipeline import topological
from softp4.codegen.usage import (
    destination,
    fields_in,
    headers_changed,
    inputs,
    walk,
)
from softp4.program.ir import (
    Assign,
    ExecuteMeter,
    Exit,
    Expr,
    FieldRef,
    Jump,
    MarkToDrop,
    ParamRef,
    Random,
    RegisterRead,
    RegisterRef,
    RegisterWrite,
    Statement,
)
from softp4.program.types import Program


@dataclass(frozen=True)
class Sharding:
    """Result: the `key`, bits of the frame by which it may be given to threads, or the `reasons` why not.

    Neither: the program keeps no state, and any thread may take any frame.
    """

    key: tuple[FrameBit, ...]
    reasons: tuple[str, ...]


class Sharder:
    """Answers for one program.

    Args:
        program: the program.
        loose: its loose registers, as ``loose_registers`` finds them.

    Attributes:
        fields: of the frame, those whose bits can be in a key.
        loose: see above.
        parameters: by action id, the parameters that indices are computed from.
    """

    def __init__(self, program: Program, loose: frozenset[str]) -> None:
        self._program = program
        self._bodies = {action.id: if_convert(action.body) for action in program.actions.values()}
        self.loose = loose
        indices = set(self._indices())
        self._relevant = self._closure({ref for expr in indices for ref in fields_in(expr)})
        self.fields = tuple(
            sorted(
                (ref for ref in self._relevant if _of_frame(program, ref)),
                key=lambda ref: (ref.header, ref.field),
            )
        )
        self.parameters = self._parameters(indices)
        self._relevant |= self._closure(set(self._conditions()))
        flags = [
            ref
            for ref in self._relevant
            if program.headers[ref.header].metadata and program.field(ref).bits == 1
        ]
        order = {pipeline.name: topological(pipeline) for pipeline in (program.ingress, program.egress)}
        steps = {number: self._only_relevant(body) for number, body in self._bodies.items()}
        jumping = {
            number
            for number, body in self._bodies.items()
            if any(isinstance(statement, Jump | Exit) for statement in body)
        }
        self._prepared = Prepared(steps, jumping, order, flags, self.loose)

    def derive(self, facts: Facts) -> Sharding:
        """Return by which bits of a frame the program may shard while these are the facts."""
        run = Run(self._program, self._prepared, facts)
        left = run.pipeline(self._program.ingress, [run.parsed(self._relevant)])
        run.pipeline(self._program.egress, [run.departing(env) for env in left])
        reasons = [*_unfollowed(self._program), *run.reasons]
        keys: list[set[FrameBit]] = []
        for what, accesses in run.accesses.items():
            found = _certain(list(accesses))
            if not found:
                place = next(
                    (name for bits, name in accesses.items() if not _certain([bits])), "its indices differ"
                )
                reasons.append(f"{what}: no bit of the frame decides about its index ({place})")
            keys.append(found)
        shared = set.intersection(*keys) if keys else set()
        if keys and all(keys) and not shared:
            names = ", ".join(run.accesses)
            reasons.append(f"no bit of the frame decides about the index of all of them: {names}")
        key = sorted(shared, key=lambda bit: (bit[0].header, bit[0].field, bit[1]))
        return Sharding(() if reasons else tuple(key), tuple(reasons))

    # -- what matters ----------------------------------------------------------------------------------

    def _statements(self) -> Iterator[tuple[int, Statement]]:
        for number, body in self._bodies.items():
            for statement in body:
                yield number, statement

    def _indices(self) -> Iterator[Expr]:
        for _, statement in self._statements():
            if isinstance(statement, RegisterRead | RegisterWrite) and statement.register not in self.loose:
                yield statement.index
            if isinstance(statement, ExecuteMeter):
                yield statement.index
            for expr in inputs(statement):
                yield from (node.index for node in walk(expr) if isinstance(node, RegisterRef))

    def _conditions(self) -> Iterator[FieldRef]:
        """Yield the metadata that conditions ask for: programs keep in it what they decided."""
        for conditional in self._program.conditionals.values():
            for ref in fields_in(conditional.condition):
                if self._program.headers[ref.header].metadata:
                    yield ref

    def _closure(self, fields: set[FieldRef]) -> set[FieldRef]:
        """Return these fields and those that are assigned to them, over any number of steps."""
        before = -1
        while before != len(fields):
            before = len(fields)
            for _, statement in self._statements():
                if isinstance(statement, Assign) and statement.dst in fields:
                    fields |= set(fields_in(statement.src))
        return {ref for ref in fields if ref.header in self._program.headers}

    def _parameters(self, indices: set[Expr]) -> dict[int, frozenset[int]]:
        found: dict[int, set[int]] = {}
        for number, statement in self._statements():
            exprs = [expr for expr in inputs(statement) if expr in indices]
            if isinstance(statement, Assign) and statement.dst in self._relevant:
                exprs.append(statement.src)
            for expr in exprs:
                found.setdefault(number, set()).update(
                    node.index for node in walk(expr) if isinstance(node, ParamRef)
                )
        return {number: frozenset(params) for number, params in found.items() if params}

    def _only_relevant(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """Leave out the statements that neither touch state nor what is followed, and all jumps."""
        kept: dict[Statement, None] = {}
        for statement in body:
            dst = destination(statement)
            if isinstance(statement, RegisterRead | RegisterWrite) and statement.register in self.loose:
                touches = dst in self._relevant
            else:
                touches = isinstance(
                    statement, (RegisterRead, RegisterWrite, ExecuteMeter, *FORBIDDEN, MarkToDrop)
                ) or any(isinstance(node, RegisterRef) for expr in inputs(statement) for node in walk(expr))
            if touches or any(ref in self._relevant for ref in self._changed(statement)):
                kept.setdefault(statement)
        return tuple(statement for statement in body if statement in kept)

    def _changed(self, statement: Statement) -> Iterator[FieldRef]:
        dst = destination(statement)
        if isinstance(dst, FieldRef):
            yield dst
        else:
            headers = headers_changed(self._program, statement)
            yield from (ref for ref in self._relevant if ref.header in headers)


def _of_frame(program: Program, ref: FieldRef) -> bool:
    """Return whether a field's bits can be in a key."""
    return ref == PORT or (not program.headers[ref.header].metadata and can_decide(program.field(ref)))


def _unfollowed(program: Program) -> Iterator[str]:
    """Yield reasons that lie outside the pipelines."""
    for calculation in program.calculations.values():
        if calculation.algorithm.value == "round_robin":
            yield f"{calculation.name}: round_robin counts all frames"
    outside = [op for state in program.parser.states.values() for op in state.ops]
    for each in (*outside, *program.deparser_body):
        if isinstance(each, Statement) and (
            isinstance(each, RegisterRead | RegisterWrite | ExecuteMeter | Random)
            or any(isinstance(node, RegisterRef) for expr in inputs(each) for node in walk(expr))
        ):
            yield "state is used outside ingress and egress"


def _certain(indices: Sequence[Bits | None]) -> set[FrameBit]:
    """Return the frame's bits that each of these indices has, at one place in all of them."""
    if any(each is None for each in indices):
        return set()
    return {
        first
        for first, *others in zip(*(each or () for each in indices), strict=False)
        if isinstance(first, tuple) and all(other == first for other in others)
    }
