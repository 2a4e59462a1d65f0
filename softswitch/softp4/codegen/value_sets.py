# SPDX-License-Identifier: Apache-2.0
"""Looking up a select key in a parser value set (runtime/headers.h)."""

from collections.abc import Sequence

from softp4.codegen.expressions import literal
from softp4.codegen.layout import Layout
from softp4.program.errors import UnsupportedConstruct
from softp4.program.types import Transition

MAX_ELEMENT_BITS = 128


def member_words(bits: int) -> int:
    """Return the 64-bit words of a member of `bits` bits."""
    return (bits + 63) // 64


def member_test(layout: Layout, case: Transition, key: Sequence[tuple[str, int]], where: str) -> str:
    """Return the C condition under which the key, elements as (C text, bits), is in the case's value set."""
    if any(bits > MAX_ELEMENT_BITS for _, bits in key):
        raise UnsupportedConstruct(
            f"a value set over more than {MAX_ELEMENT_BITS} bits in one element", where
        )
    number = list(layout.program.value_sets).index(str(case.value_set))
    total = sum(bits for _, bits in key)
    words = member_words(total)
    every = (1 << total) - 1
    mask = every if case.mask is None else case.mask
    masks = (literal(mask >> 64 * word & (1 << 64) - 1, 64) for word in range(words))
    return (
        f"sw_in_value_set(s->value_sets[{number}], (const uint64_t[]){{{', '.join(_words(key, words))}}}, "
        f"(const uint64_t[]){{{', '.join(masks)}}}, {words})"
    )


def _words(key: Sequence[tuple[str, int]], words: int) -> list[str]:
    """Return the concatenated key, lowest word first."""
    parts: list[list[str]] = [[] for _ in range(words)]
    shift = sum(bits for _, bits in key)
    for text, bits in key:
        shift -= bits
        for word in range(shift // 64, (shift + bits - 1) // 64 + 1):
            low = max(shift, 64 * word)
            value = f"(uint64_t)({text} >> {low - shift})" if low > shift else f"(uint64_t){text}"
            parts[word].append(f"{value} << {low - 64 * word}" if low > 64 * word else value)
    return [" | ".join(part) for part in parts]
