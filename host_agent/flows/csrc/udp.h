/* SPDX-License-Identifier: Apache-2.0 */
/* Carries a mux's packets over one kernel UDP socket, many a system call. */
#ifndef WEIR_FLOW_UDP_H
#define WEIR_FLOW_UDP_H

#include "mux.h"

typedef struct weir_flow_udp weir_flow_udp;

/* Use a bound non-blocking socket, which stays the caller's to close; `batches`: also its offloads, where the kernel
 * has them. NULL with errno set. */
weir_flow_udp *weir_flow_udp_open(int fd, int batches);
void weir_flow_udp_close(weir_flow_udp *u);

/* Send what the mux has, `most` packets at most. Returns how many, or -errno. */
int weir_flow_udp_send(weir_flow_udp *u, weir_flow_mux *m, uint32_t most);

/* Wait until something arrives here or at `wake_fd`, or there is something to send, for `most_ns` at most, and hand
 * in what is there. Returns how many packets, or -errno. */
int weir_flow_udp_receive(weir_flow_udp *u, weir_flow_mux *m, int wake_fd, int64_t most_ns);

/* Packets that the kernel could not send just then, or was told could not be delivered. */
uint64_t weir_flow_udp_lost(const weir_flow_udp *u);

#endif
