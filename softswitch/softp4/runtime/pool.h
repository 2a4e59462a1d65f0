// SPDX-License-Identifier: Apache-2.0
// Several threads that do a work together. It is cut into as many parts as there are threads. Each takes its own part
// first, and then those that nobody has begun: who is not scheduled in time is not waited for.
#ifndef SOFTP4_POOL_H
#define SOFTP4_POOL_H

#include <stdint.h>

#include "switch.h"

typedef struct sw_pool sw_pool;

// One of the threads is whichever calls. NULL: no memory, or no more threads.
sw_pool *sw_pool_new(uint32_t threads);
void sw_pool_free(sw_pool *pool);
// Runs all parts of a work. One caller at a time.
void sw_pool_together(sw_pool *pool, sw_task task, void *arg);
// Keeps the other threads off the processor that the caller runs on.
void sw_pool_make_way(sw_pool *pool);

// A moment of a loop that waits for another thread.
static inline void sw_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
