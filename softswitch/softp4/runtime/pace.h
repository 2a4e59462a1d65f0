// SPDX-License-Identifier: Apache-2.0
// Pacing: when a port's rates allow the next frame. Exact, whatever the rate: remainders are carried on.
#ifndef SOFTP4_PACE_H
#define SOFTP4_PACE_H

#include <stdint.h>

#include "switch.h"

enum { SW_NANOSECONDS = 1000000000 };

// One rate: when what was let through will have passed, in nanoseconds and in parts of one.
typedef struct {
    uint64_t free, rest;
} sw_line;

typedef struct {
    sw_line bits, packets;
} sw_pace;

static inline void sw_line_occupy(sw_line *line, uint64_t now, uint64_t units, uint64_t rate)
{
    if (rate == 0) return;
    if (line->free < now) *line = (sw_line){now, 0};
    const unsigned __int128 work = (unsigned __int128)units * SW_NANOSECONDS + line->rest;
    line->free += (uint64_t)(work / rate);
    line->rest = (uint64_t)(work % rate);
}

// When the next frame may pass, not before `now`.
static inline uint64_t sw_pace_next(const sw_pace *pace, const sw_queueing *limits, uint64_t now)
{
    if (limits->rate_bps != 0) {
        const uint64_t ahead =
            (uint64_t)((unsigned __int128)limits->burst_bytes * 8 * SW_NANOSECONDS / limits->rate_bps);
        if (pace->bits.free > ahead && pace->bits.free - ahead > now) now = pace->bits.free - ahead;
    }
    if (limits->rate_pps != 0 && pace->packets.free > now) now = pace->packets.free;
    return now;
}

// A frame passes at `now`, which sw_pace_next allows; one of 0 bytes takes no time on the line.
static inline void sw_pace_take(sw_pace *pace, const sw_queueing *limits, uint64_t now, uint32_t bytes)
{
    sw_line_occupy(&pace->packets, now, 1, limits->rate_pps);
    if (bytes != 0) sw_line_occupy(&pace->bits, now, (uint64_t)bytes * 8, limits->rate_bps);
}

static inline void sw_line_change(sw_line *line, uint64_t now, uint64_t old, uint64_t rate)
{
    if (old == rate) return;
    if (old != 0 && rate != 0 && line->free > now) {
        const unsigned __int128 left = (unsigned __int128)(line->free - now) * old / rate;
        line->free = left > SW_NEVER / 2 ? SW_NEVER / 2 : now + (uint64_t)left;
    } else {
        line->free = now;
    }
    line->rest = 0;
}

// What has not passed yet goes on at the new rates.
static inline void sw_pace_change(sw_pace *pace, uint64_t now, const sw_queueing *old, const sw_queueing *new)
{
    sw_line_change(&pace->bits, now, old->rate_bps, new->rate_bps);
    sw_line_change(&pace->packets, now, old->rate_pps, new->rate_pps);
}

#endif
