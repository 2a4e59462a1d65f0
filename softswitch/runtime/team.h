// SPDX-License-Identifier: Apache-2.0
// Several threads that run one switch's frames, each those of its shard, with the results of a single one.
#ifndef WEIR_SOFTSWITCH_TEAM_H
#define WEIR_SOFTSWITCH_TEAM_H

#include "state.h"

// How frames are shared: by the bits `mask` of a field of theirs (its number among the program's), or without
// one, in equal numbers.
typedef struct {
    uint32_t field; // SW_NO_FIELD: any thread may take any frame
    uint64_t mask;
} sw_key;

#define SW_NO_FIELD UINT32_MAX

// For a switch in so many parts, the first of which is the switch itself. NULL: no memory, or no more threads.
sw_team *sw_team_new(sw_state *const *switches, uint32_t threads);
void sw_team_free(sw_team *team);
void sw_team_set_key(sw_team *team, const sw_key *key); // between two batches
void sw_team_process(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns,
                     sw_emit_many emit, void *ctx);
void sw_team_together(sw_switch *sw, sw_task task, void *arg);

#endif
