/* SPDX-License-Identifier: Apache-2.0 */
/* See transport.h for the contract, docs/protocol.md for the protocol. */
#include "transport.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lanes.h"
#include "rtt.h"

typedef struct {
    uint32_t round;  /* in progress, or the last one done */
    uint32_t sends;  /* packets sent in this round */
    uint8_t active;  /* takes part in the reduce and is not finished */
    uint8_t queued;  /* in the queue of packets to send */
    uint8_t groups;  /* that our contribution to this round carries */
    uint8_t timed;   /* an answer to the first packet measures the network, not a late worker */
    int64_t sent_ns; /* first packet of this round */
    uint32_t block[WEIR_MAX_COLUMNS], next[WEIR_MAX_COLUMNS];
} slot_state;

struct weir_transport {
    weir_config config;
    weir_rtt rtt;
    slot_state *slots;
    int64_t *deadlines; /* per slot: when to send again */
    uint16_t *queue;    /* ring of slots whose packet is due */
    uint32_t queue_head, queue_length;
    int64_t earliest; /* no deadline comes before */

    /* the reduce in progress */
    uint32_t op, block_log2, block, columns, column_groups;
    uint32_t used;   /* slots in use */
    uint32_t active; /* slots not finished */
    uint32_t *lanes;
    uint64_t count, blocks, streams;
    int heard; /* a result came: every worker is there */

    uint64_t *nonzero; /* bitmap of blocks */
    uint64_t nonzero_words;
    uint32_t *returned_blocks, *returned_lanes;
    uint64_t returned, returned_capacity;
    weir_report report;
};

/* A result's headers, copied out of memory that its sender could still change. */
typedef struct {
    uint8_t version, type, flags, op, block_log2, groups, worker;
    uint32_t job, round, included;
    uint16_t slot;
    uint32_t block[WEIR_MAX_COLUMNS], next[WEIR_MAX_COLUMNS];
} result_header;

weir_transport *weir_transport_new(const weir_config *config)
{
    if (config->workers < 1 || config->workers > WEIR_MAX_WORKERS || config->worker >= config->workers ||
        config->slots < 1 || config->slots > UINT16_MAX || config->min_rto_ns <= 0 ||
        config->initial_rto_ns < config->min_rto_ns || config->max_rto_ns < config->initial_rto_ns) {
        errno = EINVAL;
        return NULL;
    }
    weir_transport *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->config = *config;
    weir_rtt_init(&t->rtt, config->initial_rto_ns, config->min_rto_ns, config->max_rto_ns);
    t->slots = calloc(config->slots, sizeof *t->slots);
    t->deadlines = calloc(config->slots, sizeof *t->deadlines);
    t->queue = calloc(config->slots, sizeof *t->queue);
    if (!t->slots || !t->deadlines || !t->queue) {
        weir_transport_free(t);
        errno = ENOMEM;
        return NULL;
    }
    for (uint32_t s = 0; s < config->slots; s++)
        t->slots[s].round = config->first_round - 1;
    t->earliest = WEIR_NEVER;
    return t;
}

void weir_transport_free(weir_transport *t)
{
    if (!t)
        return;
    free(t->slots);
    free(t->deadlines);
    free(t->queue);
    free(t->nonzero);
    free(t->returned_blocks);
    free(t->returned_lanes);
    free(t);
}

/* ------------------------------------------------------------------------------------------ the vector */

/* Lanes of the vector in this block: fewer than the block size only in the last one. */
static inline uint32_t block_count(const weir_transport *t, uint64_t block)
{
    uint64_t left = t->count - (block << t->block_log2);
    return left < t->block ? (uint32_t)left : t->block;
}

static inline uint32_t *block_lanes(const weir_transport *t, uint64_t block)
{
    return t->lanes + (block << t->block_log2);
}

static inline int block_nonzero(const weir_transport *t, uint64_t block)
{
    return t->nonzero[block >> 6] >> (block & 63) & 1;
}

/* Find the non-zero blocks, and enter what they hold into the ledger. */
static void scan_vector(weir_transport *t)
{
    memset(t->nonzero, 0, t->nonzero_words * sizeof *t->nonzero);
    for (uint64_t block = 0; block < t->blocks; block++) {
        uint32_t any, count = block_count(t, block);
        uint64_t sum = weir_lanes_scan(block_lanes(t, block), count, &any);
        if (!any)
            continue;
        t->nonzero[block >> 6] |= 1ull << (block & 63);
        t->report.entered_lanes += count;
        t->report.entered_sum += sum;
    }
}

