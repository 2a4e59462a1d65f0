// SPDX-License-Identifier: Apache-2.0
// A shard is a range of the key's values, as near values mostly mean near cells: if threads took turns cell by cell,
// caches would carry to each what their prefetching guesses, out of the other's hands (measured: two threads then did
// no more than one). Where the ranges begin is cut again when one thread takes longer than another, which may have a
// slower processor.
//
// Each thread runs the frames of its shard in their order, and meanwhile finds out whose the frames of some pieces are.
// None waits long for another before all are done: who comes to a piece that another one should have looked at, and
// has not, does so itself.
#include "shards.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pool.h"

enum {
    MOST = 4096,   // frames of one work
    PIECE = 32,    // frames that one thread looks at
    LEAD = 128,    // frames that each thread looks at before it runs any
    PAUSES = 32,   // pauses, about a microsecond: how long a piece that another thread looks at is waited for
    AHEAD = 8,     // frames whose headers are fetched before they are looked at
    HEADERS = 128, // bytes of these
    JUDGED = 2048, // frames, at least, by which shards are equal or not
    SAMPLE = 512,  // frames by which they are cut
    SOON = 4,      // times judged
    MOST_TIMES = 256,
};
#define EQUAL 1.02

typedef struct {
    _Alignas(128) sw_shards *all;
    uint32_t self;
    uint32_t number;      // of the frame that is being run
    uint32_t looks;       // at frames of its pieces, in this work
    uint32_t ran;         // frames since shards were last judged
    uint64_t spent_ns;    // on them
    double cost_ns;       // of a frame, of late; 0: not known
    uint8_t found[PIECE]; // whose the frames of the piece are that it looks at
} shard;

struct sw_shards {
    uint32_t threads;
    sw_pool *pool;
    sw_state *const *switches;
    sw_key key;
    // The work: it does not change before all threads are done.
    const sw_frame *frames;
    uint32_t first, count; // the first one's number
    uint64_t turn;         // how many works there were
    uint64_t now_ns;
    sw_emit_many emit;
    void *ctx;
    // Where shards begin, the least value of each; the first one's is not looked at.
    uint64_t begins[SW_MOST_THREADS];
    uint32_t tolerance, waited; // times judged: how long unequal shards are put up with
    double left;                // how unequal the last cut left them at best; 0: not known yet
    // By piece, the last turn in which it was known whose its frames are; and whose they are.
    _Alignas(64) _Atomic uint64_t looked[MOST / PIECE];
    _Alignas(64) _Atomic uint8_t owners[MOST];
    shard shards[SW_MOST_THREADS];
};

// -- whose each frame is ------------------------------------------------------------------------------------

static uint64_t key_of(const sw_shards *s, uint32_t number, const sw_frame *f)
{
    if (f->len > SW_MAX_FRAME) return 0;
    return sw_generated.field(s->switches[number], f->port, f->frame, f->len, s->key.field) & s->key.mask;
}

static uint8_t owner_of(const sw_shards *s, uint32_t number, uint32_t i)
{
    if (s->key.field == SW_NO_FIELD) return (uint8_t)(i * s->threads / s->count);
    const uint64_t value = key_of(s, number, &s->frames[i]);
    uint32_t owner = 0;
    for (uint32_t other = 1; other < s->threads; other++) owner += value >= s->begins[other];
    return (uint8_t)owner;
}

static void fetch(const sw_frame *f, uint32_t bytes)
{
    for (uint32_t at = 0; at < f->len && at < bytes; at += 64) __builtin_prefetch(f->frame + at);
}

static bool is_known(const sw_shards *s, uint32_t piece)
{
    return atomic_load_explicit(&s->looked[piece], memory_order_acquire) == s->turn;
}

// Two threads may do so, with the same owners.
static void make_known(sw_shards *s, uint32_t piece, const uint8_t *found)
{
    for (uint32_t i = 0; i < PIECE; i++)
        atomic_store_explicit(&s->owners[piece * PIECE + i], found[i], memory_order_relaxed);
    atomic_store_explicit(&s->looked[piece], s->turn, memory_order_release);
}

// The frame that a thread looks at after `looks` others: pieces alternate.
static uint32_t place(const sw_shards *s, uint32_t number, uint32_t looks)
{
    return (looks / PIECE * s->threads + number) * PIECE + looks % PIECE;
}

