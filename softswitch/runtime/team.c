// SPDX-License-Identifier: Apache-2.0
// A work is cut into as many parts as there are threads. Each thread takes its own part first, and then those that
// nobody has begun: who is not scheduled in time is not waited for. A part of a work is to run the frames of a shard
// of one batch, in their order, and meanwhile to find out for a slice of the next batch whose each frame is.
//
// A shard is a range of the key's values, as near values mostly mean near cells: if threads took turns cell by cell,
// caches would carry to each what their prefetching guesses, out of the other's hands (measured: two threads then did
// no more than one). Where the ranges begin is cut anew when one thread takes much longer than another, which may have
// a slower processor.
#define _GNU_SOURCE
#include "team.h"

#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    BATCH = 512,
    SPINS = 2000,  // some microseconds, which sleep and waking cost, too
    SAMPLE = 128,  // frames of a batch by which it is cut
    AHEAD = 8,     // frames whose headers are fetched before they are looked at
    HEADERS = 128, // bytes of these
    SOON = 4,      // batches
    MOST_PATIENCE = 256,
};

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
    _Alignas(64) _Atomic uint32_t taken; // number of the last work in which somebody took this part
    sw_team *team;
    uint32_t self;
    uint32_t number;   // of the frame that is being run
    uint32_t ran;      // frames of this batch
    uint64_t spent_ns; // on them
    double cost_ns;    // of a frame, of late; 0: not known
} part;

// Frames that the threads run between two waits for each other.
typedef struct {
    const sw_frame *frames;
    uint32_t first, count; // the first one's number
    _Alignas(64) uint8_t owners[BATCH];
} batch;

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
    // of batches
    batch *now, *next;
    uint64_t now_ns;
    sw_emit_many emit;
    void *ctx;
    uint64_t begins[SW_MOST_THREADS]; // the least value of each shard; the first one's is not looked at
    uint32_t patience, waited;        // batches: how long unequal shards are put up with
    double left;                      // how unequal the last cut left them at best; 0: not known yet
    batch batches[2];
    // where threads may run
    cpu_set_t allowed;
    int caller; // the processor of the last batch's caller, or -1
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

// -- batches ------------------------------------------------------------------------------------------------

static uint64_t key_of(const sw_team *t, sw_state *part, const sw_frame *f)
{
    if (f->len > SW_MAX_FRAME) return 0;
    return sw_generated.field(part, f->port, f->frame, f->len, t->key.field) & t->key.mask;
}

static uint8_t owner_of(const sw_team *t, uint64_t value)
{
    uint32_t owner = 0;
    for (uint32_t i = 1; i < t->threads; i++) owner += value >= t->begins[i];
    return (uint8_t)owner;
}

static void fetch(const sw_frame *f, uint32_t bytes)
{
    for (uint32_t at = 0; at < f->len && at < bytes; at += 64) __builtin_prefetch(f->frame + at);
}

// Finds out whose a frame of the next batch is, one of `number`'s slice, which ends before `end`.
static void look_at(const sw_team *t, uint32_t number, uint32_t i, uint32_t end)
{
    if (t->key.field == SW_NO_FIELD) {
        t->next->owners[i] = (uint8_t)number;
        return;
    }
    if (i + AHEAD < end) fetch(&t->next->frames[i + AHEAD], HEADERS);
    t->next->owners[i] = owner_of(t, key_of(t, t->switches[number], &t->next->frames[i]));
}

// The next frame of a shard, from `at` on, which it fetches; `count` without one.
static uint32_t next_of(const batch *b, uint32_t number, uint32_t at)
{
    while (at < b->count && b->owners[at] != number) at++;
    if (at < b->count) fetch(&b->frames[at], SW_MAX_FRAME);
    return at;
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
    sw_team *t = arg;
    part *p = &t->parts[number];
    const batch *b = t->now;
    uint32_t look = t->next->count * number / parts;
    const uint32_t end = t->next->count * (number + 1) / parts;
    const uint64_t began = clock_ns();
    uint32_t i = next_of(b, number, 0), second = next_of(b, number, i + 1);
    for (p->ran = 0; i < b->count; p->ran++) {
        const uint32_t third = next_of(b, number, second + 1);
        const sw_frame *f = &b->frames[i];
        p->number = b->first + i;
        sw_generated.process(&t->switches[number]->base, f->port, f->frame, f->len, t->now_ns, emit_one, p);
        if (look < end) look_at(t, number, look++, end);
        i = second, second = third;
    }
    p->spent_ns = clock_ns() - began;
    while (look < end) look_at(t, number, look++, end);
}

// -- where shards begin -------------------------------------------------------------------------------------

// Adds what a frame of the last batch cost to what they cost of late. A thread that was interrupted does not matter
// for long: nothing counts more than twofold.
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

// How many times as long the batch took as it would have, had all been done at the same time.
static double unequal(const sw_team *t)
{
    const double least = least_cost(t);
    double most = 0, rate = 0;
    for (uint32_t i = 0; i < t->threads; i++) {
        const double cost = cost_of(t, least, i), time = t->parts[i].ran * cost;
        if (time > most) most = time;
        rate += 1 / cost;
    }
    return (most * rate - t->threads) / t->now->count;
}

// Lets all be done with this batch, by a sample of its frames, at the same time.
static void cut(sw_team *t)
{
    uint64_t values[SAMPLE];
    const uint32_t count = t->now->count < SAMPLE ? t->now->count : SAMPLE, step = t->now->count / count;
    for (uint32_t i = 0; i < count; i++) {
        // Not every step-th one: a load can have a rhythm.
        const uint64_t value = key_of(t, t->switches[0], &t->now->frames[i * step + i * 7 % step]);
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
static void keep_equal(sw_team *t)
{
    for (uint32_t i = 0; i < t->threads; i++) learn_cost(&t->parts[i]);
    const double now = unequal(t);
    if (t->left == 0 || now < t->left) t->left = now;
    if (now <= 1.125) {
        t->waited = 0;
        if (t->patience > 1) t->patience--;
    } else if (++t->waited >= t->patience || (t->waited >= SOON && now > 1.5 * t->left)) {
        cut(t);
        t->waited = 0;
        t->left = 0;
        t->patience = t->patience < MOST_PATIENCE ? t->patience * 2 : MOST_PATIENCE;
    }
}

void sw_team_process(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns,
                     sw_emit_many emit, void *ctx)
{
    sw_team *t = ((sw_state *)sw)->team;
    t->now_ns = now_ns;
    t->emit = emit;
    t->ctx = ctx;
    t->now->count = 0;
    make_way(t);
    for (uint32_t at = 0; at < count || t->now->count != 0;) {
        t->next->frames = frames + at;
        t->next->first = at;
        t->next->count = count - at < BATCH ? count - at : BATCH;
        at += t->next->count;
        together(t, run_shard, t);
        if (t->key.field != SW_NO_FIELD && t->now->count != 0) keep_equal(t);
        batch *done = t->now;
        t->now = t->next, t->next = done;
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
    sw_team *t = aligned_alloc(64, sizeof *t);
    if (t == NULL) return NULL;
    memset(t, 0, sizeof *t);
    t->threads = threads;
    t->switches = switches;
    t->now = &t->batches[0], t->next = &t->batches[1];
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