/* The stream's first non-zero block after this one: what we have to offer next. */
static uint32_t next_nonzero(const weir_transport *t, uint64_t block)
{
    for (block += t->streams; block < t->blocks; block += t->streams)
        if (block_nonzero(t, block))
            return (uint32_t)block;
    return WEIR_NO_BLOCK;
}

/* The next packet of this slot will read these lanes within microseconds: fetch them now. */
static inline void prefetch_block(const weir_transport *t, uint64_t block)
{
    const char *lanes = (const char *)block_lanes(t, block);
    for (uint32_t at = 0; at < 4 * t->block; at += 64)
        __builtin_prefetch(lanes + at, 1);
}

/* --------------------------------------------------------------------------------------------- sending */

static void enqueue(weir_transport *t, uint32_t s)
{
    uint32_t at = t->queue_head + t->queue_length++;
    t->queue[at >= t->config.slots ? at - t->config.slots : at] = (uint16_t)s;
    t->slots[s].queued = 1;
}

/* Make the slot's blocks the subject of a new round, with what we hold of each. */
static void start_round(weir_transport *t, uint32_t s)
{
    slot_state *slot = &t->slots[s];
    uint8_t all = (uint8_t)((1u << t->column_groups) - 1);
    slot->round++;
    slot->sends = 0;
    slot->groups = 0;
    for (uint32_t c = 0; c < t->columns; c++) {
        uint32_t block = slot->block[c];
        slot->next[c] = WEIR_NO_BLOCK;
        if (block == WEIR_NO_BLOCK)
            continue;
        if (block_nonzero(t, block) || t->config.fill) {
            slot->groups |= (uint8_t)(all << c * t->column_groups);
            t->report.blocks_sent++;
            prefetch_block(t, block);
        }
        slot->next[c] = next_nonzero(t, block);
    }
    if (!slot->queued)
        enqueue(t, s);
}

int weir_transport_begin(weir_transport *t, uint32_t op, uint32_t block_log2, uint32_t *lanes, uint64_t count)
{
    if (t->active)
        return EBUSY;
    if (op < WEIR_OP_ADD || op > WEIR_OP_OR || block_log2 < WEIR_MIN_BLOCK_LOG2 ||
        block_log2 > WEIR_MAX_BLOCK_LOG2 || (!lanes && count))
        return EINVAL;
    uint64_t block = 1u << block_log2, blocks = count / block + (count % block != 0);
    if (blocks >= WEIR_NO_BLOCK)
        return EFBIG;
    uint64_t words = blocks / 64 + 1;
    if (words > t->nonzero_words) {
        uint64_t *grown = realloc(t->nonzero, words * sizeof *grown);
        if (!grown)
            return ENOMEM;
        t->nonzero = grown;
        t->nonzero_words = words;
    }
    memset(&t->report, 0, sizeof t->report);
    t->op = op;
    t->block_log2 = block_log2;
    t->block = (uint32_t)block;
    t->columns = WEIR_SLOT_LANES >> block_log2;
    t->column_groups = t->block / WEIR_GROUP_LANES;
    t->lanes = lanes;
    t->count = count;
    t->blocks = t->report.blocks = blocks;
    t->returned = 0;
    t->heard = 0;
    t->earliest = WEIR_NEVER;
    t->queue_head = t->queue_length = 0;
    scan_vector(t);

    uint64_t wanted = (blocks + t->columns - 1) / t->columns;
    t->used = wanted < 1 ? 1 : wanted < t->config.slots ? (uint32_t)wanted : t->config.slots;
    t->streams = (uint64_t)t->used * t->columns;
    t->active = t->used;
    for (uint32_t s = 0; s < t->used; s++) {
        for (uint32_t c = 0; c < t->columns; c++) {
            uint64_t first = (uint64_t)s * t->columns + c;
            t->slots[s].block[c] = first < blocks ? (uint32_t)first : WEIR_NO_BLOCK;
        }
        t->slots[s].active = 1;
        t->slots[s].queued = 0;
        start_round(t, s);
    }
    return 0;
}

/* Until the first result of a reduce, silence says that some worker is late, not that packets were lost:
 * then slot 0 alone asks again. */
static void arm_timer(weir_transport *t, uint32_t s, int64_t now_ns)
{
    int64_t deadline = WEIR_NEVER;
    if (t->heard || s == 0)
        deadline = now_ns + weir_rtt_backed_off(&t->rtt, t->slots[s].sends - 1);
    t->deadlines[s] = deadline;
    if (deadline < t->earliest)
        t->earliest = deadline;
}

