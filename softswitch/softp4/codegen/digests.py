# SPDX-License-Identifier: Apache-2.0
"""Digests to C, and the layout of their samples, which `state.digests` follows when it reads them.

A sample is the digest's number (32 bits, the machine's own order), then its fields, each in whole bytes, most
significant first; zeros up to a whole number of 64-bit words.
"""

from collections.abc import Iterator
from typing import Final

from softp4.codegen.layout import Layout
from softp4.program.ir import FieldRef
from softp4.program.types import DigestList, Program

SAMPLE_HEAD: Final = 4
"""Bytes of a sample before its fields."""


def sample_fields(program: Program, digest: DigestList) -> Iterator[tuple[FieldRef, int, int]]:
    """Yield the fields of a digest: (field, where it begins in the sample, bytes)."""
    at = SAMPLE_HEAD
    for ref in digest.fields:
        size = (program.field(ref).bits + 7) // 8
        yield ref, at, size
        at += size


def sample_words(program: Program) -> int:
    """Return the 64-bit words of a sample, the same for all digests of a program; 0 without any."""
    ends = (at + size for each in program.digests.values() for _, at, size in sample_fields(program, each))
    return (max(ends, default=0) + 7) // 8


def digest_function(layout: Layout) -> str:
    """Return the C text of ``tell(s, p, m)``, which keeps the sample of ``m->digest``."""
    program = layout.program
    cases = []
    for digest in program.digests.values():
        stores = " ".join(_store(layout, *each) for each in sample_fields(program, digest))
        cases.append(f"    case {digest.id}: {stores} break; // {digest.name}\n")
    return f"""// What a packet tells the control plane: fields as they are after ingress.
SW_INLINE void tell(sw_state *s, const phv *p, const state *m) {{
    uint64_t sample[{sample_words(program)}] = {{0}};
    uint8_t *const b = (uint8_t *)sample;
    (void)p;
    memcpy(b, &m->digest, {SAMPLE_HEAD});
    switch (m->digest) {{
{"".join(cases)}    }}
    sw_digest_add(s, sample);
}}
"""


def _store(layout: Layout, ref: FieldRef, at: int, size: int) -> str:
    slot = layout.slot(ref)
    if slot.bits > 128:  # kept lowest byte first
        return f"for (unsigned i = 0; i < {size}; i++) b[{at} + i] = {slot.access}[{size - 1} - i];"
    return f"sw_store(b + {at}, {size}, {slot.access});"
