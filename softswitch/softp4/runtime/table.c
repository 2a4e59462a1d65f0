// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <stdlib.h>
#include <string.h>

#include "trie.h"

enum {
    FIRST_SLOTS = 8,
    // Ternary entries that share a slot before a group that looks at more bits is made for them.
    CHAIN = 4
};
#define NO_HANDLE (UINT32_MAX >> 1)

static unsigned exact_words(const sw_table_desc *desc) { return desc->key_words - desc->lpm_words; }

// A packet counts in the entry that it hits: threads with tables of their own would else take each other's cache lines.
static sw_entry *new_entry(const sw_table *table)
{
    const sw_table_desc *desc = table->desc;
    const size_t words = sw_entry_words(desc) + desc->meter_words + desc->idle_words;
    const size_t bytes = sizeof(sw_entry) + words * sizeof(uint64_t), lines = (bytes + 63) / 64 * 64;
    if (!table->apart) return calloc(1, bytes);
    sw_entry *entry = aligned_alloc(64, lines);
    return entry == NULL ? NULL : memset(entry, 0, lines);
}

// -- groups -----------------------------------------------------------------------------------------

static void group_free(sw_group *group)
{
    free(group->mask);
    free(group->slots);
}

// A new group at the end, where it belongs as long as it is empty. `mask` is NULL unless ternary.
static sw_group *add_group(sw_table *table, const uint64_t *mask)
{
    size_t bytes = table->desc->key_words * sizeof(uint64_t);
    sw_group group = {.slots = calloc(FIRST_SLOTS, sizeof(sw_slot)), .slot_mask = FIRST_SLOTS - 1};
    if (mask != NULL && (group.mask = malloc(bytes)) != NULL) memcpy(group.mask, mask, bytes);
    sw_group *groups = realloc(table->groups, (table->group_count + 1) * sizeof(sw_group));
    if (groups != NULL) table->groups = groups;
    if (groups == NULL || group.slots == NULL || (mask != NULL && group.mask == NULL)) {
        group_free(&group);
        return NULL;
    }
    group.id = table->group_ids++;
    group.best = INT32_MIN;
    groups[table->group_count] = group;
    return &groups[table->group_count++];
}

// Keeps at least half of the slots free, so that probing stays short.
static int make_room(sw_group *group)
{
    uint32_t count = group->slot_mask + 1;
    if (2 * (group->used + 1) <= count) return 0;
    sw_slot *slots = calloc(2 * (size_t)count, sizeof(sw_slot));
    if (slots == NULL) return -1;
    uint32_t mask = 2 * count - 1;
    for (uint32_t i = 0; i < count; i++) {
        if (group->slots[i].head == NULL) continue;
        uint32_t j = (uint32_t)group->slots[i].hash & mask;
        while (slots[j].head != NULL) j = (j + 1) & mask;
        slots[j] = group->slots[i];
    }
    free(group->slots);
    group->slots = slots;
    group->slot_mask = mask;
    return 0;
}

// There must be room.
static void group_add(sw_group *group, uint64_t hash, sw_entry *entry)
{
    sw_slot *slot = sw_group_slot(group, hash);
    if (slot->head == NULL) {
        slot->hash = hash;
        group->used++;
    }
    sw_entry **place = &slot->head;
    while (*place != NULL && (*place)->priority >= entry->priority) place = &(*place)->next;
    entry->next = *place;
    *place = entry;
}

// Linear probing without tombstones: moves later entries of the run back into the hole.
static void free_slot(sw_group *group, sw_slot *slot)
{
    uint32_t mask = group->slot_mask, hole = (uint32_t)(slot - group->slots);
    group->slots[hole].head = NULL;
    for (uint32_t i = (hole + 1) & mask; group->slots[i].head != NULL; i = (i + 1) & mask) {
        uint32_t home = (uint32_t)group->slots[i].hash & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        group->slots[hole] = group->slots[i];
        group->slots[i].head = NULL;
        hole = i;
    }
    group->used--;
}

static void group_take(sw_group *group, uint64_t hash, const sw_entry *entry)
{
    sw_slot *slot = sw_group_slot(group, hash);
    sw_entry **place = &slot->head;
    while (*place != entry) place = &(*place)->next;
    *place = entry->next;
    if (slot->head == NULL) free_slot(group, slot);
}

