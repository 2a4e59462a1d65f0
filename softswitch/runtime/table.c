// SPDX-License-Identifier: Apache-2.0
// Tables as groups of entries that look at the same bits (tuple space search, Srinivasan et al. 1999):
// one group for exact, one per prefix length for LPM, one per mask for ternary.
#include "table.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 8 };

static unsigned plain_words(const sw_table_desc *desc) { return desc->key_words - desc->range_words; }

static sw_entry *new_entry(const sw_table_desc *desc) {
    size_t words = desc->key_words + desc->arg_words + desc->range_words;
    return calloc(1, sizeof(sw_entry) + words * sizeof(uint64_t));
}

static int group_init(sw_group *group, const sw_table_desc *desc, const uint64_t *mask, uint32_t rank) {
    unsigned words = plain_words(desc);
    memset(group, 0, sizeof *group);
    group->mask = malloc((words + 1) * sizeof(uint64_t));
    group->slots = calloc(FIRST_SLOTS, sizeof(sw_slot));
    if (group->mask == NULL || group->slots == NULL) {
        free(group->mask);
        free(group->slots);
        return -1;
    }
    for (unsigned i = 0; i < words; i++) group->mask[i] = mask == NULL ? UINT64_MAX : mask[i];
    group->slot_mask = FIRST_SLOTS - 1;
    group->rank = rank;
    group->best = INT32_MIN;
    return 0;
}

static void group_free(sw_group *group) {
    free(group->mask);
    free(group->slots);
}

int sw_table_init(sw_table *table, const sw_table_desc *desc) {
    memset(table, 0, sizeof *table);
    table->desc = desc;
    table->fallback = new_entry(desc);
    if (table->fallback == NULL) return -1;
    table->fallback->action = SW_NO_ACTION;
    if (desc->kind != SW_EXACT) return 0;
    table->groups = calloc(1, sizeof(sw_group));
    if (table->groups == NULL || group_init(table->groups, desc, NULL, 0) != 0) return -1;
    table->group_count = 1;
    return 0;
}

void sw_table_free(sw_table *table) {
    for (uint32_t i = 0; i < table->handle_count; i++) free(table->handles[i]);
    for (uint32_t i = 0; i < table->group_count; i++) group_free(&table->groups[i]);
    free(table->handles);
    free(table->groups);
    free(table->fallback);
}

static sw_slot *find_slot(const sw_group *group, const uint64_t *key, unsigned words) {
    uint64_t hash = sw_hash_words(key, words);
    uint32_t i = (uint32_t)hash & group->slot_mask;
    for (;; i = (i + 1) & group->slot_mask) {
        sw_slot *slot = &group->slots[i];
        if (slot->head == NULL) return slot;
        if (slot->hash == hash && sw_same_words(slot->head->words, key, words)) return slot;
    }
}

