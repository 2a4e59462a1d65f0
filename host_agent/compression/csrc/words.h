/* SPDX-License-Identifier: Apache-2.0 */
/* Bits in words of 32: bit j, counted from the lowest bit of the first word. */
#ifndef WEIR_WORDS_H
#define WEIR_WORDS_H

#include <stdint.h>

enum { WORD_BITS = 32 };

/* For each bit that is set in this many words, in order: `at`, its number. */
#define FOR_EACH_BIT(words, count, at)                                                                       \
    for (uint64_t word_ = 0; word_ < (count); word_++)                                                       \
        for (uint64_t left_ = (words)[word_], at;                                                            \
             left_ && (at = word_ * WORD_BITS + (uint32_t)__builtin_ctzll(left_), 1); left_ &= left_ - 1)

static inline void set_bit(uint32_t *words, uint64_t at) { words[at / WORD_BITS] |= 1u << at % WORD_BITS; }

#endif