// -- ternary groups -----------------------------------------------------------------------------------

static int32_t best_priority(const sw_group *group)
{
    int32_t best = INT32_MIN;
    for (uint32_t i = 0; i <= group->slot_mask; i++)
        if (group->slots[i].head != NULL && group->slots[i].head->priority > best)
            best = group->slots[i].head->priority;
    return best;
}

// Moves a group, whose `best` changed, to where it belongs.
static void place_group(sw_table *table, uint32_t at)
{
    sw_group moving = table->groups[at];
    for (; at > 0 && table->groups[at - 1].best < moving.best; at--)
        table->groups[at] = table->groups[at - 1];
    for (; at + 1 < table->group_count && table->groups[at + 1].best > moving.best; at++)
        table->groups[at] = table->groups[at + 1];
    table->groups[at] = moving;
}

static void drop_group(sw_table *table, uint32_t at)
{
    group_free(&table->groups[at]);
    table->group_count--;
    memmove(&table->groups[at], &table->groups[at + 1], (table->group_count - at) * sizeof(sw_group));
}

// The bits of the key that an entry compares; of a range field those that all its values share.
static void compared_bits(const sw_table_desc *desc, const uint64_t *key, const uint64_t *check,
                          uint64_t *mask)
{
    for (unsigned i = 0; i < desc->key_words; i++) {
        if (i < desc->key_words - desc->range_words) {
            mask[i] = check[i];
        } else {
            uint64_t differing = key[i] ^ check[i];
            mask[i] = differing == 0 ? UINT64_MAX : ~(UINT64_MAX >> __builtin_clzll(differing));
        }
    }
}

// Only the whole bytes of a mask, so that few masks serve many entries.
static uint64_t whole_bytes(uint64_t mask)
{
    mask &= mask >> 1;
    mask &= mask >> 2;
    mask &= mask >> 4;
    return (mask & 0x0101010101010101u) * 0xff;
}

static int is_subset(const uint64_t *inner, const uint64_t *outer, unsigned words)
{
    uint64_t beyond = 0;
    for (unsigned i = 0; i < words; i++) beyond |= inner[i] & ~outer[i];
    return beyond == 0;
}

static unsigned ones(const uint64_t *mask, unsigned words)
{
    unsigned count = 0;
    for (unsigned i = 0; i < words; i++) count += (unsigned)__builtin_popcountll(mask[i]);
    return count;
}

static int has_short_chain(const sw_group *group, const uint64_t *key, unsigned words)
{
    unsigned length = 0;
    const sw_entry *entry = sw_group_slot(group, sw_hash_masked(key, group->mask, words))->head;
    for (; entry != NULL && length < CHAIN; entry = entry->next) length++;
    return length < CHAIN;
}

static sw_group *group_with_mask(sw_table *table, const uint64_t *mask)
{
    for (uint32_t i = 0; i < table->group_count; i++)
        if (sw_same_words(table->groups[i].mask, mask, table->desc->key_words)) return &table->groups[i];
    return NULL;
}

// The group for an entry: of those whose bits it all compares, the one with the most that still has room for it
// in its slot; or else a new one, of the whole bytes that it compares, or of all bits that it compares.
static sw_group *choose_group(sw_table *table, const uint64_t *key, const uint64_t *check)
{
    const sw_table_desc *desc = table->desc;
    unsigned words = desc->key_words, most = 0;
    uint64_t compared[SW_MAX_KEY_WORDS], bytes[SW_MAX_KEY_WORDS];
    sw_group *chosen = NULL;
    compared_bits(desc, key, check, compared);
    for (uint32_t i = 0; i < table->group_count; i++) {
        sw_group *group = &table->groups[i];
        unsigned count = ones(group->mask, words);
        if (chosen != NULL && count <= most) continue;
        if (!is_subset(group->mask, compared, words) || !has_short_chain(group, key, words)) continue;
        chosen = group;
        most = count;
    }
    if (chosen != NULL) return chosen;
    for (unsigned i = 0; i < words; i++) bytes[i] = whole_bytes(compared[i]);
    if (group_with_mask(table, bytes) == NULL) return add_group(table, bytes);
    sw_group *own = group_with_mask(table, compared);
    return own != NULL ? own : add_group(table, compared);
}

