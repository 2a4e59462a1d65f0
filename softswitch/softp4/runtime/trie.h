// SPDX-License-Identifier: Apache-2.0
// Changing the tries of LPM tables (see lookup.h).
#ifndef SOFTP4_TRIE_H
#define SOFTP4_TRIE_H

#include "lookup.h"

// `key` is the prefix in left-aligned words, of which `length` bits count. sw_trie_insert returns 0, or -1 when
// memory ran out; the caller sees to it that the prefix is new. sw_trie_remove takes one that is there.
int sw_trie_insert(sw_trie_root *root, const uint64_t *key, unsigned length, sw_entry *entry);
void sw_trie_remove(sw_trie_root *root, const uint64_t *key, unsigned length);
int sw_trie_is_empty(const sw_trie_root *root);
void sw_trie_free(sw_trie_root *root); // not the entries

#endif
