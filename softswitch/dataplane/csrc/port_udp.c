// SPDX-License-Identifier: Apache-2.0
// Ports that are one end of a UDP tunnel: every frame is the payload of one datagram, as it is. So switches
// can be linked without root, on one machine or several. What others than the peer send is not received.
#define _GNU_SOURCE
#include <linux/sock_diag.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

#include "batch.h"

enum { RECEIVE_BATCH = 64 };

typedef struct {
    port base;
    int fd;
    uint32_t next, filled; // of what the last call received
    uint64_t kernel_drops;
    struct mmsghdr messages[RECEIVE_BATCH];
    struct iovec vectors[RECEIVE_BATCH];
    uint8_t frames[RECEIVE_BATCH][SW_MAX_FRAME];
    send_batch out;
} udp_port;

static const uint8_t *udp_peek(port *base, uint32_t *len)
{
    udp_port *p = (udp_port *)base;
    for (;;) {
        if (p->next == p->filled) {
            int n = recvmmsg(p->fd, p->messages, RECEIVE_BATCH, MSG_DONTWAIT, NULL);
            if (n < 0 && (errno == EINTR || errno == ECONNREFUSED))
                continue; // the second: nobody there when we last sent; said once
            p->next = 0;
            p->filled = n > 0 ? (uint32_t)n : 0;
            if (p->filled == 0) return NULL;
        }
        const struct mmsghdr *message = &p->messages[p->next];
        if (!(message->msg_hdr.msg_flags & MSG_TRUNC)) {
            *len = message->msg_len;
            return p->frames[p->next];
        }
        base->stats.rx_oversize++;
        p->next++;
    }
}

static void udp_release(port *base) { ((udp_port *)base)->next++; }

static int udp_send(port *base, const uint8_t *frame, uint32_t len)
{
    udp_port *p = (udp_port *)base;
    return batch_add(&p->out, base, p->fd, frame, len);
}

static void udp_flush(port *base)
{
    udp_port *p = (udp_port *)base;
    batch_flush(&p->out, base, p->fd);
}

static int udp_fd(port *base) { return ((udp_port *)base)->fd; }

static void udp_refresh(port *base)
{
    udp_port *p = (udp_port *)base;
    uint32_t memory[SK_MEMINFO_VARS];
    socklen_t size = sizeof memory;
    if (getsockopt(p->fd, SOL_SOCKET, SO_MEMINFO, memory, &size) != 0) return;
    base->stats.rx_drops += memory[SK_MEMINFO_DROPS] - p->kernel_drops;
    p->kernel_drops = memory[SK_MEMINFO_DROPS];
}

static void udp_close(port *base)
{
    udp_port *p = (udp_port *)base;
    if (p->fd >= 0) close(p->fd);
    free(p);
}

static const port_ops UDP_OPS = {.peek = udp_peek,
                                 .release = udp_release,
                                 .send = udp_send,
                                 .flush = udp_flush,
                                 .fd = udp_fd,
                                 .refresh = udp_refresh,
                                 .close = udp_close};

// An address in numbers: 0 or a negative errno.
static int find_address(const char *host, const char *service, struct addrinfo **found)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    return getaddrinfo(host, service, &hints, found) == 0 ? 0 : -EINVAL;
}

static int open_tunnel(udp_port *p, const struct addrinfo *local, const struct addrinfo *peer)
{
    p->fd = socket(local->ai_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->fd < 0) return -errno;
    grow_buffer(p->fd, SO_RCVBUFFORCE, SO_RCVBUF);
    grow_buffer(p->fd, SO_SNDBUFFORCE, SO_SNDBUF);
    if (bind(p->fd, local->ai_addr, local->ai_addrlen) != 0 ||
        connect(p->fd, peer->ai_addr, peer->ai_addrlen) != 0)
        return -errno;
    char stranger;
    while (recv(p->fd, &stranger, 1, 0) >= 0) {
        // anybody could send until there was a peer
    }
    return 0;
}

// The local address and the peer's, in numbers.
int loop_add_udp(loop *l, uint32_t number, const char *host, const char *service, const char *peer_host,
                 const char *peer_service)
{
    udp_port *p = calloc(1, sizeof *p);
    if (!p) return -ENOMEM;
    p->base.ops = &UDP_OPS;
    p->base.number = number;
    p->fd = -1;
    batch_init(&p->out);
    for (uint32_t i = 0; i < RECEIVE_BATCH; i++) {
        p->vectors[i] = (struct iovec){p->frames[i], SW_MAX_FRAME};
        p->messages[i].msg_hdr = (struct msghdr){.msg_iov = &p->vectors[i], .msg_iovlen = 1};
    }
    snprintf(p->base.name, sizeof p->base.name, "port %u (udp)", number);
    struct addrinfo *local = NULL, *peer = NULL;
    int result = find_address(host, service, &local);
    if (result == 0) result = find_address(peer_host, peer_service, &peer);
    if (result == 0) result = open_tunnel(p, local, peer);
    if (local) freeaddrinfo(local);
    if (peer) freeaddrinfo(peer);
    loop_enter(l);
    if (result == 0) result = loop_free_number(l, number);
    if (result == 0) loop_attach(l, &p->base);
    loop_leave(l);
    if (result) udp_close(&p->base);
    return result;
}
