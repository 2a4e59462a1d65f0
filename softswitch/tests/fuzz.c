// SPDX-License-Identifier: Apache-2.0
// Random frames into one compiled program, to be built with sanitizers: fuzz SEED FRAMES PORT... < corpus
// The corpus is what frames are made from: lines of hexadecimal. Groups and sessions 0 to 15 lead to the ports,
// which are limited, in ever changing ways, in the second half of the run.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "meter.h"
#include "state.h"
#include "table.h"

sw_switch *swc_create(uint64_t, uint32_t);
void swc_destroy(sw_switch *);
int swc_set_group(sw_switch *, uint32_t, uint32_t, const sw_replica *);
void swc_set_meters(sw_switch *, uint32_t, uint64_t, uint64_t, const sw_meter_config *);
int swc_set_session(sw_switch *, uint32_t, uint32_t, const sw_replica *, uint32_t);

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) * below >> 31);
}

static uint64_t total;

// Reads every byte of a frame, so that an uninitialised or short one is noticed.
static void sink(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
{
    (void)ctx;
    total += port;
    for (uint32_t i = 0; i < len; i++) total += frame[i];
}

static void change_limits(sw_switch *sw, uint32_t port)
{
    const sw_queueing limits = {
        .rate_bps = draw(3) == 0 ? 0 : 1 + draw(1u << 30),
        .rate_pps = draw(3) == 0 ? 1 + draw(1u << 20) : 0,
        .burst_bytes = draw(2) == 0 ? draw(5000) : 0,
        .depth_packets = draw(70),
        .depth_bytes = draw(2) == 0 ? draw(20000) : SW_NEVER,
    };
    if (sw_set_queueing(sw, port, draw(5) == 0 ? NULL : &limits) != 0) abort();
}

int main(int count, char **args)
{
    static uint8_t corpus[64][SW_MAX_FRAME];
    uint32_t length[64], lines = 0;
    char text[2 * SW_MAX_FRAME + 2];
    while (lines < 64 && fgets(text, sizeof text, stdin) != NULL) {
        uint32_t n = (uint32_t)strspn(text, "0123456789abcdef") / 2;
        for (uint32_t i = 0; i < n; i++) sscanf(text + 2 * i, "%2hhx", &corpus[lines][i]);
        length[lines++] = n;
    }
    state = strtoull(args[1], NULL, 10);
    sw_switch *sw = swc_create(1, 1);
    sw_replica replicas[8];
    uint32_t ports = 0;
    for (int i = 3; i < count && ports < 8; i++, ports++)
        replicas[ports] = (sw_replica){(uint32_t)atoi(args[i]), ports};
    for (uint32_t i = 1; i < 16; i++) swc_set_group(sw, i, ports, replicas);
    for (uint32_t i = 0; i < 16; i++) swc_set_session(sw, i, i % 2 ? 1 : ports, replicas, i == 3 ? 9 : 0);
    const sw_meter_config meter = {1, 1000, 1500, 1ull << 62, 3000};
    for (uint32_t i = 0; i < sw_generated.meters; i++)
        swc_set_meters(sw, i, 0, sw_generated.meter[i].size, &meter);
    uint64_t now = 0;
    const long all = atol(args[2]);
    for (long frames = all; frames > 0; frames--) {
        now += draw(draw(2) == 0 ? 1000 : 100000);
        if (2 * frames < all && draw(50) == 0)
            change_limits(sw, draw(4) == 0 ? draw(512) : replicas[draw(ports)].port);
        if (draw(4) == 0) sw_step(sw, now, sink, NULL);
        uint32_t line = draw(lines), n = length[line];
        uint32_t extra = draw(4) == 0 ? draw(SW_MAX_FRAME + 8 - n) : draw(8);
        uint32_t len = draw(3) == 0 ? draw(n + 1) : n + extra;
        uint8_t *frame = malloc(len == 0 ? 1 : len); // exactly as long: one byte more is an error
        for (uint32_t i = 0; i < len; i++) frame[i] = i < n ? corpus[line][i] : (uint8_t)draw(256);
        for (uint32_t k = draw(4); k > 0 && len > 0; k--) frame[draw(len)] = (uint8_t)draw(256);
        sw_process(sw, draw(512), frame, len, now, sink, NULL);
        free(frame);
    }
    sw_queue_stats stats[SW_PRIORITIES];
    for (uint32_t port = 0; port < 512; port++) {
        sw_get_queue_stats(sw, port, stats);
        for (uint32_t i = 0; i < SW_PRIORITIES; i++) total += stats[i].packets + stats[i].dropped_packets;
    }
    swc_destroy(sw); // with what still waits
    printf("%llu\n", (unsigned long long)total);
    return 0;
}
