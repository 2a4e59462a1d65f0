# SPDX-License-Identifier: Apache-2.0
"""Headers the parser may look at, or write to, before it has extracted them.

The storage of a header that is not valid must read as zero, whatever an earlier packet left there. It is
cleared after parsing (most headers have just been overwritten by then). The few headers found here have to
be cleared before.
"""

from collections.abc import Iterator

from softp4.codegen.layout import Layout
from softp4.codegen.usage import fields_in, header_and_siblings, headers_changed, inputs, walk
from softp4.program.ir import (
    Advance,
    CopyVarbit,
    Expr,
    Extract,
    ExtractNext,
    ParserOp,
    StackField,
    StackValid,
    Verify,
)
from softp4.program.types import ParserState, Program


def early_headers(program: Program) -> set[str]:
    """Return the packet headers that some path through the parser touches before it extracts them."""
    states = program.parser.states
    certain: dict[str, frozenset[str]] = {}
    exposed: set[str] = set()
    pending: list[str] = []
    if program.parser.init_state is not None:
        certain[program.parser.init_state] = frozenset()
        pending.append(program.parser.init_state)
    while pending:
        state = states[pending.pop()]
        after, touched = _through(program, state, certain[state.name])
        exposed |= touched
        for target in set(state.following):
            if target is None:
                continue
            merged = certain[target] & after if target in certain else after
            if merged != certain.get(target):
                certain[target] = merged
                pending.append(target)
    return {name for name in exposed if not program.headers[name].metadata}


def parser_writes(program: Program) -> set[str]:
    """Return headers the parser changes other than by extracting them, or may make invalid again."""
    changed = set()
    for state in program.parser.states.values():
        for op in state.ops:
            match op:
                case Extract(header):
                    others = header_and_siblings(program, header)
                    changed |= others if len(others) > 1 else set()
                case ExtractNext(stack):
                    if program.stacks[stack].union_stack is not None:
                        changed.update(program.stacks[stack].headers)
                case Advance() | Verify():
                    pass
                case _:
                    changed |= headers_changed(program, op)
    return {name for name in changed if not program.headers[name].metadata}


def _through(
    program: Program, state: ParserState, certain: frozenset[str]
) -> tuple[frozenset[str], set[str]]:
    extracted = set(certain)
    touched: set[str] = set()
    for op in state.ops:
        if isinstance(op, Extract):
            touched |= set() if op.length is None else _read(program, op.length) - extracted
            extracted.add(op.header)
            continue
        for expr in _expressions(op):
            touched |= _read(program, expr) - extracted
        if not isinstance(op, ExtractNext | Advance | Verify):
            touched |= headers_changed(program, op) - extracted
    for expr in state.key:
        touched |= _read(program, expr) - extracted
    return frozenset(extracted), touched


def _expressions(op: ParserOp) -> Iterator[Expr]:
    match op:
        case Advance(bits):
            yield bits
        case Verify(condition, error):
            yield condition
            yield error
        case CopyVarbit(_, src):
            yield from inputs(op)
            yield src
        case Extract(_, length) | ExtractNext(_, length):
            if length is not None:
                yield length
        case _:
            yield from inputs(op)


def _read(program: Program, expr: Expr) -> set[str]:
    headers = {ref.header for ref in fields_in(expr)}
    for node in walk(expr):
        if isinstance(node, StackField | StackValid):
            headers.update(program.stacks[node.stack].headers)
    return headers


def forget_functions(layout: Layout) -> str:
    """Return the C text of ``forget_before_parsing(p)`` and ``forget_after_parsing(p, m)``.

    They clear the storage of headers that earlier packets left and this one does not have.
    """
    cases = "".join(
        f"    case {bit}: memset(&{layout.header(name)}, 0, sizeof {layout.header(name)}); break;\n"
        for name, bit in layout.header_index.items()
    )
    stored = dict(layout.masks(layout.header_index))
    early = dict(layout.masks(early_headers(layout.program)))
    written = dict(layout.masks(parser_writes(layout.program)))
    before = "\n".join(f"    clear(p, {w}, p->touched[{w}] & 0x{mask:x}ull);" for w, mask in early.items())
    after = []
    for w, mask in stored.items():
        late = mask & ~early.get(w, 0)
        after.append(f"    clear(p, {w}, p->touched[{w}] & ~m->valid[{w}] & 0x{late:x}ull);")
        after.append(f"    p->touched[{w}] = (m->valid[{w}] & 0x{mask:x}ull) | 0x{written.get(w, 0):x}ull;")
    after_text = "\n".join(after)
    return f"""static __attribute__((noinline)) void clear_headers(phv *p, unsigned word, uint64_t stale) {{
    for (; stale != 0; stale &= stale - 1) switch (64 * word + (unsigned)__builtin_ctzll(stale)) {{
{cases}    }}
}}
SW_INLINE void clear(phv *p, unsigned word, uint64_t stale) {{
    if (SW_RARE(stale != 0)) clear_headers(p, word, stale);
}}
SW_INLINE void forget_before_parsing(phv *p) {{
    (void)p;
{before}
}}
SW_INLINE void forget_after_parsing(phv *p, const state *m) {{
    (void)p, (void)m;
{after_text}
}}
"""
