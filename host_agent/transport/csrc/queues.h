/* SPDX-License-Identifier: Apache-2.0 */
/* The queues of slots: those whose next round has not been sent yet, and those that wait for a result. */
#ifndef WEIR_QUEUES_H
#define WEIR_QUEUES_H

#include <stdint.h>

/* Slots whose next round has not been sent yet: first come, first served, unless the window may hold some of
 * them back: then the least (round since the reduce began, slot) first.
 *
 * One ring holds either order: a queue, or a binary heap whose root is at `head`. */
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

/* Slots that wait for a result, in the order of the packets they sent last: a ring of links, whose end is the
 * index beyond the slots. */
typedef struct {
    uint16_t older, newer;
} weir_link;

typedef struct {
    weir_link *links; /* slots + 1 */
    uint32_t end;     /* its `newer` is the oldest slot, its `older` the newest */
} weir_unanswered;

static inline void weir_unanswered_clear(weir_unanswered *q)
{
    q->links[q->end] = (weir_link){(uint16_t)q->end, (uint16_t)q->end};
}

static inline uint32_t weir_unanswered_oldest(const weir_unanswered *q) { return q->links[q->end].newer; }

static inline void weir_unanswered_add(weir_unanswered *q, uint32_t s)
{
    uint16_t newest = q->links[q->end].older;
    q->links[s] = (weir_link){newest, (uint16_t)q->end};
    q->links[newest].newer = q->links[q->end].older = (uint16_t)s;
}

static inline void weir_unanswered_remove(weir_unanswered *q, uint32_t s)
{
    weir_link at = q->links[s];
    q->links[at.older].newer = at.newer;
    q->links[at.newer].older = at.older;
}

#endif
