// SPDX-License-Identifier: Apache-2.0
// What the files of the loop and of the kinds of ports share: its state and theirs, and what each offers the others.
// The arrows between loop.c, serve.c, tap.c and together.c are all here; from outside, loop.h is the way in.
#ifndef SOFTP4_LOOP_STATE_H
#define SOFTP4_LOOP_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "capture.h"
#include "loop.h"
#include "ring.h"

enum {
    LOOP_PORTS = 512, // v1model port numbers have nine bits
    LOOP_BATCH = 64,  // frames of one port per round, and per hold of the switch's lock
    PORT_NAME = 64,
};

typedef struct port port;
typedef struct tap tap;           // tap.c
typedef struct gathered gathered; // together.c

// A kind of port. peek, release and flush are called by the loop's thread only, send by one thread at a time.
typedef struct {
    const uint8_t *(*peek)(port *p, uint32_t *len); // oldest frame, in place; NULL when there is none
    // The same behind `ahead` others; NULL for a kind whose frames do not stay while others are looked at.
    const uint8_t *(*peek_ahead)(port *p, uint32_t ahead, uint32_t *len);
    // About how many frames can be seen to wait, once peek has returned one; NULL for a kind that cannot tell.
    uint32_t (*waiting)(port *p);
    void (*release)(port *p);                                 // done with the frame that peek returned
    int (*send)(port *p, const uint8_t *frame, uint32_t len); // 0, or -1: no room
    void (*flush)(port *p);                                   // after a batch of sends
    int (*fd)(port *p);       // what to poll for input; -1: the loop's bell tells
    void (*refresh)(port *p); // brings drop counts kept elsewhere into stats
    void (*close)(port *p);   // frees p
} port_ops;

struct port {
    const port_ops *ops;
    uint32_t number;
    int up, dirty;
    int unsent;      // set by flush when the interface was busy: it must be called again soon
    uint32_t tapped; // directions that a capture wants
    int limited;     // `limits` hold for what the program sends here
    int paced;       // and for what comes in
    int held;        // a frame waits outside until `due`
    sw_queueing limits;
    sw_pace pace; // of what comes in
    uint64_t due;
    uint64_t gap; // nanoseconds from it to those behind it, at least
    port_stats stats;
    char name[PORT_NAME];
};

struct loop {
    sw_switch *sw;
    port *by_number[LOOP_PORTS];
    port *ports[LOOP_PORTS]; // the used ones, packed
    uint32_t count;
    gathered *gathered; // NULL until the switch takes many frames at a time
    tap *taps;
    uint64_t tap_time;     // of the frames that are being captured, since 1970
    uint64_t unknown_port; // frames that the program sent to a port that is not there
    uint64_t served;       // up to this program time
    uint32_t sent;         // frames to ports in this round, but those of loop_serve_together
    int more;              // this round left frames that were due
    uint64_t nap;          // nanoseconds between rounds, at least, while frames wait for their times
    uint64_t earned;       // the longest that it may be
    struct timespec epoch; // program time 0

    // Held by the loop while it works, by others while they change what it works on.
    pthread_mutex_t lock;
    pthread_cond_t resumed;
    atomic_uint waiting; // how many want the lock: the loop makes way
    atomic_int stop;
    int wake_fd; // eventfd: ends a poll

    // Shared-memory ports share one bell. With ports to poll besides, a helper turns its ring into wake_fd.
    char *shm_dir;
    sp4_bell *bell;
    uint32_t shm_ports;
    pthread_t helper;
    int helper_runs;
    atomic_uint armed; // futex: 1 while the helper is to wait for the bell
    uint32_t armed_seen;
};

// For the files of port kinds: take and give back the lock; the rest is called while holding it.
void loop_enter(loop *l);
void loop_leave(loop *l);
int loop_free_number(loop *l, uint32_t number); // 0, -ERANGE or -EEXIST
void loop_attach(loop *l, port *p);
port *loop_port(loop *l, uint32_t number);
void loop_close_bell(loop *l);

// Between loop.c, serve.c and tap.c, with the lock held.
void loop_tap_port(loop *l, port *p); // captures that want a new port
void loop_record(loop *l, port *p, const uint8_t *frame, uint32_t len, uint32_t direction);
void loop_flush_taps(loop *l);
void loop_close_taps(loop *l);
uint32_t loop_serve(loop *l); // a round; returns 0 when there was nothing to do
uint32_t loop_serve_port(loop *l, port *p, uint64_t now);
int loop_serve_together(loop *l, uint32_t *count, uint64_t now); // with several threads; -1: no memory for it
void loop_emit(void *l, uint32_t number, const uint8_t *frame, uint32_t len); // an sw_emit
uint64_t loop_wall_ns(void);
void loop_free_gathered(loop *l);
uint64_t loop_deadline(const loop *l); // when there is something to do though no frame comes in, or SW_NEVER
uint64_t loop_now(const loop *l);      // program time in nanoseconds
void loop_lift_limits(loop *l, port *p); // what waits for a port leaves at once

#endif
