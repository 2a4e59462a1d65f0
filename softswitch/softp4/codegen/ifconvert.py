# SPDX-License-Identifier: Apache-2.0
"""Small conditionals inside actions become selections: `if (a > b) b = a` is `b = a > b ? a : b`.

What is left is straight-line code, which can be re-rolled into loops and vectorised. Only assignments
are converted: evaluating an expression has no effect and cannot fail.
"""

from dataclasses import replace
from typing import Final

from softp4.codegen.usage import fields_in, walk
from softp4.program.ir import (
    Assign,
    Expr,
    FieldRef,
    Jump,
    Lookahead,
    RegisterRef,
    Statement,
    Ternary,
)

_MOST: Final = 4  # assignments on one side


def if_convert(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return the action body with small conditionals replaced, innermost first."""
    at = len(body) - 1
    while at >= 0:
        converted = _convert(body, at)
        if converted is not None:
            body = converted
        at -= 1
    return body


def _convert(body: tuple[Statement, ...], at: int) -> tuple[Statement, ...] | None:
    jump = body[at]
    if not isinstance(jump, Jump) or jump.unless is None or jump.target <= at:
        return None
    condition = jump.unless
    end = jump.target
    then_part = body[at + 1 : end]
    last = then_part[-1] if then_part else None
    else_part: tuple[Statement, ...] = ()
    if isinstance(last, Jump) and last.unless is None and last.target >= end:
        else_part = body[end : last.target]
        then_part = then_part[:-1]
        end = last.target
    if _entered(body, at, end, jump.target if else_part else end):
        return None
    selected = _select(condition, then_part, else_part)
    if selected is None:
        return None
    shift = end - at - len(selected)
    replaced = (*body[:at], *selected, *body[end:])
    return tuple(
        replace(each, target=each.target - shift) if isinstance(each, Jump) and each.target >= end else each
        for each in replaced
    )


def _entered(body: tuple[Statement, ...], at: int, end: int, else_start: int) -> bool:
    """Return whether some other jump leads into the middle of the conditional."""
    return any(
        isinstance(each, Jump) and at < each.target < end and not (number == at and each.target == else_start)
        for number, each in enumerate(body)
    )


def _select(
    condition: Expr, then_part: tuple[Statement, ...], else_part: tuple[Statement, ...]
) -> list[Statement] | None:
    yes, no = _assignments(then_part), _assignments(else_part)
    if yes is None or no is None or any(isinstance(node, RegisterRef) for node in walk(condition)):
        return None
    tested = set(fields_in(condition))
    if len(yes) == len(no) == 1 and yes[0][0] == no[0][0]:
        return [Assign(yes[0][0], Ternary(condition, yes[0][1], no[0][1]))]
    # the condition is evaluated again for each assignment: what it reads may change only at the last
    if any(dst in tested for dst, _ in [*yes, *no][:-1]):
        return None
    return [
        *(Assign(dst, Ternary(condition, src, dst)) for dst, src in yes),
        *(Assign(dst, Ternary(condition, dst, src)) for dst, src in no),
    ]


def _assignments(part: tuple[Statement, ...]) -> list[tuple[FieldRef, Expr]] | None:
    if len(part) > _MOST:
        return None
    result = []
    for each in part:
        if not isinstance(each, Assign) or not isinstance(each.dst, FieldRef):
            return None
        if any(isinstance(node, RegisterRef | Lookahead) for node in walk(each.src)):
            return None
        result.append((each.dst, each.src))
    return result