static void arm_all_timers(weir_transport *t, int64_t now_ns)
{
    for (uint32_t s = 0; s < t->used; s++)
        if (t->slots[s].active && t->slots[s].sends && !t->slots[s].queued)
            arm_timer(t, s, now_ns);
}

/* Queue what timed out. */
static void expire(weir_transport *t, int64_t now_ns)
{
    if (now_ns < t->earliest)
        return;
    t->earliest = WEIR_NEVER;
    for (uint32_t s = 0; s < t->used; s++) {
        if (!t->slots[s].active || t->slots[s].queued)
            continue;
        if (t->deadlines[s] <= now_ns)
            enqueue(t, s);
        else if (t->deadlines[s] < t->earliest)
            t->earliest = t->deadlines[s];
    }
}

static uint32_t write_contribution(const weir_transport *t, uint32_t s, uint8_t *out)
{
    const slot_state *slot = &t->slots[s];
    out[WEIR_WEIR_VERSION_OFFSET] = WEIR_VERSION << WEIR_WEIR_VERSION_SHIFT | WEIR_TYPE_CONTRIBUTION;
    out[WEIR_WEIR_FLAGS_OFFSET] = 0;
    out[WEIR_WEIR_OP_OFFSET] = (uint8_t)(t->op << WEIR_WEIR_OP_SHIFT | t->block_log2);
    out[WEIR_WEIR_GROUPS_OFFSET] = slot->groups;
    weir_put32(out + WEIR_WEIR_JOB_OFFSET, t->config.job);
    out[WEIR_WEIR_WORKER_OFFSET] = (uint8_t)t->config.worker;
    out[WEIR_WEIR_RESERVED_OFFSET] = 0;
    weir_put16(out + WEIR_WEIR_SLOT_OFFSET, (uint16_t)s);
    weir_put32(out + WEIR_WEIR_ROUND_OFFSET, slot->round);
    weir_put32(out + WEIR_WEIR_INCLUDED_OFFSET, 0);
    uint8_t *at = out + WEIR_WEIR_SIZE;
    for (uint32_t c = 0; c < t->columns; c++, at += WEIR_COLUMN_SIZE) {
        weir_put32(at + WEIR_COLUMN_BLOCK_OFFSET, slot->block[c]);
        weir_put32(at + WEIR_COLUMN_NEXT_OFFSET, slot->next[c]);
    }
    for (uint32_t c = 0; c < t->columns; c++)
        if (slot->groups >> c * t->column_groups & 1) {
            weir_lanes_pack(at, block_lanes(t, slot->block[c]), block_count(t, slot->block[c]), t->block);
            at += 4 * t->block;
        }
    return (uint32_t)(at - out);
}

/* Drop slots from the queue's head whose reduce has ended since. */
static int queue_ready(weir_transport *t)
{
    while (t->queue_length && !t->slots[t->queue[t->queue_head]].active) {
        t->slots[t->queue[t->queue_head]].queued = 0;
        t->queue_head = t->queue_head + 1 == t->config.slots ? 0 : t->queue_head + 1;
        t->queue_length--;
    }
    return t->queue_length != 0;
}

int weir_transport_sendable(weir_transport *t, int64_t now_ns)
{
    expire(t, now_ns);
    return queue_ready(t);
}

uint32_t weir_transport_send(weir_transport *t, int64_t now_ns, uint8_t *out)
{
    if (!weir_transport_sendable(t, now_ns))
        return 0;
    uint32_t s = t->queue[t->queue_head];
    t->queue_head = t->queue_head + 1 == t->config.slots ? 0 : t->queue_head + 1;
    t->queue_length--;
    slot_state *slot = &t->slots[s];
    slot->queued = 0;
    if (slot->sends++ == 0) {
        slot->sent_ns = now_ns;
        slot->timed = t->heard != 0;
    } else
        t->report.retransmissions++;
    arm_timer(t, s, now_ns);
    uint32_t length = write_contribution(t, s, out);
    t->report.packets_up++;
    t->report.bytes_up += length + WEIR_FRAME_OVERHEAD;
    return length;
}

/* ------------------------------------------------------------------------------------------- receiving */

