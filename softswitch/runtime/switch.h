// SPDX-License-Identifier: Apache-2.0
// The C face of a soft switch: what a driver needs to push frames through it.
//
// A switch is made by Python (softswitch.switch.Switch), which hands its address to a driver
// (Switch.handle). Everything here goes through the switch's own operations table, so a driver may
// be compiled into any library.
//
// Threads: one lock per switch. sw_process does not take it; a driver holds it over a batch of
// frames, so that control-plane calls (which take it) fall between batches.
#ifndef WEIR_SOFTSWITCH_SWITCH_H
#define WEIR_SOFTSWITCH_SWITCH_H

#include <stdint.h>

enum { SW_MAX_FRAME = 2040 };  // longer frames are dropped and counted

typedef struct sw_switch sw_switch;

// Called once per frame that leaves the switch. `frame` is valid only during the call.
typedef void (*sw_emit)(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len);

typedef struct {
    uint64_t packets_in, packets_out, packets_dropped, bytes_in, bytes_out;
} sw_stats;

typedef struct {
    void (*process)(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_ns,
                    sw_emit emit, void *ctx);
    void (*lock)(sw_switch *sw);
    void (*unlock)(sw_switch *sw);
    void (*stats)(const sw_switch *sw, sw_stats *out);
} sw_ops;

struct sw_switch {
    const sw_ops *ops;  // private state follows
};

// Runs one frame that came in on `port` at `now_ns` (any monotonic origin; the program sees
// microseconds modulo 2^48) through the program; calls `emit` for every frame that leaves.
static inline void sw_process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len,
                              uint64_t now_ns, sw_emit emit, void *ctx) {
    sw->ops->process(sw, port, frame, len, now_ns, emit, ctx);
}

static inline void sw_lock(sw_switch *sw) { sw->ops->lock(sw); }
static inline void sw_unlock(sw_switch *sw) { sw->ops->unlock(sw); }
static inline void sw_get_stats(const sw_switch *sw, sw_stats *out) { sw->ops->stats(sw, out); }

#endif
