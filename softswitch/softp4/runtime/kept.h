// SPDX-License-Identifier: Apache-2.0
// What parts of a batch emit, kept until it can go out in the order of the frames that it comes of.
#ifndef SOFTP4_KEPT_H
#define SOFTP4_KEPT_H

#include <stdlib.h>

#include "switch.h"

typedef struct {
    uint32_t number; // of the frame that it comes of
    uint32_t port, len;
    size_t at; // in `bytes`
} sw_kept_head;

enum {
    SW_KEPT_BYTES = 1 << 26, // the most that is kept of one part's
    SW_KEPT_PORTS = 512,
};

// One part's.
typedef struct {
    _Alignas(64) sw_kept_head *heads;
    uint8_t *bytes;
    size_t count, room_for;       // heads
    size_t used, room;            // bytes
    int losses;                   // whether there are any of these:
    uint64_t lost[SW_KEPT_PORTS]; // frames for each port that found no room
} sw_kept;

typedef struct {
    uint32_t parts; // that there are
    sw_kept of[SW_MOST_THREADS];
} sw_keeper;

static inline int sw_kept_grow(void *place, size_t *room, size_t least, size_t unit)
{
    size_t wanted = *room == 0 ? 4096 : *room;
    while (wanted < least) wanted *= 2;
    void *now;
    memcpy(&now, place, sizeof now);
    void *made = realloc(now, wanted * unit);
    if (made == NULL) return -1;
    memcpy(place, &made, sizeof made);
    *room = wanted;
    return 0;
}

// An sw_emit_many whose context is a keeper.
static inline void sw_keep(void *ctx, uint32_t part, uint32_t number, uint32_t port, const uint8_t *frame,
                           uint32_t len)
{
    sw_kept *k = &((sw_keeper *)ctx)->of[part];
    const size_t size = (len + 63u) / 64 * 64;
    if (size > SW_KEPT_BYTES - k->used ||
        (k->count == k->room_for &&
         sw_kept_grow(&k->heads, &k->room_for, k->count + 1, sizeof *k->heads) != 0) ||
        (size > k->room - k->used && sw_kept_grow(&k->bytes, &k->room, k->used + size, 1) != 0)) {
        k->losses = 1;
        if (port < SW_KEPT_PORTS) k->lost[port]++;
        return;
    }
    k->heads[k->count++] = (sw_kept_head){number, port, len, k->used};
    memcpy(k->bytes + k->used, frame, len);
    k->used += size;
}

// A place among all that is kept: how far each part's has been gone through.
typedef struct {
    size_t next[SW_MOST_THREADS];
    uint32_t part; // of the last one
} sw_kept_at;

// The next one in the order of the frames, or NULL.
static inline const sw_kept_head *sw_kept_next(const sw_keeper *keeper, sw_kept_at *at)
{
    const sw_kept_head *first = NULL;
    for (uint32_t i = 0; i < keeper->parts; i++) {
        if (at->next[i] == keeper->of[i].count) continue;
        const sw_kept_head *head = &keeper->of[i].heads[at->next[i]];
        if (first == NULL || head->number < first->number) first = head, at->part = i;
    }
    if (first != NULL) at->next[at->part]++;
    return first;
}

// The bytes of what sw_kept_next has just returned.
static inline const uint8_t *sw_kept_frame(const sw_keeper *keeper, const sw_kept_head *head,
                                           const sw_kept_at *at)
{
    return keeper->of[at->part].bytes + head->at;
}

static inline void sw_kept_clear(sw_keeper *keeper)
{
    for (uint32_t i = 0; i < keeper->parts; i++) keeper->of[i].count = keeper->of[i].used = 0;
}

static inline void sw_keeper_free(sw_keeper *keeper)
{
    for (uint32_t i = 0; i < SW_MOST_THREADS; i++) {
        free(keeper->of[i].heads);
        free(keeper->of[i].bytes);
    }
}

#endif
