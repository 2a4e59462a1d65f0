/* SPDX-License-Identifier: Apache-2.0 */
/* What a payload that came in says, and whether it can be. Nothing is changed here. */
#include "state.h"

static void read_header(weir_result *h, const uint8_t *p)
{
    h->version = p[WEIR_WEIR_VERSION_OFFSET] >> WEIR_WEIR_VERSION_SHIFT;
    h->type = p[WEIR_WEIR_TYPE_OFFSET] & 15;
    h->flags = p[WEIR_WEIR_FLAGS_OFFSET];
    h->op = p[WEIR_WEIR_OP_OFFSET] >> WEIR_WEIR_OP_SHIFT;
    h->block_log2 = p[WEIR_WEIR_BLOCK_LOG2_OFFSET] & 15;
    h->groups = p[WEIR_WEIR_GROUPS_OFFSET];
    h->job = weir_get32(p + WEIR_WEIR_JOB_OFFSET);
    h->worker = p[WEIR_WEIR_WORKER_OFFSET];
    h->layer = p[WEIR_WEIR_LAYER_OFFSET] >> WEIR_WEIR_LAYER_SHIFT;
    h->magnitude = p[WEIR_WEIR_MAGNITUDE_OFFSET] & 15;
    h->slot = weir_get16(p + WEIR_WEIR_SLOT_OFFSET);
    h->round = weir_get32(p + WEIR_WEIR_ROUND_OFFSET);
    h->audience = weir_get16(p + WEIR_WEIR_AUDIENCE_OFFSET);
    h->included = weir_get32(p + WEIR_WEIR_INCLUDED_OFFSET);
    h->count = weir_get16(p + WEIR_WEIR_COUNT_OFFSET);
    h->check = weir_get32(p + WEIR_WEIR_CHECK_OFFSET);
}

static void read_columns(weir_result *h, const uint8_t *p, uint32_t columns)
{
    for (uint32_t c = 0; c < columns; c++) {
        const uint8_t *column = p + WEIR_WEIR_SIZE + c * WEIR_COLUMN_SIZE;
        h->block[c] = weir_get32(column + WEIR_COLUMN_BLOCK_OFFSET);
        h->next[c] = weir_get32(column + WEIR_COLUMN_NEXT_OFFSET);
    }
}

/* Whether `next` may follow the requested block: further down its stream, and not beyond what we offered. */
static int next_fits(const weir_transport *t, uint32_t requested, uint32_t offered, uint32_t next)
{
    if (requested == WEIR_NO_BLOCK || next == WEIR_NO_BLOCK)
        return next == offered; /* nobody can have less to come than we */
    return next <= offered && next < t->blocks && next > requested && (next - requested) % t->streams == 0;
}

/* A result's columns, lane groups and mask against what we sent. */
static enum weir_verdict check_result(const weir_transport *t, const slot_state *slot, const weir_result *h)
{
    uint32_t all = (1u << t->column_groups) - 1;
    int elsewhere = h->flags & WEIR_FLAG_ELSEWHERE;
    if (h->audience != slot->audience || (elsewhere && (h->groups || weir_wanted(t, slot->audience))))
        return WEIR_BAD_AUDIENCE;
    for (uint32_t c = 0; c < t->columns; c++) {
        uint32_t present = h->groups >> c * t->column_groups & all;
        if (!next_fits(t, slot->block[c], slot->next[c], h->next[c])) return WEIR_BAD_NEXT;
        if ((present && present != all) || (present && slot->block[c] == WEIR_NO_BLOCK) ||
            (weir_column_sent(t, slot, c) && !present && !elsewhere && weir_own_included(t, h)))
            return WEIR_BAD_GROUPS;
    }
    int own = weir_own_included(t, h);
    if (h->count > t->config.workers || (uint32_t)__builtin_popcount(h->included) > h->count ||
        (own && !slot->groups) || (h->groups && !h->count))
        return WEIR_BAD_INCLUDED;
    return WEIR_ACCEPTED;
}

/* What kind of packet it is, for whom, and of which round. */
static enum weir_verdict check_header(const weir_transport *t, const weir_result *h)
{
    if (h->version != WEIR_VERSION) return WEIR_BAD_VERSION;
    if (h->type != WEIR_TYPE_RESULT && h->type != WEIR_TYPE_REPEAT) return WEIR_BAD_TYPE;
    if (h->flags & ~WEIR_FLAGS || (h->flags & WEIR_FLAG_TRIMMED && h->groups)) return WEIR_BAD_FLAGS;
    if (h->layer >= WEIR_LAYER_CLASSES || h->magnitude >= WEIR_MAGNITUDE_CLASSES) return WEIR_BAD_CLASS;
    if (h->job != t->config.job) return WEIR_WRONG_JOB;
    if (h->worker != t->config.worker) return WEIR_WRONG_WORKER;
    if (h->slot >= t->config.slots) return WEIR_BAD_SLOT;
    const slot_state *slot = &t->slots[h->slot];
    int32_t age = (int32_t)(slot->round - h->round); /* serial arithmetic, RFC 1982 */
    if (age > 0 || (age == 0 && !slot->active)) return WEIR_STALE;
    if (age != 0 || !slot->sends) return WEIR_BAD_ROUND;
    /* Before anything of the packet's shape, which is that of whichever worker's packet came last. */
    if (h->type == WEIR_TYPE_RESULT && h->flags & WEIR_FLAG_DISAGREE) return WEIR_DISAGREE;
    /* Our contribution is in every result: had it had another check than the others', the result would say so. */
    if (h->type == WEIR_TYPE_RESULT && h->check != t->check) return WEIR_BAD_CHECK;
    if (h->op != t->op) return WEIR_BAD_OP;
    if (h->block_log2 != t->wire_log2) return WEIR_BAD_BLOCK_SIZE;
    if (h->type == WEIR_TYPE_REPEAT && h->groups) return WEIR_BAD_GROUPS;
    return WEIR_ACCEPTED;
}

enum weir_verdict weir_result_check(const weir_transport *t, const uint8_t *payload, uint32_t length,
                                    weir_result *result)
{
    if (length < WEIR_WEIR_SIZE) return WEIR_SHORT;
    read_header(result, payload);
    enum weir_verdict verdict = check_header(t, result);
    if (verdict != WEIR_ACCEPTED) return verdict;
    uint32_t headers = WEIR_WEIR_SIZE + t->columns * WEIR_COLUMN_SIZE;
    if (length != headers + 4 * t->group_lanes * (uint32_t)__builtin_popcount(result->groups))
        return WEIR_BAD_LENGTH;
    read_columns(result, payload, t->columns);
    const slot_state *slot = &t->slots[result->slot];
    for (uint32_t c = 0; c < t->columns; c++)
        if (result->block[c] != slot->block[c]) return WEIR_BAD_COLUMN;
    if (result->type == WEIR_TYPE_REPEAT) return WEIR_REPEAT;
    if (result->flags & WEIR_FLAG_TRIMMED) return WEIR_TRIMMED;
    return check_result(t, slot, result);
}
