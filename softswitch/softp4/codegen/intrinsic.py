# SPDX-License-Identifier: Apache-2.0
"""BMv2's standard and intrinsic metadata: what the switch tells a program, and what a program asks of it."""

from typing import Final

from softp4.codegen.layout import Layout
from softp4.program.ir import FieldRef

ALL: Final = (
    "ingress_port",
    "packet_length",
    "instance_type",
    "parser_error",
    "checksum_error",
    "egress_spec",
    "egress_port",
    "egress_rid",
    "mcast_grp",
    "priority",
    "qid",
    "ingress_global_timestamp",
    "egress_global_timestamp",
    "enq_timestamp",
    "enq_qdepth",
    "deq_timedelta",
    "deq_qdepth",
)
"""Names of the metadata that the switch goes by."""


class Intrinsic:
    """C text that reads and writes metadata by BMv2's names, whatever the program calls its fields.

    What the program does not look at costs nothing: writing it is no statement, reading it gives 0.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept = set(layout.metadata_fields())

    def field(self, name: str) -> FieldRef | None:
        """Return the field that holds a piece of metadata, if the program uses it."""
        ref = self._layout.program.intrinsic(name)
        return ref if ref in self._kept else None

    def set(self, name: str, value: str, state: str = "m") -> list[str]:
        """Return the C statement that sets it in ``state *<state>``, if the program looks at it."""
        ref = self.field(name)
        if ref is None:
            return []
        slot = self._layout.slot(ref)
        mask = f" & 0x{(1 << slot.bits) - 1:x}ull" if slot.bits < slot.storage else ""
        return [f"{slot.access.replace('m->', f'{state}->', 1)} = ({value}){mask};"]

    def get(self, name: str, state: str = "m") -> str:
        """Return the C expression of its value in ``state *<state>``."""
        ref = self.field(name)
        return self._layout.slot(ref).access.replace("m->", f"{state}->", 1) if ref else "0"


def keep_fields_function(layout: Layout) -> str:
    """Return the C text of ``keep_fields(n, m, list)``."""
    cases = []
    for number, fields in layout.program.field_lists.items():
        moves = []
        for ref in fields:
            slot = layout.slot(ref)
            if slot.access.startswith("m->"):
                to = f"n->{slot.access[3:]}"
                moves.append(f"memcpy(&{to}, &{slot.access}, sizeof {to});")
        cases.append(f"    case {number}: {' '.join(moves)} break;\n")
    names = (f"n->{layout.slot(ref).access[3:]}" for ref in layout.metadata_fields())
    zero = " ".join(f"memset(&{name}, 0, sizeof {name});" for name in names)
    return f"""// Resets the metadata of `n` but for the fields of a list, which it has from `m`.
static void keep_fields(state *n, const state *m, uint32_t list) {{
    (void)m;
    {zero}
    switch (list) {{
{"".join(cases)}    }}
}}
"""
