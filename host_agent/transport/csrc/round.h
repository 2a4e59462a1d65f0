/* SPDX-License-Identifier: Apache-2.0 */
/* A slot's round: the blocks that it is about, and the packet that carries what we hold of them. */
#ifndef WEIR_ROUND_H
#define WEIR_ROUND_H

#include "state.h"

/* Look whether a block is zero, and enter what it holds into the ledger: once, when it comes near its turn, so
 * that it is still in the cache when it is sent. Returns whether it is not zero. */
int weir_block_enter(weir_transport *t, uint64_t block);

/* Make the slot's blocks the subject of a new round, with what we hold of each. */
void weir_round_start(weir_transport *t, uint32_t s);

/* How the packet travels. */
typedef struct {
    uint8_t groups, flags, traffic_class;
} weir_treatment;

static const weir_treatment WEIR_BARE = {0, 0, WEIR_RELIABLE_DSCP << 2 | WEIR_ECT};

static inline weir_treatment weir_with_lanes(const slot_state *slot, uint32_t dscp, int droppable)
{
    return (weir_treatment){slot->groups, droppable ? 0 : (uint8_t)WEIR_FLAG_PROTECTED,
                            (uint8_t)(dscp << 2 | (droppable ? WEIR_NOT_ECT : WEIR_ECT))};
}

/* As it is sent again when its lanes are needed. */
static inline weir_treatment weir_repeated(const slot_state *slot)
{
    return slot->groups ? weir_with_lanes(slot, WEIR_RELIABLE_DSCP, 0) : WEIR_BARE;
}

/* The greatest magnitude class among the blocks that the packet carries. */
static inline uint8_t weir_magnitude_of(const weir_transport *t, const slot_state *slot)
{
    uint8_t greatest = 0;
    if (t->service.magnitudes)
        for (uint32_t c = 0; c < t->columns; c++)
            if (weir_column_sent(t, slot, c) && t->service.magnitudes[slot->block[c]] > greatest)
                greatest = t->service.magnitudes[slot->block[c]];
    return greatest;
}

/* Write the packet. Returns its length. */
uint32_t weir_round_write(const weir_transport *t, uint32_t s, weir_treatment how, uint8_t *out);

#endif
