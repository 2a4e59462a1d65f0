# SPDX-License-Identifier: Apache-2.0
"""Actions to C functions."""

from collections.abc import Iterable
from dataclasses import replace

from softp4.codegen.expressions import Compiler
from softp4.codegen.ifconvert import if_convert
from softp4.codegen.keys import arg_words
from softp4.codegen.layout import LOCAL, Layout
from softp4.codegen.locals import Renamer
from softp4.codegen.loops import LoopWriter
from softp4.codegen.reroll import Item, Loop, Reroller
from softp4.codegen.statements import StatementWriter, failure
from softp4.codegen.tracepoints import Tracepoints
from softp4.codegen.usage import (
    destination,
    map_inputs,
    statement_fields,
    storage_changed,
    with_destination,
)
from softp4.codegen.widths import c_type, storage_bits
from softp4.program.ir import Expr, FieldRef, Jump, ShiftStack, can_fail
from softp4.program.types import Action, Param

_INLINED = 400  # statements; a larger action is a function of its own, which costs `state` its registers


def arguments(action: Action) -> tuple[str, ...]:
    """Return the C text of an action's parameters, read from its argument words `a`."""
    return tuple(_argument(word, count) for word, count in arg_words(action))


def _argument(word: int, count: int) -> str:
    if count > 2:
        return f"sw_wide_words(a + {word}, {count})"
    return f"a[{word}]" if count == 1 else f"((sw_u128)a[{word + 1}] << 64 | a[{word}])"


def action_function(layout: Layout, action: Action, private: set[FieldRef]) -> str:
    """Return the C text of ``void action_<id>(s, p, m, a)``: `a` points at the argument words."""
    action = replace(action, body=if_convert(action.body))
    renamer = Renamer(layout, action, private)
    compiler = Compiler(layout, action.params, f"action {action.name}", arguments=arguments(action))
    writer = StatementWriter(layout, compiler)
    loops = LoopWriter(layout, compiler, writer)
    reroller = Reroller(layout, compiler.ranges, str(action.id))
    targets = {each.target for each in action.body if isinstance(each, Jump)}
    lines: list[str] = []
    local = dict.fromkeys(renamer.shared)
    for block in renamer.blocks:
        items = reroller.block(renamer.block(block))
        local.update(dict.fromkeys(_temporaries(items)))
        if block.label in targets:
            lines.append(f"L{block.label}:;")
        for item in items:
            if isinstance(item, Loop):
                lines += loops.write(item)
            elif isinstance(item, Jump):
                lines.append(_jump(item, compiler))
            else:
                lines += writer.write(item)
    if len(action.body) in targets:
        lines.append(f"L{len(action.body)}:;")
    declared = [f"{c_type(storage_bits(layout.field_type(ref).bits))} {ref.field} = 0;" for ref in local]
    kind = "SW_INLINE" if len(action.body) <= _INLINED else "SW_HOT"
    return _function(action, kind, [*_touch(layout, action), *_turns(action), *declared, *lines])


def traced_action_function(layout: Layout, action: Action, private: set[FieldRef]) -> str:
    """Return the function of an action, statement by statement, with a tracepoint at each."""
    trace = Tracepoints(True)
    compiler = Compiler(layout, action.params, f"action {action.name}", arguments=arguments(action))
    writer = StatementWriter(layout, compiler)
    own = {ref for statement in action.body for ref in statement_fields(layout.program, statement)} & private
    names: dict[Expr, FieldRef] = {}
    for number, ref in enumerate(sorted(own, key=str)):
        kind = layout.field_type(ref)
        names[ref] = layout.add_local(f"t{action.id}_{number}", kind.bits, kind.signed)
    targets = {each.target for each in action.body if isinstance(each, Jump)}
    lines = _turns(action)
    for ref in names.values():
        lines.append(f"{c_type(storage_bits(layout.field_type(ref).bits))} {ref.field} = 0;")
        lines.append(f"(void){ref.field};")
    for number, original in enumerate(action.body):
        statement = map_inputs(original, names.get)
        dst = destination(statement)
        if isinstance(dst, FieldRef) and dst in names:
            statement = with_destination(statement, names[dst])
        if number in targets:
            lines.append(f"L{number}:;")
        written = [_jump(statement, compiler)] if isinstance(statement, Jump) else writer.write(statement)
        lines += trace.statement(action.id, number, statement, written, compiler)
    if len(action.body) in targets:
        lines.append(f"L{len(action.body)}:;")
    return _function(action, "static", [*_touch(layout, action), *lines])


def _function(action: Action, kind: str, lines: list[str]) -> str:
    head = f"// {action.name}({', '.join(_shown(param) for param in action.params)})"
    body = "\n".join(f"    {line}" for line in lines)
    signature = f"{kind} void action_{action.id}(sw_state *s, phv *p, state *m, const uint64_t *a)"
    return f"{head}\n{signature} {{\n    (void)s, (void)p, (void)m, (void)a;\n{body}\n}}\n"


def shifted_stacks(statements: Iterable[object]) -> list[str]:
    """List the stacks that some statement pushes to or pops from."""
    return list(dict.fromkeys(each.stack for each in statements if isinstance(each, ShiftStack)))


def _shown(param: Param) -> str:
    return f"bit<{param.bits}> {param.name}"


def _turns(action: Action) -> list[str]:
    """Return the C text that declares what counts the turns of the action's loops, if it has any."""
    loops = any(isinstance(each, Jump) and can_fail(each) for each in action.body)
    return ["uint32_t turns = 0;"] if loops else []


def _jump(jump: Jump, compiler: Compiler) -> str:
    if jump.number is not None:
        checked = f"if (SW_RARE(++turns > SW_MOST_TURNS)) {failure(jump.number)}"
        return f"{{ {checked} {_jump(Jump(jump.target, jump.unless), compiler)} }}"
    if jump.unless is None:
        return f"goto L{jump.target};"
    return f"if (!({compiler.boolean(jump.unless)})) goto L{jump.target};"


def _temporaries(items: list[Item]) -> list[FieldRef]:
    found = []
    for item in items:
        if not isinstance(item, Loop):
            dst = destination(item)
            if isinstance(dst, FieldRef) and dst.header == LOCAL and dst.field.startswith("v"):
                found.append(dst)
    return found


def _touch(layout: Layout, action: Action) -> list[str]:
    """Mark the headers whose storage the action may change, for `forget_headers` of the next packet."""
    headers = {name for each in action.body for name in storage_changed(layout.program, each)}
    return [f"p->touched[{word}] |= 0x{mask:x}ull;" for word, mask in layout.masks(headers)]
