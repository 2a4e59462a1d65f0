# SPDX-License-Identifier: Apache-2.0
"""The whole C file of a program: `generate`."""

import re

from softp4.codegen.actions import action_function, shifted_stacks, traced_action_function
from softp4.codegen.deparser import (
    body_function,
    calculation_function,
    deparse_function,
    deparsed_bytes,
    lengths_change,
    update_function,
    verify_function,
)
from softp4.codegen.digests import sample_words
from softp4.codegen.egress import egress_writes, saved_headers
from softp4.codegen.exposure import forget_functions
from softp4.codegen.frame_fields import frame_field_function
from softp4.codegen.header_statements import shift_function
from softp4.codegen.headers import header_functions
from softp4.codegen.intrinsic import ALL
from softp4.codegen.keys import arg_word_count, entry_words, key_layout
from softp4.codegen.layout import Layout
from softp4.codegen.locals import private_fields
from softp4.codegen.parser import ParserWriter
from softp4.codegen.pipeline import PipelineWriter
from softp4.codegen.tracepoints import Tracepoints
from softp4.codegen.traffic import TrafficWriter
from softp4.codegen.usage import outside_actions, pipeline_actions, statement_fields
from softp4.codegen.widths import storage_bits
from softp4.program.calculations import Calculation, CrcParameters
from softp4.program.errors import ProgramError, UnsupportedConstruct
from softp4.program.ir import FieldRef
from softp4.program.types import Action, MatchKind, Program, Register

_KINDS = {
    MatchKind.EXACT: "SW_EXACT",
    MatchKind.LPM: "SW_LPM",
    MatchKind.TERNARY: "SW_TERNARY",
    MatchKind.RANGE: "SW_TERNARY",
}

_OPTIONAL = re.compile(r"(?:static inline void|SW_INLINE int) ((?:get|put)_\w+|checksums_wrong)\(")

# What simple_switch requires, and how wide it may be where not 64 bits (v1model.p4).
_REQUIRED = ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port")
_MOST_BITS = {"mcast_grp": 16}


def generate(program: Program, trace: bool = False) -> str:
    """Return the C text of a program, to be compiled together with softp4/runtime.

    With `trace`, the same program with tracepoints, one statement at a time, without what makes it fast. It
    keeps a packet as the plain code does, so that both can serve one `sw_state` in turn.

    Raises UnsupportedConstruct for what the loader let through and cannot be computed here.
    """
    try:
        return _generate(program, trace)
    except RecursionError:
        raise UnsupportedConstruct("expressions nested too deep", "program") from None


def _generate(program: Program, trace: bool) -> str:
    if "standard_metadata" not in program.headers:
        raise ProgramError("program: no 'standard_metadata' (is this a v1model program?)")
    actions, outside = _actions(program), outside_actions(program)
    private = private_fields(program, actions, outside)
    layout = Layout(program, _used(program, actions, outside) - private)
    changed = egress_writes(program)
    tracepoints = Tracepoints(trace)
    parser = ParserWriter(layout, tracepoints)
    write_action = traced_action_function if trace else action_function
    body = [
        *([tracepoints.declaration()] if trace else []),
        layout.declarations(),
        *(record.declaration() for record in dict.fromkeys(layout.records.values())),
        *(each for kind in layout.packet_types() for each in header_functions(layout, kind)),
        *(
            calculation_function(layout, number, calculation)
            for number, calculation in enumerate(program.calculations.values())
        ),
        *(shift_function(layout, stack) for stack in _shifted(program, actions)),
        parser.function(),
        verify_function(layout),
        *(write_action(layout, action, private) for action in actions),
        PipelineWriter(layout, program.ingress, tracepoints).function(),
        PipelineWriter(layout, program.egress, tracepoints).function(),
        update_function(layout),
        body_function(layout),
        deparse_function(layout, set() if trace else set(program.deparser) - changed, tracepoints),
        saved_headers(layout, changed),
        forget_functions(layout),
        f"enum {{ NO_ERROR = {parser.error('NoError')}, HEADER_BYTES = {deparsed_bytes(layout)} }};\n",
        TrafficWriter(layout, tracepoints, lengths_change(layout, set(program.deparser) - changed)).text(),
        frame_field_function(layout, trace),
        _description(layout),
    ]
    return "\n".join([*_head(layout), *_called(body)])


def _called(parts: list[str]) -> list[str]:
    """Leave out the functions between packets and headers, and of checksums, that nothing calls."""
    text = "".join(parts)
    defined = (_OPTIONAL.match(part) for part in parts)
    return [
        part
        for part, name in zip(parts, defined, strict=True)
        if name is None or text.count(f"{name[1]}(") > 1
    ]


def _head(layout: Layout) -> list[str]:
    """Return the first lines; how long wide values are is known once everything else is written."""
    lines = [
        "// SPDX-License-Identifier: Apache-2.0\n"
        f"// Generated from a BMv2 JSON program, {layout.program.digest}.",
        "".join(f'#include "{each}.h"\n' for each in ("digest", "headers", "meter", "packet", "queue")),
    ]
    if layout.program.calculations:
        lines.append('#include "algorithms.h"\n')
    if layout.wide_words:
        lines.append(f'#define SW_WIDE_WORDS {layout.wide_words}\n#include "wide.h"\n')
    return lines


