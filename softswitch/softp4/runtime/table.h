// SPDX-License-Identifier: Apache-2.0
// Changing tables; looking up is in lookup.h. The caller holds the switch's lock.
#ifndef SOFTP4_TABLE_H
#define SOFTP4_TABLE_H

#include "lookup.h"

// `apart`: another thread has the same table.
int sw_table_init(sw_table *table, const sw_table_desc *desc, int apart);
void sw_table_free(sw_table *table);

// A new entry; returns its handle, or -1 when memory ran out. `check` (ternary: one word for each of the key's,
// the mask, or the upper bound of a range field) may be NULL otherwise. The key must be masked. `priority` of an
// LPM entry is its prefix length. The caller sees to it that the key is new.
int64_t sw_table_insert(sw_table *table, const uint64_t *key, const uint64_t *check, int32_t priority,
                        uint32_t action, const uint64_t *args);
void sw_table_remove(sw_table *table, uint32_t handle);
void sw_entry_set(const sw_table *table, sw_entry *entry, uint32_t action, const uint64_t *args);

#endif
