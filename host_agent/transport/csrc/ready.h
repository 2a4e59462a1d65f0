/* SPDX-License-Identifier: Apache-2.0 */
/* Slots whose next round has not been sent yet: first come, first served, unless the window may hold some of
 * them back: then the least (round since the reduce began, slot) first.
 *
 * One ring holds either order: a queue, or a binary heap whose root is at `head`. */
#ifndef WEIR_READY_H
#define WEIR_READY_H

#include <stdint.h>

typedef struct {
    uint64_t *keys; /* round << 16 | slot */
    uint32_t capacity, head, length;
    uint32_t ordered;
} weir_ready;

static inline uint64_t weir_ready_key(uint32_t round, uint32_t slot) { return (uint64_t)round << 16 | slot; }

static inline uint64_t *weir_ready_at(const weir_ready *q, uint32_t i)
{
    uint32_t at = q->head + i;
    return &q->keys[at >= q->capacity ? at - q->capacity : at];
}

static inline void weir_ready_sink(weir_ready *q, uint32_t i)
{
    uint64_t key = *weir_ready_at(q, i);
    for (uint32_t child; (child = 2 * i + 1) < q->length; i = child) {
        if (child + 1 < q->length && *weir_ready_at(q, child + 1) < *weir_ready_at(q, child)) child++;
        if (key <= *weir_ready_at(q, child)) break;
        *weir_ready_at(q, i) = *weir_ready_at(q, child);
    }
    *weir_ready_at(q, i) = key;
}

static inline void weir_ready_order(weir_ready *q)
{
    if (q->ordered) return;
    q->ordered = 1;
    for (uint32_t i = q->length / 2; i--;) weir_ready_sink(q, i);
}

static inline void weir_ready_clear(weir_ready *q) { q->head = q->length = q->ordered = 0; }

static inline void weir_ready_add(weir_ready *q, uint64_t key)
{
    uint32_t i = q->length++;
    if (q->ordered)
        for (; i && key < *weir_ready_at(q, (i - 1) / 2); i = (i - 1) / 2)
            *weir_ready_at(q, i) = *weir_ready_at(q, (i - 1) / 2);
    *weir_ready_at(q, i) = key;
}

/* Take the first key; there must be one. */
static inline uint64_t weir_ready_take(weir_ready *q)
{
    uint64_t first = *weir_ready_at(q, 0);
    q->length--;
    if (!q->ordered)
        q->head = q->head + 1 == q->capacity ? 0 : q->head + 1;
    else if (!q->length)
        q->ordered = 0;
    else {
        *weir_ready_at(q, 0) = *weir_ready_at(q, q->length);
        weir_ready_sink(q, 0);
    }
    return first;
}

#endif