// Keeps at least half of the slots free, so that probing stays short.
static int make_room(sw_group *group) {
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

static int comes_before(const sw_table *table, const sw_group *a, const sw_group *b) {
    return table->desc->kind == SW_LPM ? a->rank > b->rank : a->best > b->best;
}

static void sort_groups(sw_table *table) {
    for (uint32_t i = 1; i < table->group_count; i++) {
        sw_group moving = table->groups[i];
        uint32_t j = i;
        for (; j > 0 && comes_before(table, &moving, &table->groups[j - 1]); j--)
            table->groups[j] = table->groups[j - 1];
        table->groups[j] = moving;
    }
}

static sw_group *find_group(sw_table *table, const uint64_t *mask, uint32_t rank) {
    unsigned words = plain_words(table->desc);
    for (uint32_t i = 0; i < table->group_count; i++) {
        sw_group *group = &table->groups[i];
        if (table->desc->kind == SW_EXACT || sw_same_words(group->mask, mask, words)) return group;
    }
    sw_group *groups = realloc(table->groups, (table->group_count + 1) * sizeof(sw_group));
    if (groups == NULL) return NULL;
    table->groups = groups;
    if (group_init(&groups[table->group_count], table->desc, mask, rank) != 0) return NULL;
    return &groups[table->group_count++];
}

static int64_t new_handle(sw_table *table, sw_entry *entry) {
    uint32_t handle = table->free_handle;
    while (handle < table->handle_count && table->handles[handle] != NULL) handle++;
    if (handle == table->handle_count) {
        uint32_t count = table->handle_count == 0 ? 16 : 2 * table->handle_count;
        sw_entry **handles = realloc(table->handles, count * sizeof *handles);
        if (handles == NULL) return -1;
        memset(handles + table->handle_count, 0, (count - table->handle_count) * sizeof *handles);
        table->handles = handles;
        table->handle_count = count;
    }
    table->handles[handle] = entry;
    table->free_handle = handle + 1;
    entry->handle = handle;
    return handle;
}

static void drop_group_if_empty(sw_table *table, sw_group *group) {
    if (group->used != 0 || table->desc->kind == SW_EXACT) return;
    group_free(group);
    *group = table->groups[--table->group_count];
    sort_groups(table);
}

void sw_entry_set(const sw_table *table, sw_entry *entry, uint32_t action, const uint64_t *args) {
    entry->action = action;
    if (table->desc->arg_words != 0)
        memcpy(entry->words + table->desc->key_words, args, table->desc->arg_words * sizeof(uint64_t));
}

int64_t sw_table_insert(sw_table *table, const uint64_t *key, const uint64_t *mask, const uint64_t *high,
                        uint32_t rank, int32_t priority, uint32_t action, const uint64_t *args) {
    const sw_table_desc *desc = table->desc;
    unsigned words = plain_words(desc);
    sw_group *group = find_group(table, mask, rank);
    if (group == NULL) return -1;
    sw_entry *entry = new_entry(desc);
    if (entry == NULL || make_room(group) != 0 || new_handle(table, entry) < 0) {
        free(entry);
        drop_group_if_empty(table, group);
        return -1;
    }
    for (unsigned i = 0; i < words; i++) entry->words[i] = key[i] & group->mask[i];
    for (unsigned i = 0; i < desc->range_words; i++) {
        entry->words[words + i] = key[words + i];
        entry->words[desc->key_words + desc->arg_words + i] = high[i];
    }
    entry->priority = priority;
    entry->order = table->next_order++;
    sw_entry_set(table, entry, action, args);

    sw_slot *slot = find_slot(group, entry->words, words);
    if (slot->head == NULL) {
        slot->hash = sw_hash_words(entry->words, words);
        group->used++;
    }
    sw_entry **place = &slot->head;
    while (*place != NULL && (*place)->priority >= priority) place = &(*place)->next;
    entry->next = *place;
    *place = entry;
    if (priority > group->best) group->best = priority;
    sort_groups(table);
    return entry->handle;
}

// Linear probing without tombstones: moves later entries of the run back into the hole.
static void free_slot(sw_group *group, sw_slot *slot) {
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

static int32_t best_priority(const sw_group *group) {
    int32_t best = INT32_MIN;
    for (uint32_t i = 0; i <= group->slot_mask; i++)
        if (group->slots[i].head != NULL && group->slots[i].head->priority > best)
            best = group->slots[i].head->priority;
    return best;
}

void sw_table_remove(sw_table *table, uint32_t handle) {
    sw_entry *entry = table->handles[handle];
    table->handles[handle] = NULL;
    if (handle < table->free_handle) table->free_handle = handle;
    for (uint32_t g = 0; g < table->group_count; g++) {
        sw_group *group = &table->groups[g];
        sw_slot *slot = find_slot(group, entry->words, plain_words(table->desc));
        sw_entry **place = &slot->head;
        while (*place != NULL && *place != entry) place = &(*place)->next;
        if (*place == NULL) continue;  // another group's mask: the same words, another entry
        *place = entry->next;
        if (slot->head == NULL) free_slot(group, slot);
        if (group->used != 0 && entry->priority == group->best && table->desc->kind == SW_TERNARY) {
            group->best = best_priority(group);
            sort_groups(table);
        } else {
            drop_group_if_empty(table, group);
        }
        break;
    }
    free(entry);
}
