// SPDX-License-Identifier: Apache-2.0
// The C face of a soft switch: what a driver needs to push frames through it.
//
// A switch is made by Python (softp4.switch.Switch), which hands its address to a driver
// (Switch.handle). Everything here goes through the switch's own operations table, so a driver may
// be compiled into any library.
//
// Threads: one lock per switch. sw_process does not take it; a driver holds it over a batch of
// frames, so that control-plane calls (which take it) fall between batches.
#ifndef SOFTP4_SWITCH_H
#define SOFTP4_SWITCH_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SW_MAX_FRAME = 4216 }; // longer frames are dropped and counted

typedef struct sw_switch sw_switch;

// Called once per frame that leaves the switch. `frame` is valid only during the call.
typedef void (*sw_emit)(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len);

// The same when many frames are handed over at a time. Several threads may call it at once, each for another `part`
// of the frames, from 0 on, below SW_MOST_THREADS. `number`: of the frame that caused it, among those handed over;
// within a part it never becomes less.
typedef void (*sw_emit_many)(void *ctx, uint32_t part, uint32_t number, uint32_t port, const uint8_t *frame,
                             uint32_t len);

enum { SW_MOST_THREADS = 64 };

// A frame that came in on `port`.
typedef struct {
    const uint8_t *frame;
    uint32_t port, len;
} sw_frame;

typedef struct {
    uint64_t packets_in, packets_out, packets_dropped, bytes_in, bytes_out;
} sw_stats;

enum { SW_PRIORITIES = 8 }; // queues of a port: 7 is served first, 0 last
#define SW_NEVER UINT64_MAX

// What limits a port. Frames wait in its queues while it may not send.
typedef struct {
    uint64_t rate_bps;      // bits of frames, without preamble and gap; 0: no limit
    uint64_t rate_pps;      // packets taken from the queues; 0: no limit
    uint64_t burst_bytes;   // may leave back to back, ahead of rate_bps, after the port was idle
    uint64_t depth_packets; // of each queue
    uint64_t depth_bytes;   // of each queue; SW_NEVER: no limit
} sw_queueing;

typedef struct {
    uint64_t packets, bytes;             // sent
    uint64_t depth_packets, depth_bytes; // waiting now
    uint64_t dropped_packets, dropped_bytes;
    uint64_t overtaking_packets; // left before a packet of a lower priority that had come earlier
} sw_queue_stats;

// Does part `part`, from 0 on, of `parts` of a work.
typedef void (*sw_task)(void *arg, uint32_t part, uint32_t parts);

// The operations on queues are NULL in a switch that has none, the last two in one that works on one thread.
typedef struct {
    void (*process)(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len, uint64_t now_ns,
                    sw_emit emit, void *ctx);
    void (*lock)(sw_switch *sw);
    void (*unlock)(sw_switch *sw);
    void (*stats)(const sw_switch *sw, sw_stats *out);
    void (*step)(sw_switch *sw, uint64_t now_ns, sw_emit emit, void *ctx);
    uint64_t (*deadline)(const sw_switch *sw);
    int (*set_queueing)(sw_switch *sw, uint32_t port, const sw_queueing *wanted);
    void (*queue_stats)(sw_switch *sw, uint32_t port, sw_queue_stats *out);
    void (*process_many)(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns,
                         sw_emit_many emit, void *ctx);
    void (*together)(sw_switch *sw, sw_task task, void *arg);
} sw_ops;

struct sw_switch {
    const sw_ops *ops; // changes with what the switch has to do
    uint32_t threads;  // that may run frames; private state follows
};

static inline const sw_ops *sw_operations(const sw_switch *sw)
{
    return __atomic_load_n(&sw->ops, __ATOMIC_RELAXED);
}

// Runs one frame that came in on `port` at `now_ns` (any monotonic origin; the program sees
// microseconds modulo 2^48) through the program; calls `emit` for every frame that leaves: first those that
// waited in queues and were due by `now_ns`. `now_ns` must not go back.
static inline void sw_process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t len,
                              uint64_t now_ns, sw_emit emit, void *ctx)
{
    sw_operations(sw)->process(sw, port, frame, len, now_ns, emit, ctx);
}

typedef struct {
    sw_emit_many emit;
    void *ctx;
    uint32_t number;
} sw_one_by_one;

static inline void sw_emit_one_by_one(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
{
    const sw_one_by_one *one = (const sw_one_by_one *)ctx;
    one->emit(one->ctx, 0, one->number, port, frame, len);
}

// Whether it is worth while to hand over many frames at a time: several threads will share them.
static inline int sw_takes_many(const sw_switch *sw) { return sw_operations(sw)->process_many != NULL; }

// Runs frames, which stay where they are meanwhile. What each of them emits, and what the switch is like afterwards,
// is as if sw_process had been called for one after the other.
static inline void sw_process_many(sw_switch *sw, const sw_frame *frames, uint32_t count, uint64_t now_ns,
                                   sw_emit_many emit, void *ctx)
{
    if (sw_takes_many(sw)) {
        sw_operations(sw)->process_many(sw, frames, count, now_ns, emit, ctx);
        return;
    }
    sw_one_by_one one = {emit, ctx, 0};
    for (; one.number < count; one.number++)
        sw_process(sw, frames[one.number].port, frames[one.number].frame, frames[one.number].len, now_ns,
                   sw_emit_one_by_one, &one);
}

// Lets the threads do a task, in as many parts as there are threads; returns when all are done.
static inline void sw_together(sw_switch *sw, sw_task task, void *arg)
{
    if (sw_takes_many(sw))
        sw_operations(sw)->together(sw, task, arg);
    else
        task(arg, 0, 1);
}

// Sends what waits in queues and is due by `now_ns`, each frame with the time it was due as its time. Of packets
// that go round and multiply it does a part, so that the caller can let the lock go: then sw_deadline has passed.
static inline void sw_step(sw_switch *sw, uint64_t now_ns, sw_emit emit, void *ctx)
{
    if (sw_operations(sw)->step != NULL) sw_operations(sw)->step(sw, now_ns, emit, ctx);
}

// When the next frame that waits in a queue is due, or SW_NEVER. Needs no lock.
static inline uint64_t sw_deadline(const sw_switch *sw)
{
    return sw_operations(sw)->deadline == NULL ? SW_NEVER : sw_operations(sw)->deadline(sw);
}

// These two take the lock. Limits a port (below 512), or with NULL no longer; what waits stays, and leaves
// under the new limits. They count from the last time that the switch was told: call sw_step before.
// Returns 0, -ENOMEM, -ERANGE (no such port) or -EOPNOTSUPP (a switch without queues).
static inline int sw_set_queueing(sw_switch *sw, uint32_t port, const sw_queueing *wanted)
{
    return sw_operations(sw)->set_queueing == NULL ? -EOPNOTSUPP
                                                   : sw_operations(sw)->set_queueing(sw, port, wanted);
}
// One for each of SW_PRIORITIES queues; all zero for a port without limits.
static inline void sw_get_queue_stats(sw_switch *sw, uint32_t port, sw_queue_stats *out)
{
    memset(out, 0, SW_PRIORITIES * sizeof *out);
    if (sw_operations(sw)->queue_stats != NULL) sw_operations(sw)->queue_stats(sw, port, out);
}

static inline void sw_lock(sw_switch *sw) { sw_operations(sw)->lock(sw); }
static inline void sw_unlock(sw_switch *sw) { sw_operations(sw)->unlock(sw); }
static inline void sw_get_stats(const sw_switch *sw, sw_stats *out) { sw_operations(sw)->stats(sw, out); }

#endif
