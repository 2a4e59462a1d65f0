// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "batch.h"

void batch_init(send_batch *b)
{
    for (uint32_t i = 0; i < SEND_BATCH; i++) {
        b->vectors[i].iov_base = b->frames[i];
        b->messages[i].msg_hdr = (struct msghdr){.msg_iov = &b->vectors[i], .msg_iovlen = 1};
    }
}

void batch_flush(send_batch *b, port *p, int fd)
{
    uint32_t done = 0, refused = 0;
    while (done < b->queued) {
        int n = sendmmsg(fd, b->messages + done, b->queued - done, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == ECONNREFUSED && !refused++)
            continue; // said of an earlier datagram, which found nobody; this one has not been tried
        if (n <= 0) { // the frame at `done`: queue full, interface down, longer than the MTU
            p->stats.tx_drops++;
            done++;
            continue;
        }
        for (int i = 0; i < n; i++) p->stats.tx_bytes += b->vectors[done + (uint32_t)i].iov_len;
        p->stats.tx_packets += (uint32_t)n;
        done += (uint32_t)n;
        refused = 0;
    }
    b->queued = 0;
}

int batch_add(send_batch *b, port *p, int fd, const uint8_t *frame, uint32_t len)
{
    if (len > SW_MAX_FRAME) return -1;
    if (b->queued == SEND_BATCH) batch_flush(b, p, fd);
    memcpy(b->frames[b->queued], frame, len);
    b->vectors[b->queued++].iov_len = len;
    return 0;
}

void grow_buffer(int fd, int forced_option, int option)
{
    const int size = SOCKET_BUFFER;
    if (setsockopt(fd, SOL_SOCKET, forced_option, &size, sizeof size) != 0)
        setsockopt(fd, SOL_SOCKET, option, &size, sizeof size); // without CAP_NET_ADMIN: what one may have
}