static sw_group *group_by_id(const sw_table *table, uint32_t id)
{
    uint32_t i = 0;
    while (table->groups[i].id != id) i++;
    return &table->groups[i];
}

static int ternary_insert(sw_table *table, sw_entry *entry)
{
    const sw_table_desc *desc = table->desc;
    sw_group *group = choose_group(table, entry->words, entry->words + desc->key_words + desc->arg_words);
    if (group == NULL) return -1;
    if (make_room(group) != 0) {
        if (group->used == 0) drop_group(table, (uint32_t)(group - table->groups));
        return -1;
    }
    group_add(group, sw_hash_masked(entry->words, group->mask, desc->key_words), entry);
    entry->group = group->id;
    if (entry->priority > group->best) {
        group->best = entry->priority;
        place_group(table, (uint32_t)(group - table->groups));
    }
    return 0;
}

static void ternary_remove(sw_table *table, const sw_entry *entry)
{
    sw_group *group = group_by_id(table, entry->group);
    uint32_t at = (uint32_t)(group - table->groups);
    group_take(group, sw_hash_masked(entry->words, group->mask, table->desc->key_words), entry);
    if (group->used == 0) {
        drop_group(table, at);
    } else if (++group->removed > group->slot_mask / 2) { // seldom enough to cost nothing on average
        group->removed = 0;
        group->best = best_priority(group);
        place_group(table, at);
    }
}

// -- longest prefixes -----------------------------------------------------------------------------------

static sw_trie_root *entry_trie(sw_entry *root, const sw_table_desc *desc)
{
    return sw_entry_trie(root, exact_words(desc));
}

// The entry that stands for the exact fields of a key, made when it is not there; NULL when memory ran out.
static sw_entry *root_of(sw_table *table, const uint64_t *key)
{
    unsigned words = exact_words(table->desc);
    sw_entry *root = sw_group_find(&table->groups[0], key, words);
    if (root != NULL) return root;
    root = calloc(1, sizeof(sw_entry) + words * sizeof(uint64_t) + sizeof(sw_trie_root));
    if (root == NULL || make_room(&table->groups[0]) != 0) {
        free(root);
        return NULL;
    }
    memcpy(root->words, key, words * sizeof(uint64_t));
    group_add(&table->groups[0], sw_hash_words(key, words), root);
    return root;
}

static void drop_root_if_empty(sw_table *table, sw_entry *root)
{
    if (!sw_trie_is_empty(entry_trie(root, table->desc))) return;
    group_take(&table->groups[0], sw_hash_words(root->words, exact_words(table->desc)), root);
    free(root);
}

static int lpm_insert(sw_table *table, sw_entry *entry)
{
    unsigned words = exact_words(table->desc), length = (unsigned)entry->priority;
    if (words == 0) return sw_trie_insert(&table->trie, entry->words, length, entry);
    sw_entry *root = root_of(table, entry->words);
    if (root == NULL) return -1;
    int result = sw_trie_insert(entry_trie(root, table->desc), entry->words + words, length, entry);
    drop_root_if_empty(table, root);
    return result;
}

static void lpm_remove(sw_table *table, const sw_entry *entry)
{
    unsigned words = exact_words(table->desc), length = (unsigned)entry->priority;
    if (words == 0) {
        sw_trie_remove(&table->trie, entry->words, length);
        return;
    }
    sw_entry *root = sw_group_find(&table->groups[0], entry->words, words);
    sw_trie_remove(entry_trie(root, table->desc), entry->words + words, length);
    drop_root_if_empty(table, root);
}

static void free_roots(sw_table *table)
{
    for (uint32_t i = 0; i <= table->groups[0].slot_mask; i++) {
        for (sw_entry *root = table->groups[0].slots[i].head, *next; root != NULL; root = next) {
            next = root->next;
            sw_trie_free(entry_trie(root, table->desc));
            free(root);
        }
    }
}

// -- exact ------------------------------------------------------------------------------------------------