static void read_header(result_header *h, const uint8_t *p)
{
    h->version = p[WEIR_WEIR_VERSION_OFFSET] >> WEIR_WEIR_VERSION_SHIFT;
    h->type = p[WEIR_WEIR_TYPE_OFFSET] & 15;
    h->flags = p[WEIR_WEIR_FLAGS_OFFSET];
    h->op = p[WEIR_WEIR_OP_OFFSET] >> WEIR_WEIR_OP_SHIFT;
    h->block_log2 = p[WEIR_WEIR_BLOCK_LOG2_OFFSET] & 15;
    h->groups = p[WEIR_WEIR_GROUPS_OFFSET];
    h->job = weir_get32(p + WEIR_WEIR_JOB_OFFSET);
    h->worker = p[WEIR_WEIR_WORKER_OFFSET];
    h->slot = weir_get16(p + WEIR_WEIR_SLOT_OFFSET);
    h->round = weir_get32(p + WEIR_WEIR_ROUND_OFFSET);
    h->included = weir_get32(p + WEIR_WEIR_INCLUDED_OFFSET);
}

static void read_columns(result_header *h, const uint8_t *p, uint32_t columns)
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

static inline uint8_t own_included(const weir_transport *t, const result_header *h)
{
    return h->included >> t->config.worker & 1;
}

static enum weir_verdict check_columns(const weir_transport *t, const slot_state *slot, const result_header *h)
{
    uint32_t all = (1u << t->column_groups) - 1;
    for (uint32_t c = 0; c < t->columns; c++) {
        uint32_t present = h->groups >> c * t->column_groups & all;
        uint32_t sent = slot->groups >> c * t->column_groups & all;
        if (h->block[c] != slot->block[c])
            return WEIR_BAD_COLUMN;
        if (!next_fits(t, slot->block[c], slot->next[c], h->next[c]))
            return WEIR_BAD_NEXT;
        if ((present && present != all) || (present && slot->block[c] == WEIR_NO_BLOCK) ||
            (sent && !present && own_included(t, h)))
            return WEIR_BAD_GROUPS;
    }
    uint32_t everyone = t->config.workers == 32 ? UINT32_MAX : (1u << t->config.workers) - 1;
    if (h->included & ~everyone || (own_included(t, h) && !slot->groups) || (h->groups && !h->included))
        return WEIR_BAD_INCLUDED;
    return WEIR_ACCEPTED;
}

static enum weir_verdict check_result(const weir_transport *t, const uint8_t *payload, uint32_t length,
                                      result_header *h)
{
    if (length < WEIR_WEIR_SIZE)
        return WEIR_SHORT;
    read_header(h, payload);
    if (h->version != WEIR_VERSION)
        return WEIR_BAD_VERSION;
    if (h->type != WEIR_TYPE_RESULT)
        return WEIR_BAD_TYPE;
    if (h->flags)
        return WEIR_BAD_FLAGS;
    if (h->job != t->config.job)
        return WEIR_WRONG_JOB;
    if (h->worker != t->config.worker)
        return WEIR_WRONG_WORKER;
    if (h->slot >= t->config.slots)
        return WEIR_BAD_SLOT;
    const slot_state *slot = &t->slots[h->slot];
    int32_t age = (int32_t)(slot->round - h->round); /* serial arithmetic, RFC 1982 */
    if (age > 0 || (age == 0 && !slot->active))
        return WEIR_STALE;
    if (age != 0 || !slot->sends)
        return WEIR_BAD_ROUND;
    if (h->op != t->op)
        return WEIR_BAD_OP;
    if (h->block_log2 != t->block_log2)
        return WEIR_BAD_BLOCK_SIZE;
    uint32_t headers = WEIR_WEIR_SIZE + t->columns * WEIR_COLUMN_SIZE;
    if (length != headers + 4 * WEIR_GROUP_LANES * (uint32_t)__builtin_popcount(h->groups))
        return WEIR_BAD_LENGTH;
    read_columns(h, payload, t->columns);
    return check_columns(t, slot, h);
}

/* Room for one more packet's worth of returned blocks. */
static int reserve_returned(weir_transport *t)
{
    uint64_t needed = t->returned + WEIR_MAX_COLUMNS;
    if (needed <= t->returned_capacity)
        return 1;
    uint64_t capacity = 2 * needed;
    uint32_t *blocks = realloc(t->returned_blocks, capacity * sizeof *blocks);
    if (blocks)
        t->returned_blocks = blocks;
    uint32_t *lanes = realloc(t->returned_lanes, capacity * WEIR_SLOT_LANES * sizeof *lanes);
    if (lanes)
        t->returned_lanes = lanes;
    if (!blocks || !lanes)
        return 0;
    t->returned_capacity = capacity;
    return 1;
}

