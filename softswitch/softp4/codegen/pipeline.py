# SPDX-License-Identifier: Apache-2.0
"""Pipelines to C: tables and conditionals are labels, what follows what is gotos."""

from softp4.codegen.expressions import Compiler, literal
from softp4.codegen.keys import KeyLayout, Piece, arg_word_count, entry_words, key_layout
from softp4.codegen.layout import Layout
from softp4.codegen.skips import skips
from softp4.codegen.statements import meter_colour, word_assignment
from softp4.codegen.tracepoints import TraceKind, Tracepoints
from softp4.program.ir import Binary, Exit, Expr, FieldRef, Valid, can_fail
from softp4.program.tables import successors
from softp4.program.types import Action, ActionCall, MatchKind, Meter, Pipeline, Table, TableKey


class PipelineWriter:
    """Writes one pipeline."""

    def __init__(self, layout: Layout, pipeline: Pipeline, trace: Tracepoints) -> None:
        self._layout = layout
        self._trace = trace
        self._pipeline = pipeline
        self._order = topological(pipeline)
        self._labels = {name: f"N{number}" for number, name in enumerate(self._order)}
        self._numbers = {name: number for number, name in enumerate(layout.program.tables)}
        self._skips = skips(layout, pipeline, self._order)

    def function(self) -> str:
        """Return the C text of ``void <pipeline>(s, p, m)``."""
        lines = ["(void)s, (void)p, (void)m;", self._go(self._pipeline.init)]
        for name in self._order:
            lines.append(f"{self._labels[name]}: {{ // {name}")
            node = self._table(name) if name in self._pipeline.tables else self._conditional(name)
            lines += (f"    {line}" for line in node)
            lines.append("}")
        body = "\n".join(f"    {line}" for line in lines)
        return f"SW_INLINE void {self._pipeline.name}(sw_state *s, phv *p, state *m) {{\n{body}\n}}\n"

    def _go(self, node: str | None) -> str:
        return "return;" if node is None else f"goto {self._labels[node]};"

    def _conditional(self, name: str) -> list[str]:
        conditional = self._pipeline.conditionals[name]
        compiler = Compiler(self._layout, (), f"conditional {name}")
        yes, no = self._go(conditional.true_next), self._go(conditional.false_next)
        if self._trace.enabled:
            held = f"const int held = {compiler.boolean(conditional.condition)};"
            number = list(self._layout.program.conditionals).index(name)
            return [held, *self._trace.record(TraceKind.CONDITION, number, "held"), f"if (held) {yes}", no]
        skip = self._skips.get(name)
        first = [f"if (!({skip.condition})) {self._go(skip.to)}"] if skip is not None else []
        return [*first, *_tests(compiler, conditional.condition, yes, no), no]

    def _table(self, name: str) -> list[str]:
        table = self._pipeline.tables[name]
        if table.fixed is not None:
            return self._fixed(table, table.fixed)
        number = self._numbers[name]
        lines = []
        words = 0
        if table.keys:
            packing = key_layout(table)
            words = packing.words
            lines.append(f"const uint64_t key[{words}] = {{{', '.join(self._key(table, packing))}}};")
            lines.append(f"sw_entry *e = {self._lookup(table, packing, number)};")
            lines.append("const int hit = e != NULL;")
            lines.append(f"if (!hit) e = s->tables[{number}].fallback;")
            if hit := self._on_hit(table, number):
                lines.append(f"else {{ {' '.join(hit)} }}")
        else:
            lines += [f"sw_entry *e = s->tables[{number}].fallback;", "const int hit = 0;"]
        lines += self._chosen(table, words)
        lines.append("(void)a, (void)hit;")
        actions = self._layout.program.table_actions(table)
        lines += self._trace.table(number, words, arg_word_count(actions))
        lines.append("switch (action) {")
        for action in actions:
            follow = self._after(action)
            if not table.by_hit:
                follow += self._go(table.next_by_action.get(action.id, table.base_next))
            else:
                follow += "break;"
            label = self._labelled(table, action)
            lines.append(f"case {label}: action_{action.id}(s, p, m, a); {follow}")
        lines.append("}")
        if table.by_hit:
            lines.append(f"if (hit) {self._go(table.next_hit)}")
            lines.append(self._go(table.next_miss))
        else:
            lines.append(self._go(table.base_next))
        return lines

    def _on_hit(self, table: Table, number: int) -> list[str]:
        """Return what a hit leaves in the entry, and the colour that its meter gives the packet."""
        lines = []
        if table.counted:
            lines.append("e->packets++; e->bytes += m->ingress_length;")
        if table.ages:
            lines.append(f"sw_entry_idle(&s->tables[{number}], e)->hit = s->now;")
        if table.meter is not None and table.meter.target is not None:
            lines += self._meter(table.meter, table.meter.target, f"sw_entry_meter(&s->tables[{number}], e)")
        return lines

    def _meter(self, meter: Meter, target: FieldRef, place: str) -> list[str]:
        slot = self._layout.slot(target)
        masks = self._layout.masks({target.header})
        touch = (f"p->touched[{word}] |= 0x{mask:x}ull;" for word, mask in masks)
        colour = f"{meter_colour(meter, place)} & {min(3, (1 << slot.bits) - 1)}"
        return [*touch, word_assignment(self._layout, slot, colour)]

    def _chosen(self, table: Table, words: int) -> list[str]:
        """Declare `action` and its arguments `a`: the entry's own, or those of the member it refers to.

        An empty group does nothing, as in BMv2.
        """
        entry = ["uint32_t action = e->action;", f"const uint64_t *a = e->words + {words};"]
        if table.profile is None:
            return entry
        program = self._layout.program
        selector = program.action_profiles[table.profile].selector
        profile = f"&s->profiles[{list(program.action_profiles).index(table.profile)}]"
        lines = [
            *entry,
            "if (action == SW_BY_MEMBER) {",
            f"    const sw_member *member = sw_profile_member({profile}, a[0]);",
            "    action = member->action, a = member->args;",
        ]
        if selector is not None:
            hashed = f"(uint32_t)calculation_{list(program.calculations).index(selector)}(s, p, m)"
            lines += [
                "} else if (action == SW_BY_GROUP) {",
                f"    const sw_member_group *group = sw_profile_group({profile}, a[0]);",
                "    if (group->count != 0) {",
                f"        const sw_member *member = group->members[{hashed} % group->count];",
                "        action = member->action, a = member->args;",
                "    }",
            ]
        return [*lines, "}"]

    def _labelled(self, table: Table, action: Action) -> int:
        """Return the number by which entries and members call an action."""
        if table.profile is None or action.id not in table.actions:
            return action.id
        return self._layout.program.profile_actions(table.profile)[action.name].id

    def _fixed(self, table: Table, call: ActionCall) -> list[str]:
        """Return a table without key whose action the program fixed: a plain call."""
        action = self._layout.program.actions[call.action]
        lines = []
        argument = "NULL"
        if action.params:
            values: list[str] = []
            for param, value in zip(action.params, call.args, strict=True):
                values += (literal(value >> low & (1 << 64) - 1, 64) for low in range(0, param.bits, 64))
            lines.append(f"static const uint64_t a[] = {{{', '.join(values)}}};")
            argument = "a"
        args = [f"a[{i}]" for i in range(arg_word_count([action]))]
        lines += self._trace.record(TraceKind.CALL, action.id, *args)
        lines.append(f"action_{action.id}(s, p, m, {argument});{self._after(action)}")
        return [*lines, self._go(table.fixed_next)]

    def _after(self, action: Action) -> str:
        ends = any(isinstance(each, Exit) or can_fail(each) for each in action.body)
        return " if (m->exit) return; " if ends else " "

    # -- keys --------------------------------------------------------------------------------------

    def _key(self, table: Table, packing: KeyLayout) -> list[str]:
        words: list[list[str]] = [[] for _ in range(packing.words)]
        compiler = Compiler(self._layout, (), f"table {table.name}")
        for key, pieces in zip(table.keys, packing.pieces, strict=True):
            for piece in pieces:
                text = self._key_bits(key, piece, compiler)
                words[piece.word].append(f"{text} << {piece.shift}" if piece.shift else text)
        return [" | ".join(parts) for parts in words]

    def _key_bits(self, key: TableKey, piece: Piece, compiler: Compiler) -> str:
        """Return a piece of a key field, as uint64_t."""
        if key.bits <= 128 or isinstance(key.target, Valid):
            value = self._key_value(key, compiler)
            return f"(uint64_t)({value} >> {piece.low})" if piece.low else f"(uint64_t)({value})"
        access = f"{self._layout.slot(key.target).access} + {piece.low // 8}"
        text = f"sw_load_lowest({access}, {(piece.bits + 7) // 8})"
        if key.mask is not None:
            text = f"({text} & {literal(key.mask >> piece.low & (1 << piece.bits) - 1, 64)})"
        return self._if_valid(key.target.header, text)

    def _key_value(self, key: TableKey, compiler: Compiler) -> str:
        """Return the value of a key field of at most 128 bits."""
        if isinstance(key.target, Valid):
            return compiler.exact(key.target)
        text = self._layout.slot(key.target).access
        if key.mask is not None:
            text = f"({text} & {literal(key.mask & (1 << key.bits) - 1, 128 if key.bits > 64 else 64)})"
        return self._if_valid(key.target.header, text)

    def _if_valid(self, header: str, text: str) -> str:
        """Return a value of a header: zero when that is not valid, as in BMv2."""
        if self._layout.program.headers[header].metadata:
            return text
        return f"({self._layout.valid(header)} ? {text} : 0)"

    def _lookup(self, table: Table, packing: KeyLayout, number: int) -> str:
        at = f"&s->tables[{number}]"
        if table.kind is MatchKind.EXACT:
            return f"sw_lookup_exact({at}, key, {packing.words})"
        if table.kind is MatchKind.LPM:
            return f"sw_lookup_lpm({at}, key, {packing.words}, {packing.lpm_words})"
        count = entry_words(self._layout.program, table)
        return f"sw_lookup_ternary({at}, key, {packing.words}, {packing.range_words}, {count})"


