// SPDX-License-Identifier: Apache-2.0
// Several threads that do a work together. It is cut into as many parts as there are threads. Each takes its own part
// first, and then those that nobody has begun: who is not scheduled in time is not waited for.
#ifndef SOFTP4_TEAM_H
#define SOFTP4_TEAM_H

#include <stdint.h>

#include "switch.h"

typedef struct sw_team sw_team;

// One of the threads is whichever calls. NULL: no memory, or no more threads.
sw_team *sw_team_new(uint32_t threads);
void sw_team_free(sw_team *team);
// Runs all parts of a work. One caller at a time.
void sw_team_together(sw_team *team, sw_task task, void *arg);
// Keeps the other threads off the processor that the caller runs on.
void sw_team_make_way(sw_team *team);

// A moment of a loop that waits for another thread.
static inline void sw_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
