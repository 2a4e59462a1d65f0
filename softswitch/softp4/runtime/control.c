// SPDX-License-Identifier: Apache-2.0
// The control plane's entry points, called from Python (bindings.py). Each takes the
// switch's lock, so that a data path running in another thread sees a change whole or not at all.
// Numbers and lengths have been checked by the caller.
#include <stdlib.h>
#include <string.h>

#include "digest.h"
#include "kept.h"
#include "meter.h"
#include "queue.h"
#include "shards.h"
#include "table.h"
#include "trace.h"

enum { PAGE = 4096 };

static sw_state *state(sw_switch *sw) { return (sw_state *)sw; }

static void lock(sw_switch *sw) { pthread_mutex_lock(&state(sw)->mutex); }
static void unlock(sw_switch *sw) { pthread_mutex_unlock(&state(sw)->mutex); }

// Of what every part has, the control plane sees one: it changes all of them, and reads the sum.
#define EACH_PART(s, part)                                                                                   \
    for (uint32_t n_ = 0; n_ < (s)->base.threads; n_++)                                                      \
        for (sw_state *part = (s)->parts[n_]; part != NULL; part = NULL)

static void stats(const sw_switch *sw, sw_stats *out)
{
    const sw_state *s = (const sw_state *)sw;
    *out = (sw_stats){0};
    EACH_PART(s, part)
    {
        out->packets_in += part->stats.packets_in;
        out->packets_out += part->stats.packets_out;
        out->packets_dropped += part->stats.packets_dropped;
        out->bytes_in += part->stats.bytes_in;
        out->bytes_out += part->stats.bytes_out;
    }
}

static void step(sw_switch *sw, uint64_t now_ns, sw_emit emit, void *ctx)
{
    sw_traffic_step(state(sw), now_ns, emit, ctx);
}

static uint64_t deadline(const sw_switch *sw)
{
    return atomic_load_explicit(&((const sw_state *)sw)->deadline, memory_order_relaxed);
}

int swc_set_queueing(sw_switch *sw, uint32_t port, const sw_queueing *wanted);

static void queue_stats(sw_switch *sw, uint32_t port, sw_queue_stats *out)
{
    lock(sw);
    sw_traffic_stats(state(sw), port, out);
    unlock(sw);
}

// Before a port is limited (with one thread, and with several), from then on, and while packets are traced.
static sw_ops unlimited = {NULL,        lock, unlock, stats, step, deadline, swc_set_queueing,
                           queue_stats, NULL, NULL};
static sw_ops shared = {NULL,
                        lock,
                        unlock,
                        stats,
                        step,
                        deadline,
                        swc_set_queueing,
                        queue_stats,
                        sw_shards_process,
                        sw_shards_together};
static const sw_ops limited = {sw_traffic_process, lock,        unlock, stats, step, deadline,
                               swc_set_queueing,   queue_stats, NULL,   NULL};
static const sw_ops traced = {sw_trace_process, lock,        unlock, stats, step, deadline,
                              swc_set_queueing, queue_stats, NULL,   NULL};

static void choose_operations(sw_state *s)
{
    const sw_ops *ops = s->trace != NULL     ? &traced
                        : s->traffic != NULL ? &limited
                        : s->shared          ? &shared
                                             : &unlimited;
    __atomic_store_n(&s->base.ops, ops, __ATOMIC_RELAXED);
}

int swc_set_queueing(sw_switch *sw, uint32_t port, const sw_queueing *wanted)
{
    lock(sw);
    int result = sw_traffic_set(state(sw), port, wanted);
    choose_operations(state(sw));
    unlock(sw);
    return result;
}

void swc_queue_stats(sw_switch *sw, uint32_t port, sw_queue_stats *out) { queue_stats(sw, port, out); }

// Large ones begin with a page: processors hold up a load for a store before it to an address that is the same but for
// the page, so where such arrays begin within pages should not be left to chance.
static void *cells(uint64_t count, size_t bytes)
{
    const size_t least = count * bytes, unit = least < PAGE ? 64 : PAGE,
                 size = (least + unit - 1) / unit * unit;
    void *memory = size == 0 ? NULL : aligned_alloc(unit, size);
    if (memory != NULL) memset(memory, 0, size);
    return memory;
}

