/* SPDX-License-Identifier: Apache-2.0 */
/* How many lanes of this worker may go missing, account by account.
 *
 * Always reserved + missing <= limit. Lanes are reserved before a packet is sent that may count without them
 * (one that may be trimmed, or a release), and stay reserved until the round's result tells what became of them:
 * nothing earlier can, since copies of the packet may still be on their way. */
#ifndef WEIR_BUDGET_H
#define WEIR_BUDGET_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "transport.h"

typedef struct {
    weir_account *accounts;
    uint32_t count, capacity; /* count 0: lossless, and nothing here is ever called */
} weir_budget;

/* What one column of a packet holds of one account. */
typedef struct {
    uint32_t account, lanes;
} weir_share;

/* Start new books. Returns 0, or ENOMEM (the old ones are kept). */
static inline int weir_budget_open(weir_budget *b, const uint64_t *limits, uint32_t count)
{
    if (count > b->capacity) {
        weir_account *grown = realloc(b->accounts, count * sizeof *grown);
        if (!grown) return ENOMEM;
        b->accounts = grown;
        b->capacity = count;
    }
    for (uint32_t i = 0; i < count; i++) b->accounts[i] = (weir_account){.limit = limits[i]};
    b->count = count;
    return 0;
}

static inline void weir_budget_free(weir_budget *b) { free(b->accounts); }

/* Reserve all shares of a packet, or none. Returns whether there was room. */
static inline int weir_budget_reserve(weir_budget *b, const weir_share *shares, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        weir_account *a = &b->accounts[shares[i].account];
        if (a->reserved + a->missing + shares[i].lanes > a->limit) {
            while (i--) /* no room for all: hand back what was taken */
                b->accounts[shares[i].account].reserved -= shares[i].lanes;
            return 0;
        }
        a->reserved += shares[i].lanes;
    }
    return 1;
}

/* The result is here: the lanes are missing or not. `reserved`: they were reserved. */
static inline void weir_budget_settle(weir_budget *b, const weir_share *shares, uint32_t count, int reserved,
                                      int missing)
{
    for (uint32_t i = 0; i < count; i++) {
        weir_account *a = &b->accounts[shares[i].account];
        a->reserved -= reserved ? shares[i].lanes : 0;
        a->missing += missing ? shares[i].lanes : 0;
    }
}

#endif
