/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams that others made and others will read, many a system call, over a UDP socket. Datagrams of one size that
 * follow one another are a batch, which the kernel segments (UDP_SEGMENT) and coalesces (UDP_GRO). */
#define _GNU_SOURCE
#include <stdlib.h>

#include "datagram_batches.h"
#include "datagrams.h"
#include "lanes.h"

enum {
    MESSAGES = WEIR_ARRIVING_BYTES / LONGEST_MESSAGE,
    BATCH_PACKETS = 58,
    MOST_BATCH = 65000,
    MOST_COALESCED = 64 /* datagrams that Linux puts into one message (UDP_GRO_CNT_MAX) */
};

/* Use a bound socket that does not block, which stays the caller's to close; `batches`: also its offloads, where the
 * kernel has them. NULL when out of memory. */
weir_datagrams *weir_datagrams_open(int fd, int batches)
{
    static const int yes = 1, none = 0;
    weir_datagrams *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->fd = fd;
    d->segments = batches && setsockopt(fd, SOL_UDP, UDP_SEGMENT, &none, sizeof none) == 0;
    if (batches) setsockopt(fd, SOL_UDP, UDP_GRO, &yes, sizeof yes); /* without, each comes by itself */
    return d;
}

void weir_datagrams_close(weir_datagrams *d) { free(d); }

static ssize_t send_batch(const weir_datagrams *d, const uint8_t *bytes, size_t length, uint32_t size,
                          struct sockaddr_in *to)
{
    struct iovec vector = {(void *)bytes, length};
    weir_control control;
    struct msghdr message = {.msg_name = to,
                             .msg_namelen = to ? sizeof *to : 0,
                             .msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes};
    const uint16_t segment = (uint16_t)size;
    if (length > size) weir_add_control(&message, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment);
    return sendmsg(d->fd, &message, MSG_DONTWAIT);
}

/* Send datagrams of `size` bytes, the last of which may be shorter, to an address and port (address << 16 | port), or
 * to where the socket is connected (0). Returns how many bytes of them are gone, or lost; the rest must wait until the socket has room. */
uint64_t weir_datagrams_send(weir_datagrams *d, const uint8_t *packets, uint64_t bytes, uint32_t size,
                             uint64_t to)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = WEIR_BE16((uint16_t)to),
                                  .sin_addr.s_addr = WEIR_BE32((uint32_t)(to >> 16))};
    const uint32_t fit = MOST_BATCH / size, most = fit < BATCH_PACKETS ? fit : BATCH_PACKETS;
    uint64_t gone = 0;
    while (gone < bytes) {
        const uint64_t batch = (uint64_t)size * (d->segments && most ? most : 1), left = bytes - gone;
        const size_t length = left < batch ? left : batch;
        if (send_batch(d, packets + gone, length, size, to ? &address : NULL) < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return gone;
            if (errno == EINTR) continue;
            if (!weir_is_loss(errno) && length > size) { /* this kernel, or this way, knows no batches */
                d->segments = 0;
                continue;
            }
        }
        gone += length;
    }
    return gone;
}

static uint32_t take_apart(struct msghdr *message, uint32_t length, uint32_t at, weir_arrival *arrivals)
{
    const struct sockaddr_in *from = message->msg_name;
    const uint64_t source = (uint64_t)WEIR_BE32(from->sin_addr.s_addr) << 16 | WEIR_BE16(from->sin_port);
    uint32_t size = length, found = 0;
    weir_read_control(message, &size);
    do {
        const uint32_t here = length < size ? length : size;
        arrivals[found++] = (weir_arrival){source, at, here};
        at += here;
        length -= here;
    } while (length && found < MOST_COALESCED);
    return found;
}

/* Put datagrams that came into `memory` of WEIR_ARRIVING_BYTES, and where each is into `arrivals`, of which there is
 * room for WEIR_MOST_ARRIVALS. Returns how many came; what the kernel says of lost ones does not matter. */
uint32_t weir_datagrams_receive(weir_datagrams *d, uint8_t *memory, weir_arrival *arrivals)
{
    struct mmsghdr in[MESSAGES];
    struct iovec vectors[MESSAGES];
    struct sockaddr_in sources[MESSAGES];
    weir_control controls[MESSAGES];
    for (uint32_t i = 0; i < MESSAGES; i++) {
        vectors[i] = (struct iovec){memory + (size_t)i * LONGEST_MESSAGE, LONGEST_MESSAGE};
        in[i].msg_hdr = (struct msghdr){.msg_name = &sources[i],
                                        .msg_namelen = sizeof sources[i],
                                        .msg_iov = &vectors[i],
                                        .msg_iovlen = 1,
                                        .msg_control = controls[i].bytes,
                                        .msg_controllen = sizeof controls[i].bytes};
    }
    uint32_t found = 0, taken = 0;
    while (taken < MESSAGES) { /* no more messages at once than there is room for, should all be coalesced */
        const uint32_t fit = (WEIR_MOST_ARRIVALS - found) / MOST_COALESCED, left = MESSAGES - taken;
        const uint32_t most = fit < left ? fit : left;
        if (!most) break;
        const int messages = recvmmsg(d->fd, in + taken, most, MSG_DONTWAIT, NULL);
        for (int i = 0; i < messages; i++, taken++)
            found +=
                take_apart(&in[taken].msg_hdr, in[taken].msg_len, taken * LONGEST_MESSAGE, arrivals + found);
        if (messages < (int)most) break;
    }
    return found;
}
