/* SPDX-License-Identifier: Apache-2.0 */
#include "budget.h"

#include <errno.h>
#include <stdlib.h>

int weir_budget_open(weir_budget *b, const uint64_t *limits, uint32_t count)
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

void weir_budget_free(weir_budget *b) { free(b->accounts); }

int weir_budget_reserve(weir_budget *b, const weir_share *shares, uint32_t count)
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

void weir_budget_settle(weir_budget *b, const weir_share *shares, uint32_t count, int reserved, int missing)
{
    for (uint32_t i = 0; i < count; i++) {
        weir_account *a = &b->accounts[shares[i].account];
        a->reserved -= reserved ? shares[i].lanes : 0;
        a->missing += missing ? shares[i].lanes : 0;
    }
}
