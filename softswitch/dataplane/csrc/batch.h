// SPDX-License-Identifier: Apache-2.0
// Frames on their way into a socket: copied one by one, sent with one call.
#ifndef WEIR_SOFTSWITCH_BATCH_H
#define WEIR_SOFTSWITCH_BATCH_H

#include <sys/socket.h>

#include "loop.h"

enum { SEND_BATCH = 64 };

typedef struct {
    uint32_t queued;
    struct mmsghdr messages[SEND_BATCH];
    struct iovec vectors[SEND_BATCH];
    uint8_t frames[SEND_BATCH][SW_MAX_FRAME];
} send_batch;

void batch_init(send_batch *b);
int batch_add(send_batch *b, port *p, int fd, const uint8_t *frame, uint32_t len); // 0, or -1: too long
void batch_flush(send_batch *b, port *p, int fd);                                  // counts in p->stats

// Socket buffers as large as the system lets us have.
enum { SOCKET_BUFFER = 8 << 20 };
void grow_buffer(int fd, int forced_option, int option);

#endif