static void destroy_own(sw_state *s)
{
    for (uint32_t i = 0; s->tables != NULL && i < sw_generated.tables; i++)
        if (s->tables[i].fallback != NULL) sw_table_free(&s->tables[i]);
    for (uint32_t i = 0; s->counters != NULL && i < sw_generated.counters; i++) free(s->counters[i]);
    free(s->tables);
    free(s->counters);
    free(s->scratch);
    free(s->assertions);
}

void swc_destroy(sw_switch *sw)
{
    sw_state *s = state(sw);
    sw_shards_free(s->shards);
    for (uint32_t i = 1; s->parts != NULL && i < s->base.threads; i++)
        if (s->parts[i] != NULL) {
            destroy_own(s->parts[i]);
            free(s->parts[i]);
        }
    free(s->parts);
    destroy_own(s);
    for (uint32_t i = 0; s->profiles != NULL && i < sw_generated.profiles; i++)
        sw_profile_free(&s->profiles[i]);
    for (uint32_t i = 0; s->registers != NULL && i < sw_generated.registers; i++) free(s->registers[i]);
    for (uint32_t i = 0; s->meters != NULL && i < sw_generated.meters; i++) free(s->meters[i]);
    for (uint32_t i = 0; s->groups != NULL && i < SW_GROUPS; i++) free(s->groups[i]);
    for (uint32_t i = 0; s->sessions != NULL && i < SW_SESSIONS; i++) free(s->sessions[i]);
    for (uint32_t i = 0; s->value_sets != NULL && i < sw_generated.value_sets; i++) free(s->value_sets[i]);
    free(s->value_sets);
    free(s->profiles);
    free(s->registers);
    free(s->meters);
    free(s->digests);
    free(s->groups);
    free(s->sessions);
    free(s->trace);
    free(s->calculations);
    sw_traffic_free(s);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

static int allocate_own(sw_state *s, int apart)
{
    const sw_program *program = &sw_generated;
    s->tables = calloc(program->tables + 1, sizeof(sw_table));
    s->counters = calloc(program->counters + 1, sizeof(sw_cell *));
    s->scratch = cells(1, program->scratch_bytes);
    s->assertions = calloc(program->assertions + 1, sizeof(uint64_t));
    if (!s->tables || !s->counters || !s->scratch || !s->assertions) return -1;
    for (uint32_t i = 0; i < program->tables; i++)
        if (sw_table_init(&s->tables[i], &program->table[i], apart) != 0) return -1;
    for (uint32_t i = 0; i < program->counters; i++)
        if ((s->counters[i] = cells(program->counter[i].size + 1, sizeof(sw_cell))) == NULL) return -1;
    return 0;
}

static int allocate(sw_state *s, int apart)
{
    const sw_program *program = &sw_generated;
    s->profiles = calloc(program->profiles + 1, sizeof(sw_profile));
    s->registers = calloc(program->registers + 1, sizeof(void *));
    s->meters = calloc(program->meters + 1, sizeof(sw_meter *));
    s->groups = calloc(SW_GROUPS, sizeof(sw_replicas *));
    s->sessions = calloc(SW_SESSIONS, sizeof(sw_replicas *));
    s->value_sets = calloc(program->value_sets + 1, sizeof(sw_value_set *));
    s->calculations = calloc(program->calculations + 1, sizeof(sw_calculation));
    if (!s->profiles || !s->registers || !s->meters || !s->groups || !s->sessions || !s->value_sets ||
        !s->calculations)
        return -1;
    for (uint32_t i = 0; i < program->calculations; i++)
        sw_calculation_set(&s->calculations[i], program->calculation[i].bits, &program->calculation[i].crc);
    for (uint32_t i = 0; i < program->profiles; i++) s->profiles[i].desc = &program->profile[i];
    for (uint32_t i = 0; i < program->registers; i++)
        if (program->reg[i].base == i &&
            (s->registers[i] = cells(program->reg[i].size, program->reg[i].stride)) == NULL)
            return -1;
    for (uint32_t i = 0; i < program->meters; i++)
        if ((s->meters[i] = cells(program->meter[i].size + 1, sizeof(sw_meter))) == NULL) return -1;
    if (program->digest_words != 0) {
        s->digests =
            calloc(1, sizeof(sw_digests) + (size_t)SW_DIGESTS * program->digest_words * sizeof(uint64_t));
        if (s->digests == NULL) return -1;
    }
    return allocate_own(s, apart);
}

// The parts of the other threads.
static int allocate_parts(sw_state *s, uint32_t threads)
{
    s->parts = calloc(threads, sizeof *s->parts);
    if (s->parts == NULL) return -1;
    s->parts[0] = s;
    s->base.threads = threads;
    for (uint32_t i = 1; i < threads; i++) {
        sw_state *part = s->parts[i] = cells(1, sizeof *part);
        if (part == NULL) return -1;
        *part = (sw_state){.base = {&unlimited, 1},
                           .deadline = SW_NEVER,
                           .profiles = s->profiles,
                           .registers = s->registers,
                           .meters = s->meters,
                           .digests = s->digests,
                           .groups = s->groups,
                           .sessions = s->sessions,
                           .value_sets = s->value_sets,
                           .calculations = s->calculations};
        if (allocate_own(part, 1) != 0) return -1;
    }
    if (threads == 1) return 0;
    s->shards = sw_shards_new(s->parts, threads);
    return s->shards == NULL ? -1 : 0;
}

// Recursive: who holds the lock over several control calls (swc_lock) takes it again in each.
static void init_lock(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t recursive;
    pthread_mutexattr_init(&recursive);
    pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(mutex, &recursive);
    pthread_mutexattr_destroy(&recursive);
}

// With `threads` above 1 (at most SW_MOST_THREADS), frames are shared once swc_share says by what.
sw_switch *swc_create(uint64_t seed, uint32_t threads)
{
    sw_state *s = cells(1, sizeof *s);
    if (s == NULL) return NULL;
    s->random = seed;
    s->deadline = SW_NEVER;
    unlimited.process = shared.process = sw_generated.process;
    s->base.ops = &unlimited;
    init_lock(&s->mutex);
    if (allocate(s, threads > 1) != 0 || allocate_parts(s, threads) != 0) {
        swc_destroy(&s->base);
        return NULL;
    }
    return &s->base;
}

// Frames are shared among the threads by `key` from now on; NULL: one thread runs them all.
void swc_share(sw_switch *sw, const sw_key *key)
{
    sw_state *s = state(sw);
    lock(sw);
    if (key != NULL) sw_shards_set_key(s->shards, key);
    s->shared = key != NULL;
    choose_operations(s);
    unlock(sw);
}

void swc_lock(sw_switch *sw) { lock(sw); }
void swc_unlock(sw_switch *sw) { unlock(sw); }

void swc_process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_ns,
                 sw_emit emit, void *ctx)
{
    lock(sw);
    sw_process(sw, port, frame, len, now_ns, emit, ctx);
    unlock(sw);
}

