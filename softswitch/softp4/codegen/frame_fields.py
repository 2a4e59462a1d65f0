# SPDX-License-Identifier: Apache-2.0
"""C that reads from a frame, before it is run, what decides which state it will touch."""

from softp4.codegen.intrinsic import Intrinsic
from softp4.codegen.layout import Layout
from softp4.codegen.parser import ParserWriter
from softp4.codegen.sharding import Sharder
from softp4.codegen.tracepoints import Tracepoints


def frame_field_function(layout: Layout, trace: bool) -> str:
    """Return the C text of ``frame_field``, which parses a frame and returns one of `Sharder.fields`.

    It parses no further than these are, and keeps nothing else, so that compilers leave the rest of the
    parser's work out. Code with tracepoints never runs it.
    """
    fields = () if trace else Sharder(layout.program, layout.loose).fields
    cases = []
    for number, ref in enumerate(fields):
        slot = layout.slot(ref)
        cases.append(
            f"    case {number}: return {layout.valid(ref.header)} ? (uint64_t){slot.access} : 0; // {ref}\n"
        )
    head = """uint64_t frame_field(sw_state *s, uint32_t port, const uint8_t *frame, uint32_t length,
                            uint32_t field) {
"""
    if not cases:
        unused = "(void)s, (void)port, (void)frame, (void)length, (void)field;"
        return f"static {head}    {unused}\n    return 0;\n}}\n"
    intrinsic = Intrinsic(layout)
    known = [*intrinsic.set("ingress_port", "port"), *intrinsic.set("packet_length", "length")]
    parser = ParserWriter(layout, Tracepoints(False), {ref.header for ref in fields})
    return f"""{parser.function("parse_for_field")}
SW_HOT {head}    phv p_, *const p = &p_;
    state m_, *const m = &m_;
    uint32_t error = NO_ERROR;
    fresh(m, length);
    (void)port;
    {" ".join(known)}
    parse_for_field(s, p, m, frame, length, &error);
    switch (field) {{
{"".join(cases)}    default: return 0;
    }}
}}
"""
