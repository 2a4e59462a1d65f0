// SPDX-License-Identifier: Apache-2.0
// What generated code and the runtime share: tables, replication, stateful objects, one switch.
#ifndef SOFTP4_STATE_H
#define SOFTP4_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "lookup.h"
#include "calculation.h"
#include "profile.h"
#include "switch.h"

// -- replication and stateful objects ---------------------------------------------------------------

typedef struct {
    uint32_t port;
    uint32_t rid;
} sw_replica;

typedef struct {
    uint32_t count;
    uint32_t packet_length; // clone sessions: bytes kept, 0 for all
    sw_replica replicas[];
} sw_replicas;

typedef struct {
    uint64_t packets, bytes;
} sw_cell;

typedef struct {
    const char *name;
    uint64_t size;
    uint32_t cell_bytes;
} sw_array_desc;

// A register's cells lie `stride` bytes apart, the first one `offset` bytes into the memory of register `base`:
// registers that are used together share theirs.
typedef struct {
    const char *name;
    uint64_t size;
    uint32_t cell_bytes, stride, base, offset;
} sw_register_desc;

// Accesses to registers that threads share without any order. What a cell holds already is not written, so that it
// stays in the caches of all of them.
#define SW_LOOSE_GET(cell) __atomic_load_n(&(cell), __ATOMIC_RELAXED)
#define SW_LOOSE_PUT(cell, value)                                                                            \
    do {                                                                                                     \
        const __typeof__(cell) value_ = (__typeof__(cell))(value);                                           \
        if (SW_LOOSE_GET(cell) != value_) __atomic_store_n(&(cell), value_, __ATOMIC_RELAXED);               \
    } while (0)

// A parser value set: `count` members, each a value and a mask of `words` words, lowest word first.
typedef struct {
    uint32_t count;
    uint64_t members[];
} sw_value_set;

enum { SW_GROUPS = 1 << 16, SW_SESSIONS = 1 << 15 };

enum { SW_MOST_TURNS = 1 << 16 }; // of the loops in an action
enum { SW_ASSERTION_FAILED = 2 }; // in `exit` of the generated code's state

typedef struct sw_traffic sw_traffic; // queue.h
typedef struct sw_packet sw_packet;
typedef struct sw_trace sw_trace;     // trace.h
typedef struct sw_digests sw_digests; // digest.h
typedef struct sw_shards sw_shards;   // shards.h

typedef struct sw_state sw_state;

// One switch; or its part for one of several threads, which has tables, counters, statistics and scratch memory of
// its own, and shares the rest with the first one.
struct sw_state {
    sw_switch base; // first: drivers see only this
    pthread_mutex_t mutex;
    sw_stats stats;
    _Atomic uint64_t deadline; // when the next queued packet is due; SW_NEVER without one
    sw_traffic *traffic;       // NULL until a port is limited
    uint64_t random;
    uint64_t now; // the last time that was told, in nanoseconds: kept where meters or idle times need it
    sw_table *tables;
    sw_profile *profiles;
    void **registers; // memory; NULL of one that lies in another's
    sw_cell **counters;
    sw_meter **meters;
    sw_digests *digests; // NULL in a program without
    sw_replicas **groups;
    sw_replicas **sessions;
    sw_value_set **value_sets; // NULL: empty
    void *scratch;             // the generated code's packet state and buffers
    sw_trace *trace;           // NULL while no packets are traced
    sw_calculation *calculations;
    uint64_t *assertions; // how often each failed
    sw_state **parts;     // of the first part: one for each thread, itself in front
    sw_shards *shards;    // NULL: one thread
    int shared;           // whether frames are shared among threads: entries may forbid it
};

// What the generated code says about itself.
typedef struct {
    uint32_t tables, profiles, registers, counters, meters, value_sets;
    const sw_table_desc *table;
    const sw_profile_desc *profile;
    const sw_register_desc *reg;
    const sw_array_desc *counter, *meter;
    uint32_t digest_words;              // of a sample; 0 without digests
    size_t scratch_bytes, packet_bytes; // of a sw_packet with what the program keeps in it
    void (*process)(sw_switch *, uint32_t, const uint8_t *, uint32_t, uint64_t, sw_emit, void *);
    // The same where ports are limited: what has to wait is put into their queues.
    void (*process_limited)(sw_switch *, uint32_t, const uint8_t *, uint32_t, uint64_t, sw_emit, void *);
    // Egress of a packet from the queue of `port` that left `depth` packets behind. Returns the length of
    // the frame that went out, 0 for none.
    uint32_t (*depart)(sw_state *, sw_packet *, uint32_t port, uint64_t now_ns, uint32_t depth, sw_emit,
                       void *);
    // The value (its lowest 64 bits) of a field that a frame has once it is parsed, by its number among those that
    // can decide which state the frame touches; 0 of a header that it does not have.
    uint64_t (*field)(sw_state *, uint32_t port, const uint8_t *, uint32_t, uint32_t field);
    uint32_t calculations, assertions; // calculations: those with state
    const sw_calculation_desc *calculation;
} sw_program;

extern const sw_program sw_generated;

// Uniform in [low, high]; splitmix64, the same sequence in every new switch with the same seed.
static inline uint64_t sw_random(sw_state *s, uint64_t low, uint64_t high)
{
    uint64_t z = s->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    uint64_t span = high - low + 1;
    return span == 0 ? z : low + (uint64_t)(((sw_u128)z * span) >> 64);
}

#endif