// What leaves does so in the order of the frames that it comes of. Returns 0 or -1: no memory.
int swc_process_many(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns, sw_emit emit,
                     void *ctx)
{
    sw_keeper *keeper = aligned_alloc(64, sizeof *keeper);
    if (keeper == NULL) return -1;
    memset(keeper, 0, sizeof *keeper);
    keeper->parts = sw->threads;
    lock(sw);
    sw_process_many(sw, frames, count, now_ns, sw_keep, keeper);
    sw_kept_at at = {0};
    const sw_kept_head *head;
    while ((head = sw_kept_next(keeper, &at)) != NULL)
        emit(ctx, head->port, sw_kept_frame(keeper, head, &at), head->len);
    unlock(sw);
    sw_keeper_free(keeper);
    free(keeper);
    return 0;
}

void swc_step(sw_switch *sw, uint64_t now_ns, sw_emit emit, void *ctx)
{
    lock(sw);
    step(sw, now_ns, emit, ctx);
    unlock(sw);
}

uint64_t swc_deadline(const sw_switch *sw) { return deadline(sw); }

void swc_stats(sw_switch *sw, sw_stats *out)
{
    lock(sw);
    stats(sw, out);
    unlock(sw);
}

// The packets that came to each part, base.threads numbers: those that one thread runs alone are the first one's.
void swc_shares(sw_switch *sw, uint64_t *packets)
{
    lock(sw);
    for (uint32_t i = 0; i < sw->threads; i++) packets[i] = state(sw)->parts[i]->stats.packets_in;
    unlock(sw);
}

