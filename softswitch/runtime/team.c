// SPDX-License-Identifier: Apache-2.0
// A work is cut into as many parts as there are threads. Each thread takes its own part first, and then those that
// nobody has begun: who is not scheduled in time is not waited for. A part of a work is to run the frames of a shard, in
// their order, and meanwhile to find out whose each frame of some pieces is. Threads need no wait for each other before
// all are done: who comes to a piece that another one should have looked at, and has not, does so itself.
//
// A shard is a range of the key's values, as near values mostly mean near cells: if threads took turns cell by cell,
// caches would carry to each what their prefetching guesses, out of the other's hands (measured: two threads then did
// no more than one). Where the ranges begin is cut anew when one thread takes longer than another, which may have a
// slower processor.
#define _GNU_SOURCE
#include "team.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST = 4096,   // frames of one work
    PIECE = 32,    // frames that one thread looks at
    LEAD = 128,    // frames that each thread looks at before it runs any
    PATIENCE = 32, // pauses, about a microsecond: how long a piece that another thread looks at is waited for
    AHEAD = 8,     // frames whose headers are fetched before they are looked at
    HEADERS = 128, // bytes of these
    SPINS = 2000,  // some microseconds, which sleep and waking cost, too
    JUDGED = 2048, // frames, at least, by which shards are equal or not
    SAMPLE = 512,  // frames by which they are cut
    SOON = 4,      // times judged
    MOST_TIMES = 256,
};
#define EQUAL 1.02

// -- waiting for a number to come about --------------------------------------------------------------------

typedef struct {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
} gate;

