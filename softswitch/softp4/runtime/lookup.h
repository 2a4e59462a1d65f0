// SPDX-License-Identifier: Apache-2.0
// Tables as the data path sees them; changing them is in table.c.
//
// Exact: one hash table. LPM: a trie of 64-bit bitmaps (tree bitmap, Eatherton et al. 2004), one for each value
// of the exact fields beside the prefix. Ternary: groups of entries that look at the same bits at least, one
// hash table each (tuple space search, Srinivasan et al. 1999, with merged tuples, Daly et al. 2019).
#ifndef SOFTP4_LOOKUP_H
#define SOFTP4_LOOKUP_H

#include "base.h"

#define SW_NO_ACTION UINT32_MAX

enum { SW_MAX_KEY_WORDS = 64 };
enum { SW_EXACT = 0, SW_LPM = 1, SW_TERNARY = 2 }; // ternary also serves optional and range

typedef struct {
    const char *name;
    uint32_t kind;
    uint32_t key_words;   // 64-bit words of a key
    uint32_t lpm_words;   // LPM: the last of them, the prefix, left-aligned, most significant word first
    uint32_t range_words; // ternary: the last of them, one range field each
    uint32_t arg_words;   // 64-bit words of the longest action data
    uint32_t meter_words; // of an entry's sw_meter; 0 without direct meters
    uint32_t idle_words;  // of an entry's sw_idle; 0 where entries do not age
} sw_table_desc;

typedef struct sw_entry sw_entry;
struct sw_entry {
    sw_entry *next; // same hash in the same group; best first
    uint32_t action;
    int32_t priority; // LPM: prefix length
    uint64_t order;   // of insertion: the earlier wins among equals
    uint32_t handle;
    uint32_t group; // sw_group.id
    uint64_t packets, bytes;
    // key (masked; range fields: low) | arguments | ternary: mask of the key (range fields: high) | meter | idle
    uint64_t words[];
};

typedef struct {
    uint64_t hash;
    sw_entry *head;
} sw_slot;

// A hash table over the bits in `mask`, open addressing. Entries with the same hash are in one slot.
typedef struct {
    uint64_t *mask; // ternary only: a subset of each entry's mask
    sw_slot *slots;
    uint32_t slot_mask; // number of slots - 1
    uint32_t used;      // slots in use
    uint32_t removed;   // entries since `best` was exact
    uint32_t id;
    int32_t best; // no entry has a higher priority
} sw_group;

// Six bits of a prefix (the last four at the end of each word). Prefixes end in the node of their last bit, so
// that those of whole nodes' lengths need no node more: of 1 to 5 of a node's bits in `prefixes`, numbered
// 2^length - 2 + these bits, and of all six in `whole`. The arrays hold only what is there, in order.
typedef struct sw_trie sw_trie;
struct sw_trie {
    uint64_t prefixes, whole, children;
    sw_entry **entries; // of `prefixes`, then of `whole`
    sw_trie *child;
};

// A trie and the prefix of length 0, which ends in no node.
typedef struct {
    sw_trie node;
    sw_entry *any;
} sw_trie_root;

typedef struct {
    const sw_table_desc *desc;
    sw_group *groups; // exact: one; LPM with exact fields: one, of tries; ternary: highest priority first
    uint32_t group_count;
    uint32_t group_ids;
    sw_trie_root trie; // LPM without exact fields
    uint32_t handle_count;
    uint32_t free_handle; // the first of the free ones
    sw_entry **handles;
    sw_entry *fallback; // what a miss does; never NULL
    uint64_t next_order;
    int apart; // entries have cache lines of their own
} sw_table;

// For each value of a node's six bits, its prefixes of 1 to 5 bits (by their numbers).
extern const uint64_t sw_trie_path[64];

// When an entry was last hit (or made; SW_NEVER: since the time was last told), when it was last reported
// idle, and after how long it should be; 0 for never. In nanoseconds.
typedef struct {
    uint64_t hit, told, timeout;
} sw_idle;

typedef struct sw_meter sw_meter; // meter.h

// Words of an entry's key, arguments and mask.
SW_INLINE uint32_t sw_entry_words(const sw_table_desc *desc)
{
    return desc->key_words + desc->arg_words + (desc->kind == SW_TERNARY ? desc->key_words : 0);
}

SW_INLINE sw_meter *sw_entry_meter(const sw_table *table, sw_entry *entry)
{
    return (sw_meter *)(entry->words + sw_entry_words(table->desc));
}

SW_INLINE sw_idle *sw_entry_idle(const sw_table *table, sw_entry *entry)
{
    return (sw_idle *)(entry->words + sw_entry_words(table->desc) + table->desc->meter_words);
}

