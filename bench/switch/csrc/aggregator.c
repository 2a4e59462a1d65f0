/* SPDX-License-Identifier: Apache-2.0 */
/* A hand-written slot aggregator: what a careful programmer gets out of C for this one protocol.
 *
 * The yardstick of the soft switch, which compiles the same behaviour from P4. It does the work of
 * p4src/weir_v1model.p4 that a round needs (admission, round stamps, seen and included masks, fingerprints,
 * minimum next, lane operators, one rewritten result per worker) and none of its forwarding. It has the soft switch's C
 * face (switch.h), so that both run under the same port drivers and the same in-memory loop.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "switch.h"
#include "wire.h"

#define ETHERNET 14u
#define UDP_PAYLOAD 42u
#define LANES WEIR_SLOT_LANES

typedef struct {
    uint32_t owner, round, seen, included, count, check;
    uint32_t next[WEIR_MAX_COLUMNS];
    uint8_t written, flags;
    _Alignas(64) uint32_t lanes[LANES];
} agg_slot;

typedef struct {
    sw_switch base; /* first: what drivers see */
    uint32_t job, workers, slots;
    agg_slot *slot; /* two versions each */
} agg_switch;

static uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}

static void store32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}

static void store16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

#define COMBINE(expression)                                                                                  \
    for (uint32_t i = 0; i < WEIR_GROUP_LANES; i++) {                                                        \
        uint32_t x = acc[i] & keep, y = __builtin_bswap32(in[i]);                                            \
        acc[i] = (expression);                                                                               \
    }

static void combine(uint32_t *acc, const uint8_t *from, uint32_t keep, uint32_t op)
{
    uint32_t in[WEIR_GROUP_LANES];
    memcpy(in, from, sizeof in);
    if (op == WEIR_OP_ADD)
        COMBINE(x + y)
    else if (op == WEIR_OP_MAX)
        COMBINE(x > y ? x : y)
    else
        COMBINE(x | y)
}

static uint16_t ip_checksum(const uint8_t *ip)
{
    uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2) sum += (uint32_t)ip[i] << 8 | ip[i + 1];
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~((sum & 0xffff) + (sum >> 16));
}

/* Write the result of a round into `out`, whose headers are the completing packet's; its length. */
static uint32_t result(const agg_slot *s, uint8_t *out, uint32_t columns)
{
    uint8_t *weir = out + UDP_PAYLOAD;
    weir[WEIR_WEIR_TYPE_OFFSET] = WEIR_VERSION << WEIR_WEIR_VERSION_SHIFT | WEIR_TYPE_RESULT;
    weir[WEIR_WEIR_FLAGS_OFFSET] |= s->flags;
    weir[WEIR_WEIR_GROUPS_OFFSET] = s->written;
    store32(weir + WEIR_WEIR_INCLUDED_OFFSET, s->included);
    store16(weir + WEIR_WEIR_COUNT_OFFSET, s->count);
    uint8_t *at = weir + WEIR_WEIR_SIZE;
    for (uint32_t c = 0; c < columns; c++, at += WEIR_COLUMN_SIZE)
        store32(at + WEIR_COLUMN_NEXT_OFFSET, s->next[c]);
    for (uint32_t g = 0; g < WEIR_GROUPS; g++)
        if (s->written >> g & 1) {
            uint32_t lanes[WEIR_GROUP_LANES];
            for (uint32_t i = 0; i < WEIR_GROUP_LANES; i++)
                lanes[i] = __builtin_bswap32(s->lanes[g * WEIR_GROUP_LANES + i]);
            memcpy(at, lanes, sizeof lanes);
            at += sizeof lanes;
        }
    return (uint32_t)(at - out);
}

static void deliver(uint8_t *out, uint32_t len, uint32_t worker, sw_emit emit, void *ctx)
{
    static const uint8_t aggregation[] = {2, 0, 0, 0, 0, 0xfe};
    uint8_t *ip = out + ETHERNET;
    memcpy(out, aggregation, 6);
    out[5] = (uint8_t)(worker + 1);
    memcpy(out + 6, aggregation, 6);
    store16(ip + 2, len - ETHERNET);
    store16(ip + 4, 0);
    ip[8] = 64;
    store16(ip + 10, 0);
    store32(ip + 12, 10u << 24 | 254);
    store32(ip + 16, 10u << 24 | (worker + 1));
    store16(ip + 10, ip_checksum(ip));
    store16(ip + 20, WEIR_UDP_PORT);
    store16(ip + 22, WEIR_UDP_PORT);
    store16(ip + 24, len - ETHERNET - 20);
    store16(ip + 26, 0);
    out[UDP_PAYLOAD + WEIR_WEIR_WORKER_OFFSET] = (uint8_t)worker;
    emit(ctx, worker + 1, out, len);
}

