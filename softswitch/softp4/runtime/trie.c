// SPDX-License-Identifier: Apache-2.0
#include "trie.h"

#include <stdlib.h>
#include <string.h>

enum { STRIDE = 6, LEVELS = 11 }; // of a word: 10 * 6 bits, then 4

#define BIT(n) ((uint64_t)1 << (n))
// The prefixes of a node's six bits `b`: lengths 1 to 5.
#define PATH(b)                                                                                              \
    (BIT((b) >> 5) | BIT(2 + ((b) >> 4)) | BIT(6 + ((b) >> 3)) | BIT(14 + ((b) >> 2)) | BIT(30 + ((b) >> 1)))
#define PATHS4(b) PATH(b), PATH((b) + 1), PATH((b) + 2), PATH((b) + 3)
#define PATHS16(b) PATHS4(b), PATHS4((b) + 4), PATHS4((b) + 8), PATHS4((b) + 12)

const uint64_t sw_trie_path[64] = {PATHS16(0), PATHS16(16), PATHS16(32), PATHS16(48)};

// Where a prefix ends: the node that `steps` steps from the root lead to, and its number in `prefixes`, or its
// six bits in `whole`.
typedef struct {
    unsigned steps, number;
    int whole;
} place;

static unsigned bits_at(const uint64_t *key, unsigned step)
{
    return (unsigned)(key[step / LEVELS] << (STRIDE * (step % LEVELS)) >> 58);
}

static place place_of(const uint64_t *key, unsigned length)
{
    unsigned word = (length - 1) / 64, rest = length - 64 * word; // 1 to 64
    unsigned level = (rest - 1) / STRIDE, inside = rest - STRIDE * level, steps = LEVELS * word + level;
    unsigned bits = bits_at(key, steps);
    if (inside == STRIDE) return (place){steps, bits, 1};
    return (place){steps, (1u << inside) - 2 + (bits >> (STRIDE - inside)), 0};
}

static unsigned entry_index(const sw_trie *node, place end)
{
    return end.whole ? sw_trie_whole(node, end.number) : sw_trie_rank(node->prefixes, end.number);
}

static unsigned entry_count(const sw_trie *node)
{
    return (unsigned)(__builtin_popcountll(node->prefixes) + __builtin_popcountll(node->whole));
}

static uint64_t *map_of(sw_trie *node, place end) { return end.whole ? &node->whole : &node->prefixes; }

// Opens a hole for element `at` of an array of `count`; NULL when memory ran out (the array is as it was).
static void *grown(void *array, unsigned count, unsigned at, size_t size)
{
    char *new = realloc(array, (count + 1) * size);
    if (new != NULL) memmove(new + (at + 1) * size, new + at * size, (count - at) * size);
    return new;
}

// Closes it again. A shorter array that cannot be had leaves the longer one, which does no harm.
static void *shrunk(void *array, unsigned count, unsigned at, size_t size)
{
    memmove((char *)array + at * size, (char *)array + (at + 1) * size, (count - at - 1) * size);
    if (count == 1) {
        free(array);
        return NULL;
    }
    void *new = realloc(array, (count - 1) * size);
    return new == NULL ? array : new;
}

static void drop_child(sw_trie *node, unsigned bits)
{
    node->child = shrunk(node->child, (unsigned)__builtin_popcountll(node->children),
                         sw_trie_rank(node->children, bits), sizeof(sw_trie));
    node->children &= ~BIT(bits);
}

// Removes the empty nodes on the way to a place, from its end on.
static void prune(sw_trie *root, const uint64_t *key, unsigned steps)
{
    for (; steps > 0; steps--) {
        sw_trie *parent = NULL, *node = root;
        unsigned step = 0;
        for (; step < steps && (node->children & BIT(bits_at(key, step))) != 0; step++) {
            parent = node;
            node = &node->child[sw_trie_rank(node->children, bits_at(key, step))];
        }
        if (step < steps) continue; // not made that far
        if (entry_count(node) != 0 || node->children != 0) return;
        drop_child(parent, bits_at(key, steps - 1));
    }
}

int sw_trie_insert(sw_trie_root *root, const uint64_t *key, unsigned length, sw_entry *entry)
{
    if (length == 0) {
        root->any = entry;
        return 0;
    }
    place end = place_of(key, length);
    sw_trie *node = &root->node;
    for (unsigned step = 0; step < end.steps; step++) {
        unsigned bits = bits_at(key, step), at = sw_trie_rank(node->children, bits);
        if ((node->children & BIT(bits)) == 0) {
            sw_trie *child =
                grown(node->child, (unsigned)__builtin_popcountll(node->children), at, sizeof(sw_trie));
            if (child == NULL) goto fail;
            memset(&child[at], 0, sizeof(sw_trie));
            node->child = child;
            node->children |= BIT(bits);
        }
        node = &node->child[at];
    }
    unsigned at = entry_index(node, end);
    sw_entry **entries = grown(node->entries, entry_count(node), at, sizeof(sw_entry *));
    if (entries == NULL) goto fail;
    entries[at] = entry;
    node->entries = entries;
    *map_of(node, end) |= BIT(end.number);
    return 0;
fail:
    prune(&root->node, key, end.steps);
    return -1;
}

void sw_trie_remove(sw_trie_root *root, const uint64_t *key, unsigned length)
{
    if (length == 0) {
        root->any = NULL;
        return;
    }
    place end = place_of(key, length);
    sw_trie *node = &root->node;
    for (unsigned step = 0; step < end.steps; step++)
        node = &node->child[sw_trie_rank(node->children, bits_at(key, step))];
    node->entries = shrunk(node->entries, entry_count(node), entry_index(node, end), sizeof(sw_entry *));
    *map_of(node, end) &= ~BIT(end.number);
    prune(&root->node, key, end.steps);
}

int sw_trie_is_empty(const sw_trie_root *root)
{
    return root->any == NULL && entry_count(&root->node) == 0 && root->node.children == 0;
}

static void free_below(sw_trie *node)
{
    for (int i = 0; i < __builtin_popcountll(node->children); i++) free_below(&node->child[i]);
    free(node->child);
    free(node->entries);
}

void sw_trie_free(sw_trie_root *root) { free_below(&root->node); }