def _tests(compiler: Compiler, condition: Expr, yes: str, no: str) -> list[str]:
    """Jump to `yes` when the condition holds, or else to `no` or on to the next line.

    One test per operand of and / or: in one expression, compilers join fields that are next to each other
    into one wide load, which has to wait for the narrow stores just before it.
    """
    match condition:
        case Binary("or", left, right):
            return [*_tests(compiler, left, yes, ""), *_tests(compiler, right, yes, no)]
        case Binary("and", left, right) if no:
            return [f"if (!({compiler.boolean(left)})) {no}", *_tests(compiler, right, yes, no)]
    return [f"if ({compiler.boolean(condition)}) {yes}"]


def topological(pipeline: Pipeline) -> list[str]:
    """Return the nodes reachable from the first one, each before its successors."""
    done: list[str] = []
    seen: set[str] = set()
    stack: list[tuple[str, int]] = []
    if pipeline.init is not None:
        stack.append((pipeline.init, 0))
        seen.add(pipeline.init)
    while stack:
        name, position = stack.pop()
        following = list(reversed(successors(pipeline, name)))
        if position == len(following):
            done.append(name)
            continue
        stack.append((name, position + 1))
        if following[position] not in seen:
            seen.add(following[position])
            stack.append((following[position], 0))
    return done[::-1]
