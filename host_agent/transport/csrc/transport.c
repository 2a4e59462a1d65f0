/* SPDX-License-Identifier: Apache-2.0 */
/* See transport.h for the contract, protocol.md for the protocol, state.h for where the rest is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "siphash.h"
#include "recover.h"
#include "round.h"

/* How far marks close the window: as many bytes as DCTCP's two segments (RFC 8257), which meet ours in one queue.
 * A round is as long as the slowest worker's way, and marked when any of their packets is. */
enum { LEAST_SLOTS = 3 };

weir_transport *weir_transport_new(const weir_config *config)
{
    if (config->workers < 1 || config->workers > WEIR_MAX_WORKERS || config->worker >= config->workers ||
        config->worker >= WEIR_MAX_CHILDREN || config->slots < 1 || config->slots > UINT16_MAX ||
        config->min_rto_ns <= 0 || config->min_probe_ns <= 0 || config->reordering_ns < 0 ||
        config->congestion > WEIR_CONGESTION_PATH || config->initial_rto_ns < config->min_rto_ns ||
        config->max_rto_ns < config->initial_rto_ns) {
        errno = EINVAL;
        return NULL;
    }
    weir_transport *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->config = *config;
    weir_rtt_init(&t->rtt, config->initial_rto_ns, config->min_probe_ns, config->min_rto_ns,
                  config->max_rto_ns);
    const uint32_t least = config->slots < LEAST_SLOTS ? config->slots : LEAST_SLOTS;
    weir_window_init(&t->window, least, config->slots, config->slots,
                     config->congestion != WEIR_CONGESTION_NONE);
    if (weir_on_path(t)) {
        weir_path_init(&t->path, config->workers, least, config->slots);
        t->window.limit = weir_path_limit(&t->path);
    }
    t->slots = calloc(config->slots, sizeof *t->slots);
    t->deadlines = calloc(config->slots, sizeof *t->deadlines);
    t->again = calloc(config->slots, sizeof *t->again);
    t->ready.keys = calloc(config->slots, sizeof *t->ready.keys);
    t->ready.capacity = config->slots;
    t->unanswered.links = calloc(config->slots + 1, sizeof *t->unanswered.links);
    t->unanswered.end = config->slots;
    const int keeps = config->keep && config->workers > 1; /* alone, nobody else can lack a result */
    t->kept_size = config->wide ? WEIR_MAX_PAYLOAD : WEIR_MAX_NARROW_PAYLOAD;
    if (keeps) t->kept = malloc((size_t)config->slots * t->kept_size);
    t->kept_bytes = calloc(config->slots, sizeof *t->kept_bytes);
    if (!t->slots || !t->deadlines || !t->again || !t->ready.keys || !t->unanswered.links ||
        (keeps && !t->kept) || !t->kept_bytes) {
        weir_transport_free(t);
        errno = ENOMEM;
        return NULL;
    }
    for (uint32_t s = 0; s < config->slots; s++) t->slots[s].round = config->first_round - 1;
    weir_unanswered_clear(&t->unanswered);
    t->earliest = WEIR_NEVER;
    weir_replay_stop(t);
    return t;
}

void weir_transport_free(weir_transport *t)
{
    if (!t) return;
    free(t->slots);
    free(t->deadlines);
    free(t->again);
    free(t->ready.keys);
    free(t->unanswered.links);
    free(t->kept);
    free(t->kept_bytes);
    weir_budget_free(&t->budget);
    free(t->nonzero);
    free(t->returned_blocks);
    free(t->returned_lanes);
    free(t);
}

/* ------------------------------------------------------------------------------------ beginning a reduce */