static void process(sw_switch *self, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now,
                    sw_emit emit, void *ctx)
{
    (void)now;
    agg_switch *sw = (agg_switch *)self;
    const uint8_t *weir = frame + UDP_PAYLOAD;
    if (len < UDP_PAYLOAD + WEIR_WEIR_SIZE || frame[12] != 8 || frame[13] != 0 || frame[14] != 0x45 ||
        frame[23] != 17 || ip_checksum(frame + ETHERNET) != 0 ||
        ((uint32_t)frame[36] << 8 | frame[37]) != WEIR_UDP_PORT)
        return;
    uint32_t op = weir[WEIR_WEIR_OP_OFFSET] >> WEIR_WEIR_OP_SHIFT,
             log2 = weir[WEIR_WEIR_BLOCK_LOG2_OFFSET] & 15;
    uint32_t groups = weir[WEIR_WEIR_GROUPS_OFFSET], worker = weir[WEIR_WEIR_WORKER_OFFSET];
    uint32_t slot = (uint32_t)weir[WEIR_WEIR_SLOT_OFFSET] << 8 | weir[WEIR_WEIR_SLOT_OFFSET + 1];
    uint32_t round = load32(weir + WEIR_WEIR_ROUND_OFFSET), job = load32(weir + WEIR_WEIR_JOB_OFFSET);
    uint32_t check = load32(weir + WEIR_WEIR_CHECK_OFFSET);
    if (weir[0] != (WEIR_VERSION << 4 | WEIR_TYPE_CONTRIBUTION) ||
        (weir[WEIR_WEIR_FLAGS_OFFSET] & ~WEIR_FLAG_PROTECTED) || op < 1 || op > 3 ||
        log2 < WEIR_MIN_BLOCK_LOG2 || log2 > WEIR_MAX_BLOCK_LOG2 || job != sw->job || worker >= sw->workers ||
        port != worker + 1 || slot >= sw->slots)
        return;
    uint32_t columns = LANES >> log2;
    uint32_t size = UDP_PAYLOAD + WEIR_WEIR_SIZE + columns * WEIR_COLUMN_SIZE +
                    (uint32_t)__builtin_popcount(groups) * WEIR_GROUP_LANES * 4;
    if (len < size) return;
    agg_slot *s = &sw->slot[slot * 2 + (round & 1)];
    uint32_t age = round - s->round, bit = 1u << worker, all = (uint32_t)((1ull << sw->workers) - 1);
    if (s->owner != job || (age && age < 0x80000000u)) {
        s->owner = job;
        s->round = round;
        s->seen = s->included = s->count = s->written = s->flags = 0;
        s->check = check;
        memset(s->next, 0xff, sizeof s->next);
    } else if (age) {
        return;
    }
    int again = (s->seen & bit) != 0;
    if (again && s->seen != all) return;
    const uint8_t *at = weir + WEIR_WEIR_SIZE;
    if (!again) {
        s->seen |= bit;
        s->flags |= s->check == check ? 0 : WEIR_FLAG_DISAGREE;
        s->included |= groups ? bit : 0;
        s->count += groups != 0;
        for (uint32_t c = 0; c < columns; c++, at += WEIR_COLUMN_SIZE) {
            uint32_t next = load32(at + WEIR_COLUMN_NEXT_OFFSET);
            s->next[c] = next < s->next[c] ? next : s->next[c];
        }
        for (uint32_t g = 0; g < WEIR_GROUPS; g++)
            if (groups >> g & 1) {
                combine(s->lanes + g * WEIR_GROUP_LANES, at, s->written >> g & 1 ? ~0u : 0, op);
                s->written |= (uint8_t)(1u << g);
                at += WEIR_GROUP_LANES * 4;
            }
        if (s->seen != all) return;
    }
    uint8_t out[2048];
    memcpy(out, frame, UDP_PAYLOAD + WEIR_WEIR_SIZE + columns * WEIR_COLUMN_SIZE);
    uint32_t n = result(s, out, columns);
    for (uint32_t w = 0; w < sw->workers; w++)
        if (!again || w == worker) deliver(out, n, w, emit, ctx);
}

static void no_lock(sw_switch *self) { (void)self; /* nothing changes while it runs */ }

static void no_stats(const sw_switch *self, sw_stats *out)
{
    (void)self;
    memset(out, 0, sizeof *out);
}

sw_switch *aggregator_new(uint32_t job, uint32_t workers, uint32_t slots)
{
    static const sw_ops ops = {.process = process, .lock = no_lock, .unlock = no_lock, .stats = no_stats};
    agg_switch *sw = calloc(1, sizeof *sw);
    *sw = (agg_switch){{&ops, 1}, job, workers, slots, aligned_alloc(64, sizeof(agg_slot) * slots * 2)};
    memset(sw->slot, 0, sizeof(agg_slot) * slots * 2);
    return &sw->base;
}

void aggregator_free(sw_switch *self)
{
    free(((agg_switch *)self)->slot);
    free(self);
}
