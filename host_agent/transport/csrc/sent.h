/* SPDX-License-Identifier: Apache-2.0 */
/* Slots that wait for a result, in the order of the packets they sent last: a ring of links, whose end is the
 * index beyond the slots. */
#ifndef WEIR_SENT_H
#define WEIR_SENT_H

#include <stdint.h>

typedef struct {
    uint16_t older, newer;
} weir_link;

typedef struct {
    weir_link *links; /* slots + 1 */
    uint32_t end;     /* its `newer` is the oldest slot, its `older` the newest */
} weir_sent;

static inline void weir_sent_clear(weir_sent *q)
{
    q->links[q->end] = (weir_link){(uint16_t)q->end, (uint16_t)q->end};
}

static inline uint32_t weir_sent_oldest(const weir_sent *q) { return q->links[q->end].newer; }

static inline void weir_sent_add(weir_sent *q, uint32_t s)
{
    uint16_t newest = q->links[q->end].older;
    q->links[s] = (weir_link){newest, (uint16_t)q->end};
    q->links[newest].newer = q->links[q->end].older = (uint16_t)s;
}

static inline void weir_sent_remove(weir_sent *q, uint32_t s)
{
    weir_link at = q->links[s];
    q->links[at.older].newer = at.newer;
    q->links[at.newer].older = at.older;
}

#endif
