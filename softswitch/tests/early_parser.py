# SPDX-License-Identifier: Apache-2.0
"""Parsers that end once one header is settled, and the whole one, compiled for frames to be put to both."""

import ctypes
from collections.abc import Iterable
from pathlib import Path

from softp4.codegen.headers import header_functions
from softp4.codegen.layout import Layout
from softp4.codegen.parser import ParserWriter
from softp4.codegen.tracepoints import Tracepoints
from softp4.native.build import load_library
from softp4.program.ir import FieldRef
from softp4.program.loader import load_program
from softp4.program.types import Program
from softp4.runtime.compiler import RUNTIME
from softp4.switch import Switch

HEAD = "".join(f'#include "{name}.h"\n' for name in ("digest", "headers", "meter", "packet", "queue"))

AGREE = """
static uint32_t whole_{number}(sw_state *s, phv *p, state *m, const uint8_t *frame, uint32_t length) {{
    uint32_t error = 0;
    parse(s, p, m, frame, length, &error);
    return {valid};
}}
static uint32_t part_{number}(sw_state *s, phv *p, state *m, const uint8_t *frame, uint32_t length) {{
    uint32_t error = 0;
    parse_{number}(s, p, m, frame, length, &error);
    return {valid};
}}
// 0: they do not agree; 1: that there is no such header; 2: on each of its bytes.
int agree_{number}(sw_state *s, const uint8_t *frame, uint32_t length) {{
    static phv phvs[2];
    static state states[2];
    memset(phvs, 0, sizeof phvs), memset(states, 0, sizeof states);
    const uint32_t found = whole_{number}(s, &phvs[0], &states[0], frame, length);
    if (part_{number}(s, &phvs[1], &states[1], frame, length) != found) return 0;
    if (!found) return 1;
    phv *p = &phvs[0];
    const void *of_whole = &{header};
    p = &phvs[1];
    return memcmp(of_whole, &{header}, sizeof {header}) == 0 ? 2 : 0;
}}
"""


def parsers(program: Program) -> tuple[ctypes.CDLL, list[str]]:
    """Return compiled ``agree_N(state, frame, length)`` for header N of a program, and the headers."""
    metadata = {name for name, header in program.headers.items() if header.metadata}
    layout = Layout(
        program,
        {FieldRef(name, field.name) for name in metadata for field in program.headers[name].type.fields},
    )
    headers = list(layout.header_index)
    off = Tracepoints(False)
    made = [ParserWriter(layout, off).function()]
    for number, name in enumerate(headers):
        made.append(ParserWriter(layout, off, {name}).function(f"parse_{number}"))
        made.append(AGREE.format(number=number, valid=layout.valid(name), header=layout.header(name)))
    kinds = [each for kind in layout.packet_types() for each in header_functions(layout, kind)]
    wide = f'#define SW_WIDE_WORDS {layout.wide_words}\n#include "wide.h"\n' if layout.wide_words else ""
    text = "\n".join([HEAD, wide, layout.declarations(), *kinds, *made])
    library = load_library(
        "parsers", extra={"parsers.c": text}, include=[RUNTIME], flags=("-fno-strict-aliasing", "-O1", "-w")
    )
    return library, headers


def outcomes(path: Path, frames: Iterable[bytes]) -> set[int]:
    """Return what the parsers of a program say of frames: 1, no such header, or 2, the same one.

    Raises AssertionError when they do not agree.
    """
    library, headers = parsers(load_program(path))
    found: set[int] = set()
    with Switch(path) as switch:
        state = ctypes.c_void_p(switch.handle)
        for frame in frames:
            for number, header in enumerate(headers):
                result: int = getattr(library, f"agree_{number}")(state, frame, len(frame))
                assert result, (header, frame.hex())
                found.add(result)
    return found