// Looks at the next frame of the thread's pieces. Returns whether there was one.
static bool look_on(sw_shards *s, uint32_t number)
{
    shard *p = &s->shards[number];
    const uint32_t i = place(s, number, p->looks), later = place(s, number, p->looks + AHEAD);
    if (i >= s->count) return false;
    if (i % PIECE == 0 && is_known(s, i / PIECE)) { // another thread could not wait
        p->looks += PIECE;
        return true;
    }
    if (later < s->count) fetch(&s->frames[later], HEADERS);
    p->found[i % PIECE] = owner_of(s, number, i);
    p->looks++;
    if (i % PIECE == PIECE - 1 || i == s->count - 1) make_known(s, i / PIECE, p->found);
    return true;
}

// Makes sure that it is known whose the frames of a piece are.
static void need(sw_shards *s, uint32_t number, uint32_t piece)
{
    if (piece % s->threads == number)
        while (!is_known(s, piece) && look_on(s, number)) continue;
    else
        for (int i = 0; i < PAUSES && !is_known(s, piece); i++) sw_relax();
    if (is_known(s, piece)) return;
    uint8_t found[PIECE] = {0};
    const uint32_t begin = piece * PIECE, end = begin + PIECE < s->count ? begin + PIECE : s->count;
    for (uint32_t i = begin; i < end; i++) {
        if (i + AHEAD < end) fetch(&s->frames[i + AHEAD], HEADERS);
        found[i - begin] = owner_of(s, number, i);
    }
    make_known(s, piece, found);
}

// -- running them -------------------------------------------------------------------------------------------

// The next frame of a shard, from `at` on, which it fetches; `count` without one.
static uint32_t next_of(sw_shards *s, uint32_t number, uint32_t at)
{
    for (; at < s->count; at++) {
        if (at % PIECE == 0) need(s, number, at / PIECE);
        if (atomic_load_explicit(&s->owners[at], memory_order_relaxed) != number) continue;
        fetch(&s->frames[at], SW_MAX_FRAME);
        return at;
    }
    return s->count;
}

