# SPDX-License-Identifier: Apache-2.0
"""What egress can change: what has to be put back between the replicas of a packet, and which headers
need to be written into the outgoing frame only once."""

from dataclasses import dataclass

from softswitch.codegen.layout import Layout
from softswitch.codegen.usage import destination, headers_changed, pipeline_actions, statement_fields
from softswitch.program_ir import CopyHeader, FieldRef, MarkToDrop
from softswitch.program_types import Program


@dataclass(frozen=True)
class EgressWrites:
    """Metadata fields, and headers (storage or validity), that egress or the deparser may change."""

    fields: frozenset[FieldRef]
    headers: frozenset[str]


def egress_writes(program: Program) -> EgressWrites:
    """Collects what actions of egress tables and checksum updates write."""
    fields: set[FieldRef] = set()
    headers: set[str] = set()
    for action in pipeline_actions(program, program.egress):
        for statement in action.body:
            headers |= headers_changed(program, statement)
            dst = destination(statement)
            if isinstance(dst, FieldRef):
                fields.add(dst)
            if isinstance(statement, CopyHeader | MarkToDrop):
                fields |= statement_fields(program, statement)
    for checksum in program.checksums:
        if checksum.update:
            fields.add(checksum.target)
            headers.add(checksum.target.header)
    metadata = {name for name, header in program.headers.items() if header.metadata}
    return EgressWrites(
        frozenset(ref for ref in fields if ref.header in metadata),
        frozenset(headers - metadata),
    )


def saved_state(layout: Layout, writes: EgressWrites) -> str:
    """C text of `saved` with ``save`` and ``restore``: the part of a packet that replicas change."""
    members = [f"uint64_t valid[{layout.valid_words}];"]
    places = ["valid"]
    members.append("uint32_t length, truncate, exit;")
    places += ["length", "truncate", "exit"]
    for stack in layout.program.stacks:
        name = layout.next_index(stack).removeprefix("p->")
        members.append(f"uint32_t {name};")
        places.append(name)
    kept = set(layout.metadata_fields())
    pairs = [(place, place) for place in places]
    for number, ref in enumerate(sorted(writes.fields & kept, key=str)):
        access = layout.slot(ref).access.removeprefix("p->")
        members.append(f"__typeof__(((phv *)0)->{access}) f{number};")
        pairs.append((f"f{number}", access))
    for number, header in enumerate(sorted(writes.headers)):
        access = layout.header(header).removeprefix("p->")
        kind = layout.type_name(layout.program.headers[header].type)
        members.append(f"{kind} h{number};")
        pairs.append((f"h{number}", access))
    inside = "\n".join(f"    {member}" for member in members)
    save = "\n".join(f"    memcpy(&k->{a}, &p->{b}, sizeof k->{a});" for a, b in pairs)
    restore = "\n".join(f"    memcpy(&p->{b}, &k->{a}, sizeof k->{a});" for a, b in pairs)
    return (
        f"typedef struct {{\n{inside}\n}} saved;\n\n"
        f"static void save(saved *k, const phv *p) {{\n{save}\n}}\n"
        f"static void restore(const saved *k, phv *p) {{\n{restore}\n}}\n"
    )
