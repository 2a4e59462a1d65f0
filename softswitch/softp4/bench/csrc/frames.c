// SPDX-License-Identifier: Apache-2.0
// Frames handed straight to a switch.
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

#include "switch.h"

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void count(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
{
    (void)port, (void)frame, (void)len;
    ++*(uint64_t *)ctx;
}

/* `count` frames of `len` bytes each, handed to a switch one by one, `passes` times over. Returns nanoseconds;
 * `*sent` is the number of frames the switch sent. */
uint64_t bench_frames(sw_switch *sw, const uint8_t *frames, uint32_t len, uint32_t frames_count,
                      uint32_t passes, uint64_t *sent)
{
    *sent = 0;
    uint64_t start = now_ns();
    for (uint32_t pass = 0; pass < passes; pass++)
        for (uint32_t i = 0; i < frames_count; i++)
            sw_process(sw, 1, frames + (size_t)i * len, len, start, count, sent);
    return now_ns() - start;
}
