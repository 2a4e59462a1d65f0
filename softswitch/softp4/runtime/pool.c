// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 2000 }; // some microseconds, which sleep and waking cost, too

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

// Until the value is `least` or, as it goes round, later. Returns it.
static uint32_t wait_for(gate *g, uint32_t least)
{
    uint32_t seen;
    for (int i = 0; i < SPINS; i++) {
        if ((int32_t)((seen = atomic_load(&g->value)) - least) >= 0) return seen;
        sw_relax();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while ((int32_t)((seen = atomic_load(&g->value)) - least) < 0)
        syscall(SYS_futex, &g->value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
    return seen;
}

// -- threads ------------------------------------------------------------------------------------------------

typedef struct {
    _Alignas(64) sw_pool *pool;
    uint32_t self;
    pthread_t id;
} member;

typedef struct {
    _Alignas(64) _Atomic uint32_t taken; // number of the last work in which somebody took this part
} part;

struct sw_pool {
    uint32_t threads; // with the caller's
    uint32_t started; // besides it
    _Atomic int stop;
    // The work. Only who has taken a part looks at it: it does not change before all parts are done.
    sw_task task;
    void *arg;
    gate begun; // number of the work
    gate done;  // parts of all works
    // where threads may run
    cpu_set_t allowed;
    int caller; // the processor of the last caller for which the others made way, or -1
    part parts[SW_MOST_THREADS];
    member members[SW_MOST_THREADS];
};

static void take_parts(sw_pool *t, uint32_t self, uint32_t work)
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
        work = wait_for(&m->pool->begun, work + 1);
        if (atomic_load(&m->pool->stop)) return NULL;
        take_parts(m->pool, m->self, work);
    }
}

void sw_pool_together(sw_pool *t, sw_task task, void *arg)
{
    t->task = task;
    t->arg = arg;
    raise_by_one(&t->begun);
    const uint32_t work = atomic_load(&t->begun.value);
    take_parts(t, 0, work);
    wait_for(&t->done, work * t->threads);
}

// Linux may leave two threads that wake each other on one processor with another one idle, as they never both wait for
// it: then two are slower than one.
void sw_pool_make_way(sw_pool *t)
{
    const int processor = sched_getcpu();
    if (processor == t->caller || processor < 0) return;
    t->caller = processor;
    cpu_set_t others = t->allowed;
    CPU_CLR(processor, &others);
    if (CPU_COUNT(&others) == 0) return;
    for (uint32_t i = 1; i < t->threads; i++)
        pthread_setaffinity_np(t->members[i].id, sizeof others, &others);
}

void sw_pool_free(sw_pool *t)
{
    if (t == NULL) return;
    atomic_store(&t->stop, 1);
    raise_by_one(&t->begun);
    for (uint32_t i = 1; i <= t->started; i++) pthread_join(t->members[i].id, NULL);
    free(t);
}

sw_pool *sw_pool_new(uint32_t threads)
{
    sw_pool *t = aligned_alloc(_Alignof(sw_pool), sizeof *t);
    if (t == NULL) return NULL;
    memset(t, 0, sizeof *t);
    t->threads = threads;
    t->caller = -1;
    (void)sched_getaffinity(0, sizeof t->allowed, &t->allowed); // none, if it fails
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the process's other threads
    for (uint32_t i = 1; i < threads; i++) {
        member *m = &t->members[i];
        m->pool = t;
        m->self = i;
        if (pthread_create(&m->id, NULL, main_of, m) != 0) break;
        t->started = i;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (t->started == threads - 1) return t;
    sw_pool_free(t);
    return NULL;
}