static void give_back(weir_transport *t, uint32_t block)
{
    uint32_t count = block_count(t, block), *to = t->returned_lanes + t->returned * t->block;
    memcpy(to, block_lanes(t, block), 4 * count);
    memset(to + count, 0, 4 * (t->block - count));
    t->returned_blocks[t->returned++] = block;
    t->report.returned_lanes += count;
    t->report.returned_sum += weir_lanes_sum(to, count);
}

/* Settle our lanes of each column (included or given back), then write the result's over them. */
static void apply_result(weir_transport *t, const slot_state *slot, const result_header *h, const uint8_t *lanes)
{
    for (uint32_t c = 0; c < t->columns; c++) {
        uint32_t block = slot->block[c];
        int sent = slot->groups >> c * t->column_groups & 1, present = h->groups >> c * t->column_groups & 1;
        if (!sent && !present)
            continue;
        uint32_t count = block_count(t, block);
        if (!block_nonzero(t, block))
            ; /* nothing entered: zeros, sent or not */
        else if (own_included(t, h)) {
            t->report.included_lanes += count;
            t->report.included_sum += weir_lanes_sum(block_lanes(t, block), count);
        } else
            give_back(t, block);
        if (present) {
            t->report.applied_lanes += count;
            t->report.applied_sum += weir_lanes_unpack(block_lanes(t, block), lanes, count);
            lanes += 4 * t->block;
        } else
            memset(block_lanes(t, block), 0, 4 * count);
    }
}

static void advance(weir_transport *t, uint32_t s, const result_header *h)
{
    slot_state *slot = &t->slots[s];
    uint32_t more = 0;
    for (uint32_t c = 0; c < t->columns; c++) {
        slot->block[c] = h->next[c];
        more |= h->next[c] != WEIR_NO_BLOCK;
    }
    if (more)
        start_round(t, s);
    else {
        slot->active = 0;
        t->active--;
    }
}

enum weir_verdict weir_transport_receive(weir_transport *t, const uint8_t *payload, uint32_t length,
                                         int64_t now_ns)
{
    result_header h;
    enum weir_verdict verdict = check_result(t, payload, length, &h);
    if (verdict == WEIR_ACCEPTED && !own_included(t, &h) && !reserve_returned(t))
        verdict = WEIR_NO_MEMORY;
    t->report.verdicts[verdict]++;
    t->report.packets_down++;
    t->report.bytes_down += length + WEIR_FRAME_OVERHEAD;
    if (verdict != WEIR_ACCEPTED)
        return verdict;
    slot_state *slot = &t->slots[h.slot];
    t->report.rounds++;
    if (slot->sends == 1 && slot->timed) /* Karn: an answer to a repeated packet measures nothing */
        weir_rtt_sample(&t->rtt, now_ns - slot->sent_ns);
    apply_result(t, slot, &h, payload + WEIR_WEIR_SIZE + t->columns * WEIR_COLUMN_SIZE);
    advance(t, h.slot, &h);
    if (!t->heard) {
        t->heard = 1;
        arm_all_timers(t, now_ns);
    }
    return WEIR_ACCEPTED;
}

void weir_transport_refuse(weir_transport *t, enum weir_verdict verdict)
{
    t->report.verdicts[verdict]++;
}

/* ------------------------------------------------------------------------------------------- inspection */

int weir_transport_done(const weir_transport *t)
{
    return t->active == 0;
}

int64_t weir_transport_deadline(const weir_transport *t)
{
    return t->active ? t->earliest : WEIR_NEVER;
}

const weir_report *weir_transport_report(const weir_transport *t)
{
    return &t->report;
}

int64_t weir_transport_rto(const weir_transport *t)
{
    return t->rtt.rto_ns;
}

uint32_t weir_transport_waiting(const weir_transport *t, uint32_t *slots, uint32_t *rounds, uint32_t capacity)
{
    uint32_t found = 0;
    for (uint32_t s = 0; s < t->used && t->active; s++) {
        if (!t->slots[s].active)
            continue;
        if (found < capacity) {
            slots[found] = s;
            rounds[found] = t->slots[s].round;
        }
        found++;
    }
    return found;
}

uint64_t weir_transport_returned(const weir_transport *t, const uint32_t **blocks, const uint32_t **lanes)
{
    *blocks = t->returned_blocks;
    *lanes = t->returned_lanes;
    return t->returned;
}
