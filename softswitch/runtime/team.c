// SPDX-License-Identifier: Apache-2.0
// A work is cut into as many parts as there are threads. Each thread takes its own part first, and then those that
// nobody has begun: who is not scheduled in time is not waited for. A batch is two works: to find out whose each
// frame is, a slice of the batch each; and to run the frames of a shard, in their order.
#define _GNU_SOURCE
#include "team.h"

#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BATCH = 1024,
    SPINS = 2000, // some microseconds, which sleep and waking cost, too
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
    uint32_t number; // of the frame that is being run
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
    // the batch
    const sw_frame *frames;
    uint32_t first, count; // the first one's number
    uint64_t now;
    sw_emit_many emit;
    void *ctx;
    uint8_t owners[BATCH];
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

void sw_team_together(sw_switch *sw, sw_task task, void *arg) { together(((sw_state *)sw)->team, task, arg); }

// -- batches ------------------------------------------------------------------------------------------------

static uint8_t owner_of(const sw_team *t, sw_state *part, const sw_frame *f)
{
    if (f->len > SW_MAX_FRAME) return 0;
    const uint64_t value = sw_generated.field(part, f->port, f->frame, f->len, t->key.field);
    return (uint8_t)(((value & t->key.mask) >> t->key.shift) % t->threads);
}

static void find_owners(void *arg, uint32_t number, uint32_t parts)
{
    sw_team *t = arg;
    const uint32_t from = t->count * number / parts, to = t->count * (number + 1) / parts;
    for (uint32_t i = from; i < to; i++)
        t->owners[i] =
            t->key.field == SW_NO_FIELD ? (uint8_t)number : owner_of(t, t->switches[number], &t->frames[i]);
}

static void emit_one(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
{
    const part *p = ctx;
    p->team->emit(p->team->ctx, p->self, p->number, port, frame, len);
}

static void run_shard(void *arg, uint32_t number, uint32_t parts)
{
    (void)parts;
    sw_team *t = arg;
    part *p = &t->parts[number];
    for (uint32_t i = 0; i < t->count; i++) {
        const sw_frame *f = &t->frames[i];
        if (t->owners[i] != number) continue;
        p->number = t->first + i;
        sw_generated.process(&t->switches[number]->base, f->port, f->frame, f->len, t->now, emit_one, p);
    }
}

void sw_team_process(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns,
                     sw_emit_many emit, void *ctx)
{
    sw_team *t = ((sw_state *)sw)->team;
    t->now = now_ns;
    t->emit = emit;
    t->ctx = ctx;
    for (t->first = 0; t->first < count; t->first += t->count) {
        t->frames = frames + t->first;
        t->count = count - t->first < BATCH ? count - t->first : BATCH;
        together(t, find_owners, t);
        together(t, run_shard, t);
    }
}

void sw_team_set_key(sw_team *team, const sw_key *key) { team->key = *key; }

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
    sw_team *t = aligned_alloc(64, (sizeof *t + 63) / 64 * 64);
    if (t == NULL) return NULL;
    memset(t, 0, sizeof *t);
    t->threads = threads;
    t->switches = switches;
    t->key.field = SW_NO_FIELD;
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