static int check_service(const weir_service_class *service, uint32_t op, uint64_t blocks, int all_want_all)
{
    if (service->layer >= WEIR_LAYER_CLASSES) return ERANGE;
    if (service->budget_count && (op != WEIR_OP_ADD || !blocks || !all_want_all || !service->budgets))
        return EINVAL;
    for (uint64_t block = 0; service->magnitudes && block < blocks; block++)
        if (service->magnitudes[block] >= WEIR_MAGNITUDE_CLASSES) return ERANGE;
    if (service->accounts && (service->account_rows < 1 || service->account_rows > WEIR_MAX_ACCOUNT_ROWS))
        return EINVAL;
    for (uint64_t i = 0; service->budget_count && service->accounts && i < blocks * service->account_rows;
         i++)
        if (service->accounts[i] >= service->budget_count && service->accounts[i] != WEIR_NO_ACCOUNT)
            return ERANGE;
    return 0;
}

static int check_places(const weir_place *places, uint64_t blocks, uint32_t size, int scaled)
{
    for (uint64_t block = 0; block < blocks; block++)
        if (!places[block].lanes || !places[block].count || places[block].count > size ||
            (places[block].exponents && !scaled))
            return EINVAL;
    return 0;
}

/* Room for a bit per block. */
static int reserve_bitmap(weir_transport *t, uint64_t blocks)
{
    uint64_t words = blocks / 64 + 1;
    if (words <= t->nonzero_words) return 0;
    uint64_t *grown = realloc(t->nonzero, words * sizeof *grown);
    if (!grown) return ENOMEM;
    t->nonzero = grown;
    t->nonzero_words = words;
    return 0;
}

/* Deal the blocks to as many slots as they need, and make all first rounds ready. */
static void open_slots(weir_transport *t)
{
    uint64_t wanted = (t->blocks + t->fused - 1) / t->fused;
    uint32_t most = t->config.slots;
    if (t->block_log2 == WEIR_WIDE_BLOCK_LOG2)
        most = (most + 1) / 2; /* of packets that are four times as long */
    t->used = wanted < 1 ? 1 : wanted < most ? (uint32_t)wanted : most;
    t->streams = (uint64_t)t->used * t->fused;
    t->active = t->used;
    t->again_head = t->again_length = 0;
    weir_ready_clear(&t->ready);
    weir_unanswered_clear(&t->unanswered);
    t->answered_ns = 0;
    t->outstanding = t->suspects = t->quiet_times = 0;
    memset(t->answered_kind_ns, 0, sizeof t->answered_kind_ns);
    for (uint32_t s = 0; s < t->used; s++) {
        slot_state *slot = &t->slots[s];
        for (uint32_t c = 0; c < t->columns; c++) {
            uint64_t first = (uint64_t)s * t->fused + c;
            int ours = c < t->fused && first < t->blocks;
            slot->block[c] = slot->next[c] = ours ? (uint32_t)first : WEIR_NO_BLOCK;
            if (ours) weir_block_enter(t, first);
        }
        slot->before = slot->round;
        slot->active = 1;
        slot->queued = 0;
        weir_round_start(t, s);
    }
}

/* A step of a hash: the finalizer of MurmurHash3. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash ^= word;
    hash = (hash ^ hash >> 33) * 0xff51afd7ed558ccdull;
    hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53ull;
    return hash ^ hash >> 33;
}

/* A hash of what must be the same on all workers, and that nobody else can know: it depends on the job's key. */
static uint32_t fingerprint(const weir_transport *t, uint32_t operation)
{
    uint64_t hash = mix(0, (uint64_t)operation << 32 | t->reduces);
    hash = mix(hash, (uint64_t)(t->op << 8 | t->block_log2) << 48 ^ t->count);
    for (uint64_t block = 0; t->audiences && block < t->blocks; block++)
        if (!block || t->audiences[block] != t->audiences[block - 1])
            hash = mix(hash, block << 16 | t->audiences[block]);
    for (uint64_t block = 0; t->places && block < t->blocks; block++)
        if (t->places[block].count != t->block) hash = mix(hash, block << 16 | t->places[block].count);
    return (uint32_t)sp4_siphash(t->config.key, hash);
}

