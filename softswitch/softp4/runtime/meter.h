// SPDX-License-Identifier: Apache-2.0
// Meters: two-rate three-colour markers (RFC 2698), colour-blind.
//
// As in BMv2, tokens fall due on a grid that begins at time 0, in whole microseconds, and the peak bucket is
// asked first. Unlike there, nothing is rounded: what is less than a token is carried on.
#ifndef SOFTP4_METER_H
#define SOFTP4_METER_H

#include "state.h"

enum { SW_GREEN = 0, SW_YELLOW = 1, SW_RED = 2, SW_COLOURS = 3 };

// What is configured. Rates are units (packets or bytes) a second, bursts are units.
typedef struct {
    uint64_t configured; // 0: every packet is green
    uint64_t committed_rate, committed_burst, peak_rate, peak_burst;
} sw_meter_config;

typedef struct {
    uint64_t tokens;
    uint64_t time; // microseconds up to which tokens have been paid in
    uint64_t rest; // millionths of a token that are due
} sw_bucket;

struct sw_meter {
    sw_meter_config config;
    sw_bucket committed, peak;
    sw_cell marked[SW_COLOURS]; // by colour
};

// Pays in what has fallen due and takes `units` out, if they are there.
static inline int sw_bucket_take(sw_bucket *bucket, uint64_t rate, uint64_t burst, uint64_t now,
                                 uint64_t units)
{
    if (now > bucket->time) {
        const sw_u128 due = (sw_u128)(now - bucket->time) * rate + bucket->rest;
        sw_u128 tokens;
        if (due >> 64 == 0) {
            tokens = (uint64_t)due / 1000000;
            bucket->rest = (uint64_t)due % 1000000;
        } else {
            tokens = due / 1000000;
            bucket->rest = (uint64_t)(due % 1000000);
        }
        bucket->time = now;
        tokens += bucket->tokens;
        bucket->tokens = tokens < burst ? (uint64_t)tokens : burst;
    }
    if (bucket->tokens < units) return 0;
    bucket->tokens -= units;
    return 1;
}

// The colour of a packet of `bytes` bytes that the meter counts as `units`.
static inline uint32_t sw_meter_mark(sw_meter *meter, uint64_t now_ns, uint64_t units, uint32_t bytes)
{
    const sw_meter_config *is = &meter->config;
    const uint64_t now = now_ns / 1000;
    uint32_t colour = SW_GREEN;
    if (is->configured) {
        if (!sw_bucket_take(&meter->peak, is->peak_rate, is->peak_burst, now, units))
            colour = SW_RED;
        else if (!sw_bucket_take(&meter->committed, is->committed_rate, is->committed_burst, now, units))
            colour = SW_YELLOW;
    }
    meter->marked[colour].packets++;
    meter->marked[colour].bytes += bytes;
    return colour;
}

// Buckets begin full.
static inline void sw_meter_configure(sw_meter *meter, const sw_meter_config *wanted)
{
    meter->config = *wanted;
    meter->committed = (sw_bucket){.tokens = wanted->committed_burst};
    meter->peak = (sw_bucket){.tokens = wanted->peak_burst};
}

#endif
