# SPDX-License-Identifier: Apache-2.0
"""Egress: the headers it can change, and what it reads of what ingress left.

The first says which headers have to be put back between the replicas of a packet, and which need to be
written into the outgoing frame only once; the second, what has to be kept of a packet that waits.
"""

from softp4.codegen.layout import Layout
from softp4.codegen.usage import (
    calculation_fields,
    fields_in,
    inputs,
    meter_targets,
    pipeline_actions,
    storage_changed,
)
from softp4.program.ir import Clone, CopyHeader, CopyVarbit, FieldRef, Hash, Recirculate
from softp4.program.types import Program


def egress_writes(program: Program) -> frozenset[str]:
    """Return headers whose storage egress tables (actions, meters) or checksum updates may change."""
    headers = {
        name
        for action in pipeline_actions(program, program.egress)
        for statement in action.body
        for name in storage_changed(program, statement)
    }
    headers.update(ref.header for table in program.egress.tables.values() for ref in meter_targets(table))
    for statement in program.deparser_body:
        headers |= storage_changed(program, statement)
    headers.update(checksum.target.header for checksum in program.checksums if checksum.update)
    return frozenset(name for name in headers if not program.headers[name].metadata)


def egress_reads(program: Program) -> set[FieldRef]:
    """Return metadata fields that egress, the checksums after it or a list of fields kept by it may read."""
    used: set[FieldRef] = set()
    for table in program.egress.tables.values():
        used.update(key.target for key in table.keys if isinstance(key.target, FieldRef))
    for conditional in program.egress.conditionals.values():
        used.update(fields_in(conditional.condition))
    for action in pipeline_actions(program, program.egress):
        for statement in action.body:
            for expr in inputs(statement):
                used.update(fields_in(expr))
            match statement:
                case CopyHeader(_, str() as src):
                    used.update(FieldRef(src, field.name) for field in program.headers[src].type.fields)
                case CopyVarbit(_, FieldRef() as field):
                    used.add(field)
                case Hash(_, _, calculation, _):
                    used.update(calculation_fields(program, program.calculations[calculation]))
                case Clone(_, number) | Recirculate(number):
                    used.update(program.field_lists.get(number, ()))
    for statement in program.deparser_body:
        for expr in inputs(statement):
            used.update(fields_in(expr))
    for checksum in program.checksums:
        if checksum.condition is not None:
            used.update(fields_in(checksum.condition))
        used.update(calculation_fields(program, program.calculations[checksum.calculation]))
    return {ref for ref in used if program.headers[ref.header].metadata}


def saved_headers(layout: Layout, changed: frozenset[str]) -> str:
    """Return the C text of `saved` with ``save`` and ``restore``: the headers that replicas change."""
    members = ["uint8_t nothing;"]
    pairs = []
    for number, header in enumerate(sorted(changed)):
        kind = layout.type_name(layout.program.headers[header].type)
        members.append(f"{kind} h{number};")
        pairs.append((f"k->h{number}", layout.header(header)))
    inside = "\n".join(f"    {member}" for member in members)
    save = "\n".join(f"    {kept} = {header};" for kept, header in pairs)
    restore = "\n".join(f"    {header} = {kept};" for kept, header in pairs)
    return (
        f"typedef struct {{\n{inside}\n}} saved;\n\n"
        f"static inline void save(saved *k, const phv *p) {{\n    (void)k, (void)p;\n{save}\n}}\n"
        f"static inline void restore(const saved *k, phv *p) {{\n    (void)k, (void)p;\n{restore}\n}}\n"
    )
