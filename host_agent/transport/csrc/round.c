/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

void weir_transport_restore(weir_transport *t)
{
    if (!t->active || t->report.rounds) return;
    for (uint64_t block = 0; block < t->blocks; block++) {
        const uint32_t *exponents = weir_block_exponents(t, block);
        if (!weir_block_nonzero(t, block) || !exponents) continue;
        uint32_t *lanes = weir_block_lanes(t, block);
        for (uint32_t at = 0, part, count = weir_block_count(t, block); at < count; at += part) {
            part = weir_values_together(t, count - at);
            weir_fixed_leave(lanes + at, part, weir_shift_at(t, exponents, at));
        }
    }
    memset(t->nonzero, 0, t->nonzero_words * sizeof *t->nonzero);
}

/* Turn a block of float32 values into lanes. Returns their sum, and their OR in `any`. */
static uint64_t enter_values(weir_transport *t, uint64_t block, const uint32_t *exponents, uint32_t count,
                             uint32_t *any)
{
    uint64_t sum = 0;
    uint32_t *lanes = weir_block_lanes(t, block);
    *any = 0;
    for (uint32_t at = 0, part, seen; at < count; at += part) {
        part = weir_values_together(t, count - at);
        sum += weir_fixed_enter(lanes + at, part, weir_shift_at(t, exponents, at), &seen);
        *any |= seen;
    }
    return sum;
}

int weir_block_enter(weir_transport *t, uint64_t block)
{
    if (weir_block_how(t, block) || weir_block_local(t, block)) return 0;
    uint32_t any, count = weir_block_count(t, block);
    const uint32_t *exponents = weir_block_exponents(t, block);
    uint64_t sum = exponents ? enter_values(t, block, exponents, count, &any)
                             : weir_lanes_scan(weir_block_lanes(t, block), count, &any);
    if (!any) return 0;
    t->nonzero[block >> 6] |= 1ull << (block & 63);
    t->report.entered_lanes += count;
    t->report.entered_sum += sum;
    return 1;
}

/* The stream's first non-zero block after this one: what we have to offer next. */
static uint32_t next_nonzero(weir_transport *t, uint64_t block)
{
    for (block += t->streams; block < t->blocks; block += t->streams)
        if (weir_block_enter(t, block)) return (uint32_t)block;
    return WEIR_NO_BLOCK;
}

/* The next packet of this slot will read these lanes within microseconds: fetch them now. */
static inline void prefetch_block(const weir_transport *t, uint64_t block)
{
    const char *lanes = (const char *)weir_block_lanes(t, block);
    const uint32_t size = 4 * weir_block_count(t, block);
    for (uint32_t at = 0; at < size; at += 64) __builtin_prefetch(lanes + at, 1);
}

/* Who wants the round's result: all, unless its blocks have one audience. */
static uint16_t audience_of(const weir_transport *t, const slot_state *slot)
{
    uint16_t found = WEIR_AUDIENCE_ALL;
    if (!t->audiences) return found;
    for (uint32_t c = 0; c < t->columns; c++) {
        if (slot->block[c] == WEIR_NO_BLOCK) continue;
        uint16_t audience = t->audiences[slot->block[c]];
        if (found != WEIR_AUDIENCE_ALL && audience != found) return WEIR_AUDIENCE_ALL;
        found = audience;
    }
    return found;
}

void weir_round_start(weir_transport *t, uint32_t s)
{
    slot_state *slot = &t->slots[s];
    uint8_t all = (uint8_t)((1u << t->column_groups) - 1);
    slot->round++;
    slot->sends = 0;
    slot->groups = slot->due = slot->reserved = slot->wanted = slot->timeouts = slot->attempts =
        slot->suspect = 0;
    slot->asked_ns = 0;
    slot->audience = audience_of(t, slot);
    for (uint32_t c = 0; c < t->columns; c++) {
        uint32_t block = slot->block[c];
        if (block == WEIR_NO_BLOCK) continue;
        if (weir_block_nonzero(t, block) || t->fills) {
            slot->groups |= (uint8_t)(all << c * t->column_groups);
            t->report.blocks_sent++;
            prefetch_block(t, block);
        }
        if (slot->next[c] == block) slot->next[c] = next_nonzero(t, block);
    }
    weir_ready_add(&t->ready, weir_order_of(t, s));
}

uint32_t weir_round_write(const weir_transport *t, uint32_t s, weir_treatment how, uint8_t *out)
{
    const slot_state *slot = &t->slots[s];
    out[WEIR_WEIR_VERSION_OFFSET] = WEIR_VERSION << WEIR_WEIR_VERSION_SHIFT | WEIR_TYPE_CONTRIBUTION;
    out[WEIR_WEIR_FLAGS_OFFSET] = how.flags;
    out[WEIR_WEIR_OP_OFFSET] = (uint8_t)(t->op << WEIR_WEIR_OP_SHIFT | t->wire_log2);
    out[WEIR_WEIR_GROUPS_OFFSET] = how.groups;
    weir_put32(out + WEIR_WEIR_JOB_OFFSET, t->config.job);
    out[WEIR_WEIR_WORKER_OFFSET] = (uint8_t)t->config.worker;
    out[WEIR_WEIR_LAYER_OFFSET] =
        (uint8_t)(t->service.layer << WEIR_WEIR_LAYER_SHIFT | weir_magnitude_of(t, slot));
    weir_put16(out + WEIR_WEIR_SLOT_OFFSET, (uint16_t)s);
    weir_put32(out + WEIR_WEIR_ROUND_OFFSET, slot->round);
    weir_put32(out + WEIR_WEIR_INCLUDED_OFFSET, 0);
    weir_put16(out + WEIR_WEIR_AUDIENCE_OFFSET, slot->audience);
    weir_put16(out + WEIR_WEIR_COUNT_OFFSET, how.groups != 0);
    weir_put32(out + WEIR_WEIR_CHECK_OFFSET, t->check);
    uint8_t *at = out + WEIR_WEIR_SIZE;
    for (uint32_t c = 0; c < t->columns; c++, at += WEIR_COLUMN_SIZE) {
        weir_put32(at + WEIR_COLUMN_BLOCK_OFFSET, slot->block[c]);
        weir_put32(at + WEIR_COLUMN_NEXT_OFFSET, slot->next[c]);
    }
    if (how.groups)
        for (uint32_t c = 0; c < t->columns; c++)
            if (weir_column_sent(t, slot, c)) {
                uint32_t block = slot->block[c];
                weir_lanes_pack(at, weir_block_lanes(t, block), weir_block_count(t, block), t->block);
                at += 4 * t->block;
            }
    return (uint32_t)(at - out);
}
