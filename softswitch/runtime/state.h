// SPDX-License-Identifier: Apache-2.0
// What generated code and the runtime share: tables, replication, stateful objects, one switch.
#ifndef WEIR_SOFTSWITCH_STATE_H
#define WEIR_SOFTSWITCH_STATE_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "switch.h"

typedef unsigned __int128 sw_u128;
typedef __int128 sw_i128;

#define SW_NO_ACTION UINT32_MAX

// Compilers guess that code behind many branches hardly ever runs and do not vectorise it. A protocol
// parser is nothing but code behind branches.
#define SW_HOT __attribute__((hot)) static
#define SW_INLINE __attribute__((hot, always_inline)) static inline
#define SW_RARE(condition) __builtin_expect(!!(condition), 0)

// -- tables ---------------------------------------------------------------------------------------

enum { SW_EXACT = 0, SW_LPM = 1, SW_TERNARY = 2 };  // ternary also serves optional and range

typedef struct {
    const char *name;
    uint32_t kind;
    uint32_t key_words;    // 64-bit words of a key
    uint32_t range_words;  // the last of them that hold one range field each
    uint32_t arg_words;    // 64-bit words of the longest action data
} sw_table_desc;

typedef struct sw_entry sw_entry;
struct sw_entry {
    sw_entry *next;  // same group, same masked key; best first
    uint32_t action;
    int32_t priority;
    uint64_t order;  // of insertion: the earlier wins among equals
    uint32_t handle;
    uint64_t packets, bytes;
    uint64_t words[];  // key (masked) | arguments | upper bounds of range fields
};

typedef struct {
    uint64_t hash;
    sw_entry *head;
} sw_slot;

// Entries that look at the same bits: one hash table over the masked key.
typedef struct {
    uint64_t *mask;
    sw_slot *slots;
    uint32_t slot_mask;  // number of slots - 1
    uint32_t used;       // slots in use
    uint32_t rank;       // LPM: prefix length
    int32_t best;        // highest priority in the group
} sw_group;

typedef struct {
    const sw_table_desc *desc;
    sw_group *groups;  // LPM: longest prefix first; ternary: highest priority first
    uint32_t group_count;
    uint32_t handle_count;
    uint32_t free_handle;  // no free one is below
    sw_entry **handles;
    sw_entry *fallback;  // what a miss does; never NULL
    uint64_t next_order;
} sw_table;

static inline uint64_t sw_hash_words(const uint64_t *words, unsigned count) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (unsigned i = 0; i < count; i++) {
        sw_u128 product = (sw_u128)(words[i] ^ hash) * 0xd6e8feb86659fd93u;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return hash;
}

static inline int sw_same_words(const uint64_t *a, const uint64_t *b, unsigned count) {
    uint64_t difference = 0;
    for (unsigned i = 0; i < count; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}

static inline sw_entry *sw_group_find(const sw_group *group, const uint64_t *key, unsigned words) {
    uint64_t hash = sw_hash_words(key, words);
    for (uint32_t i = (uint32_t)hash & group->slot_mask;; i = (i + 1) & group->slot_mask) {
        const sw_slot *slot = &group->slots[i];
        if (slot->head == NULL) return NULL;
        if (slot->hash == hash && sw_same_words(slot->head->words, key, words)) return slot->head;
    }
}

// Each returns the matching entry or NULL. `words` is a constant of the generated code, so that the
// compiler unrolls the comparison.
static inline sw_entry *sw_lookup_exact(const sw_table *table, const uint64_t *key, unsigned words) {
    return sw_group_find(&table->groups[0], key, words);
}

static inline sw_entry *sw_lookup_lpm(const sw_table *table, const uint64_t *key, unsigned words) {
    uint64_t masked[16];
    for (uint32_t g = 0; g < table->group_count; g++) {
        const sw_group *group = &table->groups[g];
        for (unsigned i = 0; i < words; i++) masked[i] = key[i] & group->mask[i];
        sw_entry *entry = sw_group_find(group, masked, words);
        if (entry != NULL) return entry;
    }
    return NULL;
}

static inline sw_entry *sw_lookup_ternary(const sw_table *table, const uint64_t *key, unsigned words,
                                          unsigned range_words, unsigned arg_words) {
    uint64_t masked[16];
    sw_entry *best = NULL;
    unsigned plain = words - range_words;
    for (uint32_t g = 0; g < table->group_count; g++) {
        const sw_group *group = &table->groups[g];
        if (best != NULL && group->best < best->priority) break;
        for (unsigned i = 0; i < plain; i++) masked[i] = key[i] & group->mask[i];
        for (sw_entry *entry = sw_group_find(group, masked, plain); entry != NULL; entry = entry->next) {
            int inside = 1;
            for (unsigned i = 0; i < range_words; i++)
                inside &= entry->words[plain + i] <= key[plain + i] &&
                          key[plain + i] <= entry->words[words + arg_words + i];
            if (!inside) continue;
            if (best == NULL || entry->priority > best->priority ||
                (entry->priority == best->priority && entry->order < best->order))
                best = entry;
            break;
        }
    }
    return best;
}

// -- replication and stateful objects ---------------------------------------------------------------

typedef struct {
    uint32_t port;
    uint32_t rid;
} sw_replica;

typedef struct {
    uint32_t count;
    uint32_t packet_length;  // clone sessions: bytes kept, 0 for all
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

enum { SW_GROUPS = 1 << 16, SW_SESSIONS = 1 << 15 };

typedef struct sw_traffic sw_traffic;  // queue.h
typedef struct sw_packet sw_packet;
typedef struct sw_trace sw_trace;  // trace.h

typedef struct sw_state {
    sw_switch base;  // first: drivers see only this
    pthread_mutex_t mutex;
    sw_stats stats;
    _Atomic uint64_t deadline;  // when the next queued packet is due; SW_NEVER without one
    sw_traffic *traffic;        // NULL until a port is limited
    uint64_t random;
    sw_table *tables;
    void **registers;
    sw_cell **counters;
    sw_replicas **groups;
    sw_replicas **sessions;
    void *scratch;    // the generated code's packet state and buffers
    sw_trace *trace;  // NULL while no packets are traced
} sw_state;

// What the generated code says about itself.
typedef struct {
    uint32_t tables, registers, counters;
    const sw_table_desc *table;
    const sw_array_desc *reg, *counter;
    size_t scratch_bytes, packet_bytes;  // of a sw_packet with what the program keeps in it
    void (*process)(sw_switch *, uint32_t, const uint8_t *, uint32_t, uint64_t, sw_emit, void *);
    // The same where ports are limited: what has to wait is put into their queues.
    void (*process_limited)(sw_switch *, uint32_t, const uint8_t *, uint32_t, uint64_t, sw_emit, void *);
    // Egress of a packet from the queue of `port` that left `depth` packets behind. Returns the length of
    // the frame that went out, 0 for none.
    uint32_t (*depart)(sw_state *, sw_packet *, uint32_t port, uint64_t now_ns, uint32_t depth, sw_emit, void *);
} sw_program;

extern const sw_program sw_generated;

// Uniform in [low, high]; splitmix64, the same sequence in every new switch with the same seed.
static inline uint64_t sw_random(sw_state *s, uint64_t low, uint64_t high) {
    uint64_t z = s->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    uint64_t span = high - low + 1;
    return span == 0 ? z : low + (uint64_t)(((sw_u128)z * span) >> 64);
}

#endif