def _actions(program: Program) -> list[Action]:
    found = {
        action.id: action
        for pipeline in (program.ingress, program.egress)
        for action in pipeline_actions(program, pipeline)
    }
    return list(found.values())


def _shifted(program: Program, actions: list[Action]) -> list[str]:
    in_parser = (op for state in program.parser.states.values() for op in state.ops)
    shifted = shifted_stacks([*(op for action in actions for op in action.body), *in_parser])
    return [stack for stack in (*program.stacks, *program.union_stacks) if stack in shifted]


def _used(program: Program, actions: list[Action], outside: set[FieldRef]) -> set[FieldRef]:
    """Return metadata fields that the program names anywhere, and those the switch itself sets."""
    used = set(outside)
    for action in actions:
        for statement in action.body:
            used |= statement_fields(program, statement)
    standard = [field.name for field in program.headers["standard_metadata"].type.fields]
    for name in _REQUIRED:
        if name not in standard:
            raise ProgramError(f"program: 'standard_metadata' has no '{name}' (is this a v1model program?)")
    elsewhere = [(name, ref) for name in ALL if (ref := program.intrinsic(name)) is not None]
    for name, ref in [*((name, FieldRef("standard_metadata", name)) for name in standard), *elsewhere]:
        bits, most = program.field(ref).bits, _MOST_BITS.get(name, 64)
        if bits > most:
            raise ProgramError(f"program: '{ref.header}.{ref.field}' has {bits} bits, more than {most}")
    return used.union(program.intrinsic_fields("egress_spec", "mcast_grp"))


def _description(layout: Layout) -> str:
    """Return the C text of `sw_generated`, from which the runtime makes tables, registers and so on."""
    program = layout.program
    tables = []
    for table in program.tables.values():
        packing = key_layout(table)
        words = entry_words(program, table)
        tables.append(
            f"{{{_quote(table.name)}, {_KINDS[table.kind]}, {packing.words}, {packing.lpm_words}, "
            f"{packing.range_words}, {words}, "
            f"{_words('sw_meter', table.meter is not None)}, {_words('sw_idle', table.ages)}}}"
        )
    profiles = [
        f"{{{_quote(name)}, {arg_word_count(list(program.profile_actions(name).values()))}}}"
        for name in program.action_profiles
    ]
    registers = [_register(layout, number, each) for number, each in enumerate(program.registers.values())]
    counters = [f"{{{_quote(each.name)}, {each.size}u, 16}}" for each in program.counters.values()]
    meters = [f"{{{_quote(each.name)}, {each.size}u, sizeof(sw_meter)}}" for each in program.meters.values()]
    calculations = [_calculation(each) for each in program.stateful_calculations]
    return (
        f"static const sw_table_desc table_desc[] = {{{', '.join([*tables, '{0}'])}}};\n"
        f"static const sw_profile_desc profile_desc[] = {{{', '.join([*profiles, '{0}'])}}};\n"
        f"static const sw_register_desc register_desc[] = {{{', '.join([*registers, '{0}'])}}};\n"
        f"static const sw_array_desc counter_desc[] = {{{', '.join([*counters, '{0}'])}}};\n"
        f"static const sw_array_desc meter_desc[] = {{{', '.join([*meters, '{0}'])}}};\n"
        f"static const sw_calculation_desc calculation_desc[] = {{{', '.join([*calculations, '{0}'])}}};\n"
        f"const sw_program sw_generated = {{{len(tables)}, {len(profiles)}, {len(registers)}, "
        f"{len(counters)}, {len(meters)}, {len(program.value_sets)}, table_desc, profile_desc, "
        f"register_desc, counter_desc, meter_desc, {sample_words(program)}, sizeof(scratch), "
        "sizeof(queued), process, process_limited, depart, frame_field, "
        f"{len(calculations)}, {len(program.assertions)}, calculation_desc}};\n"
    )


def _register(layout: Layout, number: int, register: Register) -> str:
    width = storage_bits(register.bits) // 8
    record = layout.records.get(register.name)
    place = f"{width}, {number}, 0"
    if record is not None:
        offset = f"offsetof({record.name}, {record.member(register)})"
        place = f"sizeof({record.name}), {record.number}, {offset}"
    return f"{{{_quote(register.name)}, {register.size}u, {width}, {place}}}"


def _words(kind: str, there: bool) -> str:
    return f"sizeof({kind}) / 8" if there else "0"


def _calculation(calculation: Calculation) -> str:
    crc = calculation.crc or CrcParameters(0)
    values = (crc.polynomial, crc.initial, crc.final_xor, int(crc.reflect_data), int(crc.reflect_remainder))
    return f"{{{calculation.crc_bits}, {{{', '.join(f'{value}ull' for value in values)}}}}}"


def _quote(name: str) -> str:
    text = "".join(c if c.isalnum() or c in "._-[] $" else f"\\{ord(c) & 0xFF:03o}" for c in name)
    return f'"{text}"'