static void emit_one(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
{
    const shard *p = ctx;
    p->all->emit(p->all->ctx, p->self, p->number, port, frame, len);
}

static uint64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void run_shard(void *arg, uint32_t number, uint32_t parts)
{
    (void)parts;
    sw_shards *s = arg;
    shard *p = &s->shards[number];
    const uint64_t began = clock_ns();
    for (p->looks = 0; p->looks < LEAD && look_on(s, number);) continue;
    uint32_t i = next_of(s, number, 0), second = next_of(s, number, i + 1);
    while (i < s->count) {
        const uint32_t third = next_of(s, number, second + 1);
        const sw_frame *f = &s->frames[i];
        p->number = s->first + i;
        sw_generated.process(&s->switches[number]->base, f->port, f->frame, f->len, s->now_ns, emit_one, p);
        p->ran++;
        look_on(s, number);
        i = second, second = third;
    }
    p->spent_ns += clock_ns() - began;
}

// -- where shards begin -------------------------------------------------------------------------------------

// Adds what a frame cost since shards were last judged to what they cost of late. A thread that was interrupted does
// not matter for long: nothing counts more than twofold.
static void learn_cost(shard *p)
{
    if (p->ran == 0) return;
    const double cost = (double)p->spent_ns / p->ran;
    if (p->cost_ns <= 0) p->cost_ns = cost;
    p->cost_ns += ((cost < 2 * p->cost_ns ? cost : 2 * p->cost_ns) - p->cost_ns) / 8;
}

// What a frame costs the thread that it costs least; 0: not all are known.
static double least_cost(const sw_shards *s)
{
    double least = s->shards[0].cost_ns;
    for (uint32_t i = 1; i < s->threads; i++)
        if (s->shards[i].cost_ns < least) least = s->shards[i].cost_ns;
    return least;
}

// What a frame costs a thread, but no more than twice the least.
static double cost_of(const sw_shards *s, double least, uint32_t number)
{
    if (least <= 0) return 1;
    return s->shards[number].cost_ns < 2 * least ? s->shards[number].cost_ns : 2 * least;
}

// How many times as long frames took as they would have, had all threads been done at the same time.
static double unequal(const sw_shards *s)
{
    const double least = least_cost(s);
    double most = 0, rate = 0, frames = 0;
    for (uint32_t i = 0; i < s->threads; i++) {
        const double cost = cost_of(s, least, i), time = s->shards[i].ran * cost;
        if (time > most) most = time;
        rate += 1 / cost;
        frames += s->shards[i].ran;
    }
    return most * rate / frames;
}

// Lets all be done with these frames, by a sample of them, at the same time.
static void cut(sw_shards *s)
{
    uint64_t values[SAMPLE];
    const uint32_t count = s->count < SAMPLE ? s->count : SAMPLE, step = s->count / count;
    for (uint32_t i = 0; i < count; i++) {
        // Not every step-th one: a load has a rhythm.
        const uint32_t any = (i * 0x9e3779b9u >> 16) % step;
        const uint64_t value = key_of(s, 0, &s->frames[i * step + any]);
        uint32_t at = i;
        for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
    const double least = least_cost(s);
    double rate = 0, before = 0;
    for (uint32_t i = 0; i < s->threads; i++) rate += 1 / cost_of(s, least, i);
    for (uint32_t i = 1; i < s->threads; i++) {
        before += 1 / cost_of(s, least, i - 1);
        const uint32_t at = (uint32_t)(count * before / rate);
        s->begins[i] = values[at < count ? at : count - 1];
    }
}

// Where a cut does not help, as all frames have one value, or none helps for long, it is tried less and less often;
// but soon when shards have become much more unequal than the last cut left them: the load has moved.
static void judge(sw_shards *s)
{
    for (uint32_t i = 0; i < s->threads; i++) learn_cost(&s->shards[i]);
    const double now = unequal(s);
    if (s->left == 0 || now < s->left) s->left = now;
    if (now <= EQUAL) {
        s->waited = 0;
        if (s->tolerance > 1) s->tolerance--;
    } else if (++s->waited >= s->tolerance || (s->waited >= SOON && now > 1.5 * s->left)) {
        cut(s);
        s->waited = 0;
        s->left = 0;
        s->tolerance = s->tolerance < MOST_TIMES ? s->tolerance * 2 : MOST_TIMES;
    }
}

static void keep_equal(sw_shards *s)
{
    uint32_t ran = 0;
    for (uint32_t i = 0; i < s->threads; i++) ran += s->shards[i].ran;
    if (ran < JUDGED) return;
    judge(s);
    for (uint32_t i = 0; i < s->threads; i++) s->shards[i].ran = 0, s->shards[i].spent_ns = 0;
}

void sw_shards_process(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns,
                       sw_emit_many emit, void *ctx)
{
    sw_shards *s = ((sw_state *)sw)->shards;
    s->now_ns = now_ns;
    s->emit = emit;
    s->ctx = ctx;
    sw_pool_make_way(s->pool);
    for (uint32_t at = 0; at < count; at += s->count) {
        s->frames = frames + at;
        s->first = at;
        s->count = count - at < MOST ? count - at : MOST;
        s->turn++;
        sw_pool_together(s->pool, run_shard, s);
        if (s->key.field != SW_NO_FIELD) keep_equal(s);
    }
}

void sw_shards_together(sw_switch *sw, sw_task task, void *arg)
{
    sw_pool_together(((sw_state *)sw)->shards->pool, task, arg);
}

void sw_shards_set_key(sw_shards *s, const sw_key *key)
{
    s->key = *key;
    s->tolerance = 1;
}

void sw_shards_free(sw_shards *s)
{
    if (s == NULL) return;
    sw_pool_free(s->pool);
    free(s);
}

sw_shards *sw_shards_new(sw_state *const *switches, uint32_t threads)
{
    sw_shards *s = aligned_alloc(_Alignof(sw_shards), sizeof *s);
    if (s == NULL) return NULL;
    memset(s, 0, sizeof *s);
    s->threads = threads;
    s->switches = switches;
    s->key.field = SW_NO_FIELD;
    for (uint32_t i = 0; i < threads; i++) {
        s->shards[i].all = s;
        s->shards[i].self = i;
    }
    if ((s->pool = sw_pool_new(threads)) != NULL) return s;
    free(s);
    return NULL;
}
