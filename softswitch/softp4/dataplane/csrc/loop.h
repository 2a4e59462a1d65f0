// SPDX-License-Identifier: Apache-2.0
// The switch's run loop: frames from ports through a program to ports, without Python.
//
// One thread runs loop_run. Every other function may be called from any thread while it runs; those that
// change ports or the program wait until the loop is between two rounds. Functions that can fail return
// 0 or a negative errno.
#ifndef SOFTP4_LOOP_H
#define SOFTP4_LOOP_H

#include <stdint.h>

#include "pace.h"
#include "switch.h"

typedef struct {
    uint64_t rx_packets, rx_bytes;
    uint64_t rx_drops;    // came in and went nowhere: ring full, port down, no program
    uint64_t rx_oversize; // longer than SW_MAX_FRAME, or an offloaded super-packet
    uint64_t tx_packets, tx_bytes;
    uint64_t tx_drops; // the program sent it here, but: ring or queue full, port or interface down
    uint64_t rx_batches,
        tx_batches; // frames of several packets that came in and were segmented, and that left
} port_stats;

typedef struct loop loop;

loop *loop_new(void);
void loop_free(loop *l);
int loop_run(loop *l);
void loop_stop(loop *l);
void loop_wake(loop *l);
int loop_set_switch(loop *l, sw_switch *sw);
int loop_remove(loop *l, uint32_t number);
int loop_set_up(loop *l, uint32_t number, int up);
int loop_get_stats(loop *l, uint32_t number, port_stats *out);
int loop_set_queueing(loop *l, uint32_t number, const sw_queueing *wanted, int both_ways);
int loop_get_queue_stats(loop *l, uint32_t number, sw_queue_stats *out);
uint64_t loop_unknown_port(loop *l);
int loop_start_capture(loop *l, const char *path, int pcapng, uint32_t count, const uint32_t *ports,
                       uint32_t directions);
int loop_stop_capture(loop *l, const char *path);
int loop_capture_error(loop *l, const char *path);
int loop_add_shm(loop *l, uint32_t number, const char *directory);
int loop_add_interface(loop *l, uint32_t number, const char *interface, int batches);
int loop_add_udp(loop *l, uint32_t number, const char *host, const char *service, const char *peer_host,
                 const char *peer_service, int batches);
int loop_add_claimed(loop *l, uint32_t number, const char *host, const char *service, const uint8_t *key,
                     int batches);
int loop_add_queue(loop *l, uint32_t number, const char *name, const char *output, int pcapng);
int loop_output_error(loop *l, uint32_t number);
int loop_inject(loop *l, uint32_t number, const uint8_t *frame, uint32_t len, int64_t timeout_ns);
int loop_receive(loop *l, uint32_t number, uint8_t *frame, uint32_t room, int64_t timeout_ns);
int loop_drain(loop *l, uint32_t number, int64_t timeout_ns);

#endif