// -- tracing ----------------------------------------------------------------------------------------

// Traces the next `packets` frames that come in on `ports` (one bit each) by `program`, this program's code with
// tracepoints. `room` is how many words of records are kept until they are read. Returns 0 or -1: no memory.
int swc_start_trace(sw_switch *sw, const sw_program *program, const uint64_t *ports, uint64_t packets,
                    uint32_t room)
{
    sw_state *s = state(sw);
    sw_trace *made = calloc(1, sizeof *made + room * sizeof(uint64_t));
    if (made == NULL) return -1;
    made->program = program;
    memcpy(made->ports, ports, sizeof made->ports);
    made->left = packets;
    made->room = room;
    lock(sw);
    sw_trace *old = s->trace;
    if (old != NULL) made->number = old->number;
    s->trace = made;
    choose_operations(s);
    unlock(sw);
    free(old);
    return 0;
}

void swc_stop_trace(sw_switch *sw)
{
    sw_state *s = state(sw);
    lock(sw);
    sw_trace *old = s->trace;
    s->trace = NULL;
    choose_operations(s);
    unlock(sw);
    free(old);
}

// Moves the records to `out`, which has room for as many words as the trace, and in `lost` returns how many
// blocks did not fit since the last time. Returns the words.
uint32_t swc_read_trace(sw_switch *sw, uint64_t *out, uint64_t *lost)
{
    lock(sw);
    sw_trace *t = state(sw)->trace;
    const uint32_t used = t == NULL ? 0 : t->used;
    *lost = t == NULL ? 0 : t->lost;
    if (used != 0) memcpy(out, t->words, used * sizeof *out);
    if (t != NULL) t->used = t->block = 0, t->lost = 0;
    unlock(sw);
    return used;
}

// -- tables ---------------------------------------------------------------------------------------

// `key`: the words of the key; of a ternary one, then those of the mask; unless it is exact, then the priority.
int64_t swc_insert(sw_switch *sw, uint32_t table, const uint64_t *key, uint32_t action, const uint64_t *args)
{
    sw_table *t = &state(sw)->tables[table];
    const uint64_t *check = key + t->desc->key_words;
    const uint64_t *behind = t->desc->kind == SW_TERNARY ? check + t->desc->key_words : check;
    int32_t priority = t->desc->kind == SW_EXACT ? 0 : (int32_t)*behind;
    sw_state *s = state(sw);
    lock(sw);
    // The same handle in all parts, for they go through the same changes.
    const int64_t handle = sw_table_insert(t, key, check, priority, action, args);
    int64_t last = handle;
    for (uint32_t i = 1; last >= 0 && i < s->base.threads; i++) {
        last = sw_table_insert(&s->parts[i]->tables[table], key, check, priority, action, args);
        for (uint32_t k = 0; last < 0 && k < i; k++)
            sw_table_remove(&s->parts[k]->tables[table], (uint32_t)handle);
    }
    unlock(sw);
    return last;
}

void swc_modify(sw_switch *sw, uint32_t table, uint32_t handle, uint32_t action, const uint64_t *args)
{
    lock(sw);
    EACH_PART(state(sw), part)
    {
        sw_table *t = &part->tables[table];
        sw_entry_set(t, t->handles[handle], action, args);
    }
    unlock(sw);
}

void swc_remove(sw_switch *sw, uint32_t table, uint32_t handle)
{
    lock(sw);
    EACH_PART(state(sw), part) sw_table_remove(&part->tables[table], handle);
    unlock(sw);
}

