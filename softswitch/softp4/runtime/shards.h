// SPDX-License-Identifier: Apache-2.0
// Several threads that run one switch's frames, each those of its shard, with the results of a single one.
#ifndef SOFTP4_SHARDS_H
#define SOFTP4_SHARDS_H

#include "state.h"

// How frames are shared: by the bits `mask` of a field of theirs (its number among the program's), or without
// one, in equal numbers.
typedef struct {
    uint32_t field; // SW_NO_FIELD: any thread may take any frame
    uint64_t mask;
} sw_key;

#define SW_NO_FIELD UINT32_MAX

// For a switch in this many parts, the first of which is the switch itself. NULL: no memory, or no more threads.
sw_shards *sw_shards_new(sw_state *const *switches, uint32_t threads);
void sw_shards_free(sw_shards *shards);
void sw_shards_set_key(sw_shards *shards, const sw_key *key); // between two calls
void sw_shards_process(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns,
                       sw_emit_many emit, void *ctx);
// Has the threads that run a switch's frames do another work.
void sw_shards_together(sw_switch *sw, sw_task task, void *arg);

#endif