SW_INLINE uint64_t sw_mix(uint64_t hash, uint64_t word)
{
    sw_u128 product = (sw_u128)(word ^ hash) * 0xd6e8feb86659fd93u;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

SW_INLINE uint64_t sw_hash_words(const uint64_t *words, unsigned count)
{
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (unsigned i = 0; i < count; i++) hash = sw_mix(hash, words[i]);
    return hash;
}

SW_INLINE uint64_t sw_hash_masked(const uint64_t *words, const uint64_t *mask, unsigned count)
{
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (unsigned i = 0; i < count; i++) hash = sw_mix(hash, words[i] & mask[i]);
    return hash;
}

SW_INLINE int sw_same_words(const uint64_t *a, const uint64_t *b, unsigned count)
{
    uint64_t difference = 0;
    for (unsigned i = 0; i < count; i++) difference |= a[i] ^ b[i];
    return difference == 0;
}

// The slot with that hash, or the free one where it belongs.
SW_INLINE sw_slot *sw_group_slot(const sw_group *group, uint64_t hash)
{
    uint32_t i = (uint32_t)hash & group->slot_mask;
    while (group->slots[i].head != NULL && group->slots[i].hash != hash) i = (i + 1) & group->slot_mask;
    return &group->slots[i];
}

SW_INLINE sw_entry *sw_group_find(const sw_group *group, const uint64_t *key, unsigned words)
{
    sw_entry *entry = sw_group_slot(group, sw_hash_words(key, words))->head;
    while (entry != NULL && !sw_same_words(entry->words, key, words)) entry = entry->next;
    return entry;
}

// Each lookup returns the matching entry or NULL. Numbers of words are constants of the generated code, so that
// the compiler unrolls the comparisons.
SW_INLINE sw_entry *sw_lookup_exact(const sw_table *table, const uint64_t *key, unsigned words)
{
    return sw_group_find(&table->groups[0], key, words);
}

// The trie of an entry that stands for a value of the exact fields.
SW_INLINE sw_trie_root *sw_entry_trie(sw_entry *entry, unsigned exact_words)
{
    return (sw_trie_root *)(void *)(entry->words + exact_words);
}

// How many bits below `bit` are set.
SW_INLINE unsigned sw_trie_rank(uint64_t map, unsigned bit)
{
    return (unsigned)__builtin_popcountll(map & (((uint64_t)1 << bit) - 1));
}

// Where the entry of a prefix of all six bits is.
SW_INLINE unsigned sw_trie_whole(const sw_trie *node, unsigned bits)
{
    return (unsigned)__builtin_popcountll(node->prefixes) + sw_trie_rank(node->whole, bits);
}

SW_INLINE sw_entry *sw_lookup_lpm(const sw_table *table, const uint64_t *key, unsigned words,
                                  unsigned lpm_words)
{
    const sw_trie_root *trie = &table->trie;
    const sw_trie *found = NULL;
    unsigned at = 0;
    if (words != lpm_words) {
        sw_entry *root = sw_group_find(&table->groups[0], key, words - lpm_words);
        if (root == NULL) return NULL;
        trie = sw_entry_trie(root, words - lpm_words);
    }
    const sw_trie *node = &trie->node;
    for (unsigned w = words - lpm_words; w < words; w++) {
        uint64_t rest = key[w];
        for (unsigned level = 0; level < 11; level++, rest <<= 6) {
            unsigned bits = (unsigned)(rest >> 58);
            uint64_t ends = node->prefixes & sw_trie_path[bits];
            if ((node->whole >> bits & 1) != 0)
                found = node, at = sw_trie_whole(node, bits);
            else if (ends != 0)
                found = node, at = sw_trie_rank(node->prefixes, 63 - (unsigned)__builtin_clzll(ends));
            if ((node->children >> bits & 1) == 0) goto done;
            node = &node->child[sw_trie_rank(node->children, bits)];
        }
    }
done:
    return found == NULL ? trie->any : found->entries[at];
}

SW_INLINE sw_entry *sw_lookup_ternary(const sw_table *table, const uint64_t *key, unsigned words,
                                      unsigned range_words, unsigned arg_words)
{
    sw_entry *best = NULL;
    unsigned plain = words - range_words;
    for (uint32_t g = 0; g < table->group_count; g++) {
        const sw_group *group = &table->groups[g];
        if (best != NULL && group->best < best->priority) break;
        sw_entry *entry = sw_group_slot(group, sw_hash_masked(key, group->mask, words))->head;
        for (; entry != NULL; entry = entry->next) {
            if (best != NULL && (entry->priority < best->priority ||
                                 (entry->priority == best->priority && entry->order > best->order)))
                break;
            const uint64_t *check = entry->words + words + arg_words;
            uint64_t difference = 0;
            for (unsigned i = 0; i < plain; i++) difference |= (key[i] ^ entry->words[i]) & check[i];
            for (unsigned i = plain; i < words; i++)
                difference |= key[i] < entry->words[i] || check[i] < key[i];
            if (difference != 0) continue;
            best = entry;
            break;
        }
    }
    return best;
}

#endif