static void raise_by_one(gate *g)
{
    atomic_fetch_add(&g->value, 1);
    if (atomic_load(&g->sleepers) != 0)
        syscall(SYS_futex, &g->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Until the value is `least` or, as it goes round, later. Returns it.
static uint32_t wait_for(gate *g, uint32_t least)
{
    uint32_t seen;
    for (int i = 0; i < SPINS; i++) {
        if ((int32_t)((seen = atomic_load(&g->value)) - least) >= 0) return seen;
        relax();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while ((int32_t)((seen = atomic_load(&g->value)) - least) < 0)
        syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
    return seen;
}

// -- threads ------------------------------------------------------------------------------------------------

typedef struct {
    _Alignas(64) sw_team *team;
    uint32_t self;
} member;

typedef struct {
    _Alignas(128) _Atomic uint32_t taken; // number of the last work in which somebody took this part
    sw_team *team;
    uint32_t self;
    uint32_t number;      // of the frame that is being run
    uint32_t looks;       // at frames of its pieces in this work
    uint32_t ran;         // frames since shards were last judged
    uint64_t spent_ns;    // on them
    double cost_ns;       // of a frame, of late; 0: not known
    uint8_t found[PIECE]; // whose the frames of the piece are that it looks at
} part;

struct sw_team {
    uint32_t threads; // with the caller's
    uint32_t started; // besides it
    sw_state *const *switches;
    sw_key key;
    _Atomic int stop;
    // The work. Only who has taken a part looks at it: it does not change before all parts are done.
    sw_task task;
    void *arg;
    gate begun; // number of the work
    gate done;  // parts of all works
    // of frames
    const sw_frame *frames;
    uint32_t first, count; // the first one's number
    uint64_t turn;         // how many works there were
    uint64_t now_ns;
    sw_emit_many emit;
    void *ctx;
    _Alignas(64) _Atomic uint64_t
        looked[MOST / PIECE]; // the last turn in which it was known whose a piece's frames are
    _Alignas(64) _Atomic uint8_t owners[MOST];
    // of shards
    _Alignas(
        64) uint64_t begins[SW_MOST_THREADS]; // the least value of each; the first one's is not looked at
    uint32_t patience, waited;                // times judged: how long unequal shards are put up with
    double left;                              // how unequal the last cut left them at best; 0: not known yet
    // where threads may run
    cpu_set_t allowed;
    int caller; // the processor of the last call, or -1
    part parts[SW_MOST_THREADS];
    member members[SW_MOST_THREADS];
    pthread_t ids[SW_MOST_THREADS];
};

static void take_parts(sw_team *t, uint32_t self, uint32_t work)
{
    for (uint32_t i = 0; i < t->threads; i++) {
        const uint32_t number = (self + i) % t->threads;
        uint32_t before = work - 1;
        if (!atomic_compare_exchange_strong(&t->parts[number].taken, &before, work)) continue;
        t->task(t->arg, number, t->threads);
        raise_by_one(&t->done);
    }
}

static void *main_of(void *arg)
{
    const member *m = arg;
    uint32_t work = 0;
    for (;;) {
        work = wait_for(&m->team->begun, work + 1);
        if (atomic_load(&m->team->stop)) return NULL;
        take_parts(m->team, m->self, work);
    }
}

static void together(sw_team *t, sw_task task, void *arg)
{
    t->task = task;
    t->arg = arg;
    raise_by_one(&t->begun);
    const uint32_t work = atomic_load(&t->begun.value);
    take_parts(t, 0, work);
    wait_for(&t->done, work * t->threads);
}

// Keeps the other threads off the processor that the caller runs on. Linux may leave two threads that wake each other on
// one processor with another one idle, as they never both wait for it: then two are slower than one.
static void make_way(sw_team *t)
{
    const int processor = sched_getcpu();
    if (processor == t->caller || processor < 0) return;
    t->caller = processor;
    cpu_set_t others = t->allowed;
    CPU_CLR(processor, &others);
    if (CPU_COUNT(&others) == 0) return;
    for (uint32_t i = 1; i < t->threads; i++) pthread_setaffinity_np(t->ids[i], sizeof others, &others);
}

void sw_team_together(sw_switch *sw, sw_task task, void *arg) { together(((sw_state *)sw)->team, task, arg); }

// -- whose each frame is ------------------------------------------------------------------------------------

static uint64_t key_of(const sw_team *t, uint32_t number, const sw_frame *f)
{
    if (f->len > SW_MAX_FRAME) return 0;
    return sw_generated.field(t->switches[number], f->port, f->frame, f->len, t->key.field) & t->key.mask;
}

static uint8_t owner_of(const sw_team *t, uint32_t number, uint32_t i)
{
    if (t->key.field == SW_NO_FIELD) return (uint8_t)(i * t->threads / t->count);
    const uint64_t value = key_of(t, number, &t->frames[i]);
    uint32_t owner = 0;
    for (uint32_t other = 1; other < t->threads; other++) owner += value >= t->begins[other];
    return (uint8_t)owner;
}

static void fetch(const sw_frame *f, uint32_t bytes)
{
    for (uint32_t at = 0; at < f->len && at < bytes; at += 64) __builtin_prefetch(f->frame + at);
}

static bool is_known(const sw_team *t, uint32_t piece)
{
    return atomic_load_explicit(&t->looked[piece], memory_order_acquire) == t->turn;
}

// Two threads may do so, with the same owners.
static void make_known(sw_team *t, uint32_t piece, const uint8_t *found)
{
    for (uint32_t i = 0; i < PIECE; i++)
        atomic_store_explicit(&t->owners[piece * PIECE + i], found[i], memory_order_relaxed);
    atomic_store_explicit(&t->looked[piece], t->turn, memory_order_release);
}

// The frame that a thread looks at after `looks` others: pieces take turns.
static uint32_t place(const sw_team *t, uint32_t number, uint32_t looks)
{
    return (looks / PIECE * t->threads + number) * PIECE + looks % PIECE;
}

// Looks at the next frame of the thread's pieces. Returns whether there was one.
static bool look_on(sw_team *t, uint32_t number)
{
    part *p = &t->parts[number];
    const uint32_t i = place(t, number, p->looks), later = place(t, number, p->looks + AHEAD);
    if (i >= t->count) return false;
    if (i % PIECE == 0 && is_known(t, i / PIECE)) { // another thread could not wait
        p->looks += PIECE;
        return true;
    }
    if (later < t->count) fetch(&t->frames[later], HEADERS);
    p->found[i % PIECE] = owner_of(t, number, i);
    p->looks++;
    if (i % PIECE == PIECE - 1 || i == t->count - 1) make_known(t, i / PIECE, p->found);
    return true;
}

// Makes sure that it is known whose the frames of a piece are.
static void need(sw_team *t, uint32_t number, uint32_t piece)
{
    if (piece % t->threads == number)
        while (!is_known(t, piece) && look_on(t, number)) continue;
    else
        for (int i = 0; i < PATIENCE && !is_known(t, piece); i++) relax();
    if (is_known(t, piece)) return;
    uint8_t found[PIECE] = {0};
    const uint32_t begin = piece * PIECE, end = begin + PIECE < t->count ? begin + PIECE : t->count;
    for (uint32_t i = begin; i < end; i++) {
        if (i + AHEAD < end) fetch(&t->frames[i + AHEAD], HEADERS);
        found[i - begin] = owner_of(t, number, i);
    }
    make_known(t, piece, found);
}

// -- running them -------------------------------------------------------------------------------------------

// The next frame of a shard, from `at` on, which it fetches; `count` without one.
static uint32_t next_of(sw_team *t, uint32_t number, uint32_t at)
{
    for (; at < t->count; at++) {
        if (at % PIECE == 0) need(t, number, at / PIECE);
        if (atomic_load_explicit(&t->owners[at], memory_order_relaxed) != number) continue;
        fetch(&t->frames[at], SW_MAX_FRAME);
        return at;
    }
    return t->count;
}

static void emit_one(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
{
    const part *p = ctx;
    p->team->emit(p->team->ctx, p->self, p->number, port, frame, len);
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
    sw_team *t = arg;
    part *p = &t->parts[number];
    const uint64_t began = clock_ns();
    for (p->looks = 0; p->looks < LEAD && look_on(t, number);) continue;
    uint32_t i = next_of(t, number, 0), second = next_of(t, number, i + 1);
    while (i < t->count) {
        const uint32_t third = next_of(t, number, second + 1);
        const sw_frame *f = &t->frames[i];
        p->number = t->first + i;
        sw_generated.process(&t->switches[number]->base, f->port, f->frame, f->len, t->now_ns, emit_one, p);
        p->ran++;
        look_on(t, number);
        i = second, second = third;
    }
    p->spent_ns += clock_ns() - began;
}

// -- where shards begin -------------------------------------------------------------------------------------

// Adds what a frame cost since shards were last judged to what they cost of late. A thread that was interrupted does
// not matter for long: nothing counts more than twofold.
static void learn_cost(part *p)
{
    if (p->ran == 0) return;
    const double cost = (double)p->spent_ns / p->ran;
    if (p->cost_ns <= 0) p->cost_ns = cost;
    p->cost_ns += ((cost < 2 * p->cost_ns ? cost : 2 * p->cost_ns) - p->cost_ns) / 8;
}

// What a frame costs the thread that it costs least; 0: not all are known.
static double least_cost(const sw_team *t)
{
    double least = t->parts[0].cost_ns;
    for (uint32_t i = 1; i < t->threads; i++)
        if (t->parts[i].cost_ns < least) least = t->parts[i].cost_ns;
    return least;
}

// What a frame costs a thread, but no more than twice the least.
static double cost_of(const sw_team *t, double least, uint32_t number)
{
    if (least <= 0) return 1;
    return t->parts[number].cost_ns < 2 * least ? t->parts[number].cost_ns : 2 * least;
}

// How many times as long frames took as they would have, had all threads been done at the same time.
static double unequal(const sw_team *t)
{
    const double least = least_cost(t);
    double most = 0, rate = 0, frames = 0;
    for (uint32_t i = 0; i < t->threads; i++) {
        const double cost = cost_of(t, least, i), time = t->parts[i].ran * cost;
        if (time > most) most = time;
        rate += 1 / cost;
        frames += t->parts[i].ran;
    }
    return most * rate / frames;
}

// Lets all be done with these frames, by a sample of them, at the same time.
static void cut(sw_team *t)
{
    uint64_t values[SAMPLE];
    const uint32_t count = t->count < SAMPLE ? t->count : SAMPLE, step = t->count / count;
    for (uint32_t i = 0; i < count; i++) {
        // Not every step-th one: a load has a rhythm.
        const uint32_t any = (i * 0x9e3779b9u >> 16) % step;
        const uint64_t value = key_of(t, 0, &t->frames[i * step + any]);
        uint32_t at = i;
        for (; at > 0 && values[at - 1] > value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
    const double least = least_cost(t);
    double rate = 0, before = 0;
    for (uint32_t i = 0; i < t->threads; i++) rate += 1 / cost_of(t, least, i);
    for (uint32_t i = 1; i < t->threads; i++) {
        before += 1 / cost_of(t, least, i - 1);
        const uint32_t at = (uint32_t)(count * before / rate);
        t->begins[i] = values[at < count ? at : count - 1];
    }
}

// Where a cut does not help, as all frames have one value, or none helps for long, it is tried less and less often;
// but soon when shards have become much more unequal than the last cut left them: the load has moved.
static void judge(sw_team *t)
{
    for (uint32_t i = 0; i < t->threads; i++) learn_cost(&t->parts[i]);
    const double now = unequal(t);
    if (t->left == 0 || now < t->left) t->left = now;
    if (now <= EQUAL) {
        t->waited = 0;
        if (t->patience > 1) t->patience--;
    } else if (++t->waited >= t->patience || (t->waited >= SOON && now > 1.5 * t->left)) {
        cut(t);
        t->waited = 0;
        t->left = 0;
        t->patience = t->patience < MOST_TIMES ? t->patience * 2 : MOST_TIMES;
    }
}

static void keep_equal(sw_team *t)
{
    uint32_t ran = 0;
    for (uint32_t i = 0; i < t->threads; i++) ran += t->parts[i].ran;
    if (ran < JUDGED) return;
    judge(t);
    for (uint32_t i = 0; i < t->threads; i++) t->parts[i].ran = 0, t->parts[i].spent_ns = 0;
}

void sw_team_process(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns,
                     sw_emit_many emit, void *ctx)
{
    sw_team *t = ((sw_state *)sw)->team;
    t->now_ns = now_ns;
    t->emit = emit;
    t->ctx = ctx;
    make_way(t);
    for (uint32_t at = 0; at < count; at += t->count) {
        t->frames = frames + at;
        t->first = at;
        t->count = count - at < MOST ? count - at : MOST;
        t->turn++;
        together(t, run_shard, t);
        if (t->key.field != SW_NO_FIELD) keep_equal(t);
    }
}

void sw_team_set_key(sw_team *team, const sw_key *key)
{
    team->key = *key;
    team->patience = 1;
}

void sw_team_free(sw_team *t)
{
    if (t == NULL) return;
    atomic_store(&t->stop, 1);
    raise_by_one(&t->begun);
    for (uint32_t i = 1; i <= t->started; i++) pthread_join(t->ids[i], NULL);
    free(t);
}

sw_team *sw_team_new(sw_state *const *switches, uint32_t threads)
{
    sw_team *t = aligned_alloc(_Alignof(sw_team), sizeof *t);
    if (t == NULL) return NULL;
    memset(t, 0, sizeof *t);
    t->threads = threads;
    t->switches = switches;
    t->key.field = SW_NO_FIELD;
    t->caller = -1;
    (void)sched_getaffinity(0, sizeof t->allowed, &t->allowed); // none, if it fails
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the process's other threads
    for (uint32_t i = 0; i < threads; i++) {
        t->members[i] = (member){t, i};
        t->parts[i].team = t;
        t->parts[i].self = i;
    }
    for (uint32_t i = 1; i < threads; i++) {
        if (pthread_create(&t->ids[i], NULL, main_of, &t->members[i]) != 0) break;
        t->started = i;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (t->started == threads - 1) return t;
    sw_team_free(t);
    return NULL;
}