// The same for `count` entries in their order; the data path may come in between. The keys lie one behind the other,
// as the arguments do. Returns how many were added: fewer when memory ran out.
uint32_t swc_insert_all(sw_switch *sw, uint32_t table, uint32_t count, const uint64_t *keys,
                        const uint32_t *actions, const uint64_t *args, uint32_t *handles)
{
    const sw_table_desc *desc = state(sw)->tables[table].desc;
    const size_t words =
        desc->key_words * (desc->kind == SW_TERNARY ? 2u : 1u) + (desc->kind == SW_EXACT ? 0u : 1u);
    for (uint32_t i = 0; i < count; i++) {
        const int64_t handle =
            swc_insert(sw, table, keys + i * words, actions[i], args + i * (size_t)desc->arg_words);
        if (handle < 0) return i;
        handles[i] = (uint32_t)handle;
    }
    return count;
}

void swc_modify_all(sw_switch *sw, uint32_t table, uint32_t count, const uint32_t *handles,
                    const uint32_t *actions, const uint64_t *args)
{
    const size_t words = state(sw)->tables[table].desc->arg_words;
    for (uint32_t i = 0; i < count; i++) swc_modify(sw, table, handles[i], actions[i], args + i * words);
}

void swc_remove_all(sw_switch *sw, uint32_t table, uint32_t count, const uint32_t *handles)
{
    for (uint32_t i = 0; i < count; i++) swc_remove(sw, table, handles[i]);
}

void swc_default(sw_switch *sw, uint32_t table, uint32_t action, const uint64_t *args)
{
    lock(sw);
    EACH_PART(state(sw), part)
    {
        sw_table *t = &part->tables[table];
        sw_entry_set(t, t->fallback, action, args);
    }
    unlock(sw);
}

void swc_entry_count(sw_switch *sw, uint32_t table, uint32_t handle, sw_cell *out)
{
    lock(sw);
    *out = (sw_cell){0, 0};
    EACH_PART(state(sw), part)
    {
        const sw_entry *entry = part->tables[table].handles[handle];
        out->packets += entry->packets;
        out->bytes += entry->bytes;
    }
    unlock(sw);
}

void swc_set_entry_count(sw_switch *sw, uint32_t table, uint32_t handle, const sw_cell *count)
{
    lock(sw);
    EACH_PART(state(sw), part)
    {
        sw_entry *entry = part->tables[table].handles[handle];
        entry->packets = part == state(sw) ? count->packets : 0;
        entry->bytes = part == state(sw) ? count->bytes : 0;
    }
    unlock(sw);
}

// -- action profiles --------------------------------------------------------------------------------

int swc_set_member(sw_switch *sw, uint32_t profile, uint32_t handle, uint32_t action, const uint64_t *args)
{
    lock(sw);
    int result = sw_profile_set_member(&state(sw)->profiles[profile], handle, action, args);
    unlock(sw);
    return result;
}

void swc_remove_member(sw_switch *sw, uint32_t profile, uint32_t handle)
{
    lock(sw);
    sw_profile_remove_member(&state(sw)->profiles[profile], handle);
    unlock(sw);
}

int swc_set_member_group(sw_switch *sw, uint32_t profile, uint32_t handle, uint32_t count,
                         const uint32_t *members)
{
    lock(sw);
    int result = sw_profile_set_group(&state(sw)->profiles[profile], handle, count, members);
    unlock(sw);
    return result;
}

void swc_remove_member_group(sw_switch *sw, uint32_t profile, uint32_t handle)
{
    lock(sw);
    sw_profile_remove_group(&state(sw)->profiles[profile], handle);
    unlock(sw);
}

// -- replication ----------------------------------------------------------------------------------

