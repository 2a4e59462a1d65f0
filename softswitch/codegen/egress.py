# SPDX-License-Identifier: Apache-2.0
"""What egress can change: which headers have to be put back between the replicas of a packet, and which
need to be written into the outgoing frame only once."""

from softswitch.codegen.layout import Layout
from softswitch.codegen.usage import headers_changed, pipeline_actions
from softswitch.program_types import Program


def egress_writes(program: Program) -> frozenset[str]:
    """Headers whose storage or validity egress tables' actions or checksum updates may change."""
    headers = {
        name
        for action in pipeline_actions(program, program.egress)
        for statement in action.body
        for name in headers_changed(program, statement)
    }
    headers.update(checksum.target.header for checksum in program.checksums if checksum.update)
    return frozenset(name for name in headers if not program.headers[name].metadata)


def saved_headers(layout: Layout, changed: frozenset[str]) -> str:
    """C text of `saved` with ``save`` and ``restore``: the headers that replicas change."""
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
