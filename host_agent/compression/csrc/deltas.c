/* SPDX-License-Identifier: Apache-2.0 */
/* New values as their distance from the old ones, in Rice's code: values that an optimizer moved by a few units in the
 * last place take few bits each. See change_code.py. */
#include <stdint.h>
#include <string.h>

enum {
    MOST_ONES = 24, /* of a quotient in unary; behind that many, the number follows as it is */
    SAMPLE = 1024,  /* values from which the divisor is chosen */
    AS_THEY_ARE = 255
};

/* A value of `width` bits, floats being numbers with a sign, as an unsigned number in the order of the values. */
static inline uint32_t ordered(uint32_t bits, uint32_t width, uint32_t all)
{
    return bits >> (width - 1) ? ~bits & all : bits | 1u << (width - 1);
}

static inline uint32_t unordered(uint32_t place, uint32_t width, uint32_t all)
{
    return place >> (width - 1) ? place ^ 1u << (width - 1) : ~place & all;
}

/* The distance, not 0, as a number from 0: 1, -1, 2, -2 and so on are 1, 0, 3, 2. */
static inline uint32_t folded(uint32_t from, uint32_t to, uint32_t width, uint32_t all)
{
    const uint32_t d = (ordered(to, width, all) - ordered(from, width, all)) & all;
    return (((d << 1) ^ (d >> (width - 1) ? all : 0)) & all) - 1;
}

static inline uint32_t unfolded(uint32_t from, uint32_t number, uint32_t width, uint32_t all)
{
    const uint32_t z = (number + 1) & all;
    const uint32_t d = z >> 1 ^ (z & 1 ? all : 0);
    return unordered((ordered(from, width, all) + d) & all, width, all);
}

static inline uint32_t value_at(const uint8_t *values, uint64_t index, uint32_t size)
{
    uint16_t half;
    uint32_t word;
    switch (size) {
    case 1:
        return values[index];
    case 2:
        memcpy(&half, values + 2 * index, sizeof half);
        return half;
    default:
        memcpy(&word, values + 4 * index, sizeof word);
        return word;
    }
}

static inline void set_value(uint8_t *values, uint64_t index, uint32_t size, uint32_t value)
{
    const uint16_t half = (uint16_t)value;
    switch (size) {
    case 1:
        values[index] = (uint8_t)value;
        break;
    case 2:
        memcpy(values + 2 * index, &half, sizeof half);
        break;
    default:
        memcpy(values + 4 * index, &value, sizeof value);
    }
}

static inline uint32_t all_bits(uint32_t width) { return width < 32 ? (1u << width) - 1 : UINT32_MAX; }

/* The divisor's logarithm that makes the code of some of the values shortest, or AS_THEY_ARE where the values are no
 * longer. size: 1, 2 or 4 bytes. */
uint32_t weir_deltas_divisor(const uint8_t *old, const uint8_t *new, uint64_t count, uint32_t size)
{
    const uint32_t width = 8 * size, all = all_bits(width);
    const uint64_t step = count / SAMPLE + 1;
    uint64_t bits[32] = {0}, plain = 0;
    uint32_t best = 0;
    for (uint64_t i = 0; i < count; i += step, plain += width) {
        const uint32_t number = folded(value_at(old, i, size), value_at(new, i, size), width, all);
        for (uint32_t k = 0; k < width; k++) {
            const uint32_t ones = number >> k;
            bits[k] += ones < MOST_ONES ? ones + 1 + k : MOST_ONES + width;
        }
    }
    for (uint32_t k = 1; k < width; k++)
        if (bits[k] < bits[best]) best = k;
    return bits[best] < plain ? best : AS_THEY_ARE;
}

/* Bits that have no whole word yet. */
typedef struct {
    uint64_t bits;
    uint32_t count;
    uint64_t at, room;
    uint8_t *out;
} sink;

/* Put bits, up to 32 of them, behind fewer than 32 others. */
static inline int put_bits(sink *s, uint64_t bits, uint32_t count)
{
    s->bits |= bits << s->count;
    s->count += count;
    if (s->count < 32) return 1;
    if (s->room - s->at < 4) return 0;
    for (uint32_t i = 0; i < 4; i++) s->out[s->at++] = (uint8_t)(s->bits >> 8 * i);
    s->bits >>= 32;
    s->count -= 32;
    return 1;
}

static inline int end_bits(sink *s)
{
    for (; s->count; s->count -= s->count < 8 ? s->count : 8, s->bits >>= 8) {
        if (s->at == s->room) return 0;
        s->out[s->at++] = (uint8_t)s->bits;
    }
    return 1;
}

/* Writes `count` changes; returns how many bytes they take, or 0: more than there is room for. */
uint64_t weir_deltas_write(const uint8_t *old, const uint8_t *new, uint64_t count, uint32_t size, uint32_t k,
                           uint8_t *out, uint64_t room)
{
    const uint32_t width = 8 * size, all = all_bits(width);
    sink s = {.room = room, .out = out};
    for (uint64_t i = 0; i < count; i++) {
        const uint32_t number = folded(value_at(old, i, size), value_at(new, i, size), width, all);
        const uint32_t ones = number >> k;
        if (ones < MOST_ONES) {
            if (!put_bits(&s, (1ull << ones) - 1, ones + 1)) return 0;
            if (!put_bits(&s, number & ((1ull << k) - 1), k)) return 0;
        } else if (!put_bits(&s, (1ull << MOST_ONES) - 1, MOST_ONES) || !put_bits(&s, number, width)) {
            return 0;
        }
    }
    return end_bits(&s) ? s.at : 0;
}

/* Up to 56 bits from bit `at` on; zeros behind the end. */
static inline uint64_t peek(const uint8_t *in, uint64_t bytes, uint64_t at)
{
    uint64_t word = 0;
    const uint64_t byte = at / 8;
    if (byte + sizeof word <= bytes)
        memcpy(&word, in + byte, sizeof word);
    else if (byte < bytes)
        memcpy(&word, in + byte, bytes - byte);
    return word >> at % 8;
}

/* Reads `count` new values, given the old ones. Returns whether that took exactly this many bytes. */
int weir_deltas_read(const uint8_t *in, uint64_t bytes, const uint8_t *old, uint64_t count, uint32_t size,
                     uint32_t k, uint8_t *new)
{
    const uint32_t width = 8 * size, all = all_bits(width);
    const uint64_t end = 8 * bytes;
    uint64_t at = 0;
    if (k >= width) return 0;
    for (uint64_t i = 0; i < count; i++) {
        if (at >= end) return 0;
        uint64_t word = peek(in, bytes, at);
        uint32_t ones = (uint32_t)__builtin_ctzll(~word | 1ull << MOST_ONES), number;
        if (ones < MOST_ONES) {
            number = (uint32_t)(peek(in, bytes, at + ones + 1) & ((1ull << k) - 1));
            number = (uint32_t)((uint64_t)ones << k | number) & all;
            at += ones + 1 + k;
        } else {
            number = (uint32_t)peek(in, bytes, at + MOST_ONES) & all;
            at += MOST_ONES + width;
        }
        set_value(new, i, size, unfolded(value_at(old, i, size), number, width, all));
    }
    return at <= end && end - at < 8;
}