static int set_replicas(sw_switch *sw, sw_replicas **place, uint32_t count, const sw_replica *replicas,
                        uint32_t packet_length)
{
    sw_replicas *made = malloc(sizeof *made + count * sizeof(sw_replica));
    if (made == NULL) return -1;
    made->count = count;
    made->packet_length = packet_length;
    if (count != 0) memcpy(made->replicas, replicas, count * sizeof(sw_replica));
    lock(sw);
    sw_replicas *old = *place;
    *place = made;
    unlock(sw);
    free(old);
    return 0;
}

static void clear_replicas(sw_switch *sw, sw_replicas **place)
{
    lock(sw);
    sw_replicas *old = *place;
    *place = NULL;
    unlock(sw);
    free(old);
}

int swc_set_group(sw_switch *sw, uint32_t group, uint32_t count, const sw_replica *replicas)
{
    return set_replicas(sw, &state(sw)->groups[group], count, replicas, 0);
}

void swc_clear_group(sw_switch *sw, uint32_t group) { clear_replicas(sw, &state(sw)->groups[group]); }

int swc_set_session(sw_switch *sw, uint32_t session, uint32_t count, const sw_replica *replicas,
                    uint32_t packet_length)
{
    return set_replicas(sw, &state(sw)->sessions[session], count, replicas, packet_length);
}

void swc_clear_session(sw_switch *sw, uint32_t session) { clear_replicas(sw, &state(sw)->sessions[session]); }

// -- parser value sets ------------------------------------------------------------------------------

// `members` holds a value and a mask of `words` words for each of `count` members. Returns 0, or -1 when memory ran
// out.
int swc_set_value_set(sw_switch *sw, uint32_t number, uint32_t count, uint32_t words, const uint64_t *members)
{
    const size_t bytes = 2 * sizeof(uint64_t) * (size_t)count * words;
    sw_value_set *made = malloc(sizeof *made + bytes);
    if (made == NULL) return -1;
    made->count = count;
    if (bytes != 0) memcpy(made->members, members, bytes);
    lock(sw);
    sw_value_set *old = state(sw)->value_sets[number];
    state(sw)->value_sets[number] = made;
    unlock(sw);
    free(old);
    return 0;
}

// -- counters and registers -------------------------------------------------------------------------

void swc_counter(sw_switch *sw, uint32_t counter, uint64_t index, sw_cell *out)
{
    lock(sw);
    *out = (sw_cell){0, 0};
    EACH_PART(state(sw), part)
    {
        out->packets += part->counters[counter][index].packets;
        out->bytes += part->counters[counter][index].bytes;
    }
    unlock(sw);
}

void swc_set_counter(sw_switch *sw, uint32_t counter, uint64_t index, const sw_cell *count)
{
    lock(sw);
    EACH_PART(state(sw), part)
    part->counters[counter][index] = part == state(sw) ? *count : (sw_cell){0, 0};
    unlock(sw);
}

static char *cell(const sw_state *s, uint32_t number, uint64_t index)
{
    const sw_register_desc *desc = &sw_generated.reg[number];
    return (char *)s->registers[desc->base] + index * desc->stride + desc->offset;
}

// Register cells travel as `cell_bytes` bytes in the machine's own order.
void swc_register(sw_switch *sw, uint32_t number, uint64_t index, void *out)
{
    size_t bytes = sw_generated.reg[number].cell_bytes;
    lock(sw);
    memcpy(out, cell(state(sw), number, index), bytes);
    unlock(sw);
}

void swc_set_register(sw_switch *sw, uint32_t number, uint64_t index, const void *value)
{
    size_t bytes = sw_generated.reg[number].cell_bytes;
    lock(sw);
    memcpy(cell(state(sw), number, index), value, bytes);
    unlock(sw);
}

// -- calculations and assertions ----------------------------------------------------------------------

void swc_set_crc(sw_switch *sw, uint32_t number, const sw_crc_parameters *crc)
{
    sw_calculation *c = &state(sw)->calculations[number];
    lock(sw);
    sw_calculation_set(c, c->bits, crc);
    unlock(sw);
}

uint64_t swc_assertion(sw_switch *sw, uint32_t number)
{
    lock(sw);
    uint64_t failed = 0;
    EACH_PART(state(sw), part) failed += part->assertions[number];
    unlock(sw);
    return failed;
}
