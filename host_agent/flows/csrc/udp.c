/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams of one size and class to one peer that follow one another are a batch: the kernel takes them in one
 * piece (UDP_SEGMENT) and segments it where a link wants single packets, and hands in one piece what came together
 * (UDP_GRO). What it does not take counts as lost: the sender's timer knows what to do. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdlib.h>
#include <time.h>

#include "datagrams.h"
#include "udp.h"

enum { BATCH = 32, LONGEST = 65536 };

typedef struct {
    uint32_t packets, size;
    uint8_t class;
    uint64_t peer;
} gso_batch;

struct weir_flow_udp {
    int fd, segments; /* whether the kernel segments batches that we send */
    uint64_t lost;
    gso_batch batches[BATCH];
    struct mmsghdr in[BATCH], out[BATCH];
    struct iovec in_vector[BATCH], out_vector[BATCH];
    struct sockaddr_in in_address[BATCH], out_address[BATCH];
    weir_control in_control[BATCH], out_control[BATCH];
    uint8_t out_buffer[BATCH * FLOW_MAX_PACKET];
    uint8_t in_buffer[BATCH * LONGEST];
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int is_full(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

/* -------------------------------------------------------------------------------------------- sending */

/* Put a packet at `payload` behind the last batch, or begin another. Returns how many batches there are. */
static uint32_t append(weir_flow_udp *u, uint32_t last, uint8_t *payload, uint32_t length, uint8_t class,
                       uint64_t peer)
{
    if (last && u->segments) {
        gso_batch *at = &u->batches[last - 1];
        struct iovec *vector = &u->out_vector[last - 1];
        if (at->class == class && at->peer == peer && length <= at->size &&
            vector->iov_len == (size_t)at->packets * at->size) {
            const uint16_t size = (uint16_t)at->size;
            if (at->packets++ == 1)
                weir_add_control(&u->out[last - 1].msg_hdr, SOL_UDP, UDP_SEGMENT, &size, sizeof size);
            vector->iov_len += length;
            return last;
        }
    }
    const int wide = class;
    u->batches[last] = (gso_batch){1, length, class, peer};
    u->out_vector[last] = (struct iovec){payload, length};
    u->out_address[last] = (struct sockaddr_in){.sin_family = AF_INET,
                                                .sin_port = WEIR_BE16((uint16_t)peer),
                                                .sin_addr.s_addr = WEIR_BE32((uint32_t)(peer >> 16))};
    struct msghdr *message = &u->out[last].msg_hdr;
    *message = (struct msghdr){.msg_name = &u->out_address[last],
                               .msg_namelen = sizeof u->out_address[last],
                               .msg_iov = &u->out_vector[last],
                               .msg_iovlen = 1,
                               .msg_control = u->out_control[last].bytes};
    weir_add_control(message, IPPROTO_IP, IP_TOS, &wide, sizeof wide);
    return last + 1;
}

/* Send a batch's packets one by one. 0, or -1 with errno set. */
static int send_singly(weir_flow_udp *u, uint32_t at)
{
    struct msghdr message = u->out[at].msg_hdr;
    struct iovec whole = u->out_vector[at], piece;
    message.msg_iov = &piece;
    message.msg_controllen = CMSG_SPACE(sizeof(int)); /* the class alone */
    while (whole.iov_len) {
        piece = (struct iovec){whole.iov_base,
                               whole.iov_len < u->batches[at].size ? whole.iov_len : u->batches[at].size};
        if (sendmsg(u->fd, &message, 0) < 0) {
            if (!weir_is_loss(errno) && !is_full(errno)) return -1;
            u->lost++;
        }
        whole.iov_base = (uint8_t *)whole.iov_base + piece.iov_len;
        whole.iov_len -= piece.iov_len;
    }
    return 0;
}

static void wait_for_room(const weir_flow_udp *u)
{
    struct pollfd ready = {.fd = u->fd, .events = POLLOUT};
    poll(&ready, 1, 1);
}

/* Send batches[0..last). 0, or -errno. */
static int flush(weir_flow_udp *u, uint32_t last)
{
    for (uint32_t first = 0; first < last;) {
        const int n = sendmmsg(u->fd, u->out + first, last - first, 0);
        if (n > 0) {
            first += (uint32_t)n;
            continue;
        }
        if (errno == EINTR) continue;
        if (is_full(errno)) {
            u->lost += u->batches[first++].packets;
            wait_for_room(u);
        } else if (weir_is_loss(errno)) {
            u->lost += u->batches[first++].packets;
        } else if (u->batches[first].packets > 1) { /* this kernel, or this way, knows no batches */
            u->segments = 0;
            if (send_singly(u, first++) < 0) return -errno;
        } else {
            return -errno;
        }
    }
    return 0;
}

int weir_flow_udp_send(weir_flow_udp *u, weir_flow_mux *m, uint32_t most)
{
    uint32_t packets = 0, batches = 0;
    const int64_t now = now_ns();
    for (uint8_t *at = u->out_buffer; packets < most && packets < BATCH; packets++) {
        uint8_t class;
        uint64_t peer;
        const uint32_t length = weir_flow_mux_next(m, now, at, &class, &peer);
        if (!length) break;
        batches = append(u, batches, at, length, class, peer);
        at += length;
    }
    const int failed = flush(u, batches);
    return failed ? failed : (int)packets;
}

/* ------------------------------------------------------------------------------------------ receiving */

/* Hand in the datagrams of a message. Returns how many there were. */
static int take_apart(weir_flow_mux *m, struct msghdr *message, uint32_t length, int64_t now)
{
    const struct sockaddr_in *from = message->msg_name;
    const uint64_t peer = (uint64_t)WEIR_BE32(from->sin_addr.s_addr) << 16 | WEIR_BE16(from->sin_port);
    uint32_t size = length;
    const uint8_t class = weir_read_control(message, &size);
    const uint8_t *at = message->msg_iov->iov_base;
    int packets = 0;
    do {
        const uint32_t here = length < size ? length : size;
        weir_flow_mux_receive(m, at, here, now, class, peer);
        at += here;
        length -= here;
        packets++;
    } while (length);
    return packets;
}

int weir_flow_udp_receive(weir_flow_udp *u, weir_flow_mux *m, int wake_fd, int64_t most_ns)
{
    const int64_t now = now_ns(), deadline = weir_flow_mux_deadline(m);
    int64_t wait = weir_flow_mux_urgency(m, now) >= 0 || deadline <= now ? 0 : deadline - now;
    if (wait > most_ns) wait = most_ns;
    struct pollfd ready[] = {{.fd = u->fd, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    const struct timespec t = {wait / 1000000000, wait % 1000000000};
    if (ppoll(ready, 2, &t, NULL) < 0) return errno == EINTR ? 0 : -errno;
    if (!ready[0].revents) return 0;
    for (uint32_t i = 0; i < BATCH; i++) {
        u->in[i].msg_hdr.msg_namelen = sizeof u->in_address[i];
        u->in[i].msg_hdr.msg_controllen = sizeof u->in_control[i].bytes;
    }
    const int n = recvmmsg(u->fd, u->in, BATCH, MSG_DONTWAIT, NULL);
    if (n < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
        if (!weir_is_loss(errno)) return -errno;
        u->lost++;
        return 0;
    }
    const int64_t then = now_ns();
    int packets = 0;
    for (int i = 0; i < n; i++) packets += take_apart(m, &u->in[i].msg_hdr, u->in[i].msg_len, then);
    return packets;
}

/* ------------------------------------------------------------------------------------------------ life */

uint64_t weir_flow_udp_lost(const weir_flow_udp *u) { return u->lost; }

weir_flow_udp *weir_flow_udp_open(int fd, int batches)
{
    static const int yes = 1, none = 0;
    if (setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &yes, sizeof yes) < 0) return NULL;
    weir_flow_udp *u = calloc(1, sizeof *u);
    if (!u) return NULL;
    u->fd = fd;
    u->segments = batches && setsockopt(fd, SOL_UDP, UDP_SEGMENT, &none, sizeof none) == 0;
    if (batches) setsockopt(fd, SOL_UDP, UDP_GRO, &yes, sizeof yes); /* without, each comes by itself */

    for (uint32_t i = 0; i < BATCH; i++) {
        u->in_vector[i] = (struct iovec){u->in_buffer + (size_t)i * LONGEST, LONGEST};
        u->in[i].msg_hdr = (struct msghdr){.msg_name = &u->in_address[i],
                                           .msg_iov = &u->in_vector[i],
                                           .msg_iovlen = 1,
                                           .msg_control = u->in_control[i].bytes};
    }
    return u;
}

void weir_flow_udp_close(weir_flow_udp *u) { free(u); }