static int exact_insert(sw_table *table, sw_entry *entry)
{
    if (make_room(&table->groups[0]) != 0) return -1;
    group_add(&table->groups[0], sw_hash_words(entry->words, table->desc->key_words), entry);
    return 0;
}

static void exact_remove(sw_table *table, const sw_entry *entry)
{
    group_take(&table->groups[0], sw_hash_words(entry->words, table->desc->key_words), entry);
}

// -- tables -----------------------------------------------------------------------------------------------

// A free handle holds the next free one, marked by its lowest bit.
static int is_free(const sw_entry *place) { return ((uintptr_t)place & 1) != 0; }

static void free_handle(sw_table *table, uint32_t handle)
{
    table->handles[handle] = (sw_entry *)((uintptr_t)table->free_handle << 1 | 1);
    table->free_handle = handle;
}

static int64_t new_handle(sw_table *table, sw_entry *entry)
{
    if (table->free_handle == NO_HANDLE) {
        uint32_t count = table->handle_count == 0 ? 16 : 2 * table->handle_count;
        sw_entry **handles = realloc(table->handles, count * sizeof *handles);
        if (handles == NULL) return -1;
        table->handles = handles;
        for (uint32_t i = count; i-- > table->handle_count;) free_handle(table, i);
        table->handle_count = count;
    }
    uint32_t handle = table->free_handle;
    table->free_handle = (uint32_t)((uintptr_t)table->handles[handle] >> 1);
    table->handles[handle] = entry;
    entry->handle = handle;
    return handle;
}

int sw_table_init(sw_table *table, const sw_table_desc *desc, int apart)
{
    memset(table, 0, sizeof *table);
    table->desc = desc;
    table->free_handle = NO_HANDLE;
    table->apart = apart;
    table->fallback = new_entry(table);
    if (table->fallback == NULL) return -1;
    table->fallback->action = SW_NO_ACTION;
    int one_group = desc->kind == SW_EXACT || (desc->kind == SW_LPM && exact_words(desc) != 0);
    return one_group && add_group(table, NULL) == NULL ? -1 : 0;
}

void sw_table_free(sw_table *table)
{
    for (uint32_t i = 0; i < table->handle_count; i++)
        if (!is_free(table->handles[i])) free(table->handles[i]);
    if (table->desc->kind == SW_LPM && table->group_count != 0) free_roots(table);
    for (uint32_t i = 0; i < table->group_count; i++) group_free(&table->groups[i]);
    sw_trie_free(&table->trie);
    free(table->handles);
    free(table->groups);
    free(table->fallback);
}

void sw_entry_set(const sw_table *table, sw_entry *entry, uint32_t action, const uint64_t *args)
{
    entry->action = action;
    if (table->desc->arg_words != 0)
        memcpy(entry->words + table->desc->key_words, args, table->desc->arg_words * sizeof(uint64_t));
}

int64_t sw_table_insert(sw_table *table, const uint64_t *key, const uint64_t *check, int32_t priority,
                        uint32_t action, const uint64_t *args)
{
    static int (*const insert[])(sw_table *, sw_entry *) = {exact_insert, lpm_insert, ternary_insert};
    const sw_table_desc *desc = table->desc;
    sw_entry *entry = new_entry(table);
    if (entry == NULL || new_handle(table, entry) < 0) {
        free(entry);
        return -1;
    }
    size_t bytes = desc->key_words * sizeof(uint64_t);
    memcpy(entry->words, key, bytes);
    if (desc->kind == SW_TERNARY) memcpy(entry->words + desc->key_words + desc->arg_words, check, bytes);
    entry->priority = priority;
    entry->order = table->next_order++;
    sw_entry_set(table, entry, action, args);
    if (insert[desc->kind](table, entry) != 0) {
        free_handle(table, entry->handle);
        free(entry);
        return -1;
    }
    return entry->handle;
}

void sw_table_remove(sw_table *table, uint32_t handle)
{
    static void (*const remove[])(sw_table *, const sw_entry *) = {exact_remove, lpm_remove, ternary_remove};
    sw_entry *entry = table->handles[handle];
    remove[table->desc->kind](table, entry);
    free_handle(table, handle);
    free(entry);
}