int weir_transport_begin(weir_transport *t, uint32_t op, uint32_t block_log2, uint32_t *lanes, uint64_t count,
                         const uint16_t *audiences, const weir_service_class *service,
                         const weir_floats *floats, const weir_place *places, uint32_t operation)
{
    static const weir_service_class lossless;
    if (t->active) return EBUSY;
    if (!service) service = &lossless;
    const int wide = block_log2 == WEIR_WIDE_BLOCK_LOG2;
    if (wide && (!t->config.wide || op != WEIR_OP_ADD || service->budget_count)) return EINVAL;
    if (places && (lanes || op != WEIR_OP_ADD || service->budget_count || t->config.fill)) return EINVAL;
    if (op < WEIR_OP_ADD || op > WEIR_OP_OR || block_log2 < WEIR_MIN_BLOCK_LOG2 ||
        (block_log2 > WEIR_MAX_BLOCK_LOG2 && !wide) || (!lanes && !places && count) ||
        (t->config.max_lanes &&
         1u << block_log2 > (op == WEIR_OP_ADD ? t->config.max_lanes : WEIR_GROUP_LANES)))
        return EINVAL;
    uint64_t block = 1u << block_log2, blocks = count / block + (count % block != 0);
    if (blocks >= WEIR_NO_BLOCK) return EFBIG;
    int error = check_service(service, op, blocks, !audiences);
    if (!error && floats &&
        (op != WEIR_OP_ADD || (audiences && !places) || service->budget_count ||
         floats->values_log2 < WEIR_MIN_BLOCK_LOG2))
        error = EINVAL;
    if (!error && places) error = check_places(places, blocks, (uint32_t)block, floats != NULL);
    if (!error) error = reserve_bitmap(t, blocks);
    if (!error) error = weir_budget_open(&t->budget, service->budgets, service->budget_count);
    if (error) return error;
    memset(&t->report, 0, sizeof t->report);
    t->disagreement = 0;
    t->op = op;
    t->block_log2 = block_log2;
    t->block = (uint32_t)block;
    t->wire_log2 = t->config.max_lanes ? WEIR_MAX_BLOCK_LOG2 : block_log2;
    t->columns = wide ? 1 : WEIR_SLOT_LANES >> t->wire_log2;
    t->fills = t->config.fill && t->block == WEIR_SLOT_LANES;
    t->fused = t->config.fill && t->columns > 1 ? t->columns / 2 : t->columns;
    t->group_lanes = wide ? WEIR_WIDE_LANES / WEIR_GROUPS : WEIR_GROUP_LANES;
    t->column_groups = t->block / t->group_lanes;
    t->lanes = lanes;
    t->count = count;
    t->blocks = t->report.blocks = blocks;
    t->audiences = audiences;
    t->places = places;
    t->service = *service;
    t->floats = floats ? *floats : (weir_floats){0};
    t->reduces++;
    weir_rtt_forget(&t->rtt);
    t->check = fingerprint(t, operation);
    t->returned = 0;
    t->heard = 0;
    t->earliest = WEIR_NEVER;
    weir_replay_stop(t);
    weir_rate_pause(&t->rate);
    memset(t->nonzero, 0, t->nonzero_words * sizeof *t->nonzero);
    open_slots(t);
    return 0;
}

/* ------------------------------------------------------------------------------------------- questions */

int weir_transport_disagrees(const weir_transport *t) { return t->disagreement; }

uint32_t weir_transport_job(const weir_transport *t) { return t->config.job; }

int weir_transport_done(const weir_transport *t) { return t->active == 0; }

const weir_report *weir_transport_report(const weir_transport *t) { return &t->report; }

int64_t weir_transport_rto(const weir_transport *t) { return t->rtt.late.timeout_ns; }

int64_t weir_transport_round_trip(const weir_transport *t) { return t->path.base_ns; }

uint32_t weir_transport_window(const weir_transport *t)
{
    return t->window.limit < t->config.slots ? t->window.limit : t->config.slots;
}

uint32_t weir_transport_waiting(const weir_transport *t, uint32_t *slots, uint32_t *rounds, uint32_t capacity)
{
    uint32_t found = 0;
    for (uint32_t s = 0; s < t->used && t->active; s++) {
        if (!t->slots[s].active) continue;
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

uint32_t weir_transport_accounts(const weir_transport *t, const weir_account **accounts)
{
    *accounts = t->budget.accounts;
    return t->budget.count;
}
