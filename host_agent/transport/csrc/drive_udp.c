/* SPDX-License-Identifier: Apache-2.0 */
/* Carrier over a connected kernel UDP socket, many datagrams a system call. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "drive.h"

enum { BUFFER = WEIR_MAX_PAYLOAD + 1 }; /* one byte more: a datagram that is too long shows */

/* Room for the one control message we deal in: the traffic class. */
typedef union {
    struct cmsghdr header;
    uint8_t bytes[CMSG_SPACE(sizeof(int))];
} class_message;

typedef struct {
    weir_io io;
    int fd;
    int first, last; /* packets in `out` that the socket has not taken yet */
    struct mmsghdr in[WEIR_BATCH], out[WEIR_BATCH];
    struct iovec in_vector[WEIR_BATCH], out_vector[WEIR_BATCH];
    class_message in_class[WEIR_BATCH], out_class[WEIR_BATCH];
    uint8_t in_buffer[WEIR_BATCH][BUFFER], out_buffer[WEIR_BATCH][BUFFER];
} udp_io;

/* Errors that may pass, and say no more than that a packet was lost. */
static int is_loss(int error)
{
    switch (error) {
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case ENOBUFS:
    case EPERM: /* a firewall's */
        return 1;
    default:
        return 0;
    }
}

static int is_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/* DSCP << 2 | ECN that a datagram came with; 0 when the kernel does not say. */
static uint8_t received_class(struct msghdr *message)
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(message);
    return c && c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS ? *CMSG_DATA(c) : 0;
}

static int udp_receive(weir_io *io, weir_transport *t, int64_t now_ns)
{
    udp_io *udp = (udp_io *)io;
    int n = recvmmsg(udp->fd, udp->in, WEIR_BATCH, MSG_DONTWAIT, NULL);
    if (n < 0) {
        if (is_later(errno)) return 0;
        io->last_error = errno;
        return is_loss(errno) ? 0 : -errno;
    }
    for (int i = 0; i < n; i++) {
        struct msghdr *message = &udp->in[i].msg_hdr;
        weir_transport_receive(t, udp->in_buffer[i], udp->in[i].msg_len, received_class(message), now_ns);
        message->msg_controllen = sizeof udp->in_class[i].bytes; /* the kernel wrote what it used */
    }
    return n;
}

/* Send out[first..last). Returns how many left it, or -errno; those not taken stay for the next call. */
static int flush(udp_io *udp)
{
    int gone = 0;
    while (udp->first < udp->last) {
        int n = sendmmsg(udp->fd, udp->out + udp->first, (unsigned)(udp->last - udp->first), MSG_DONTWAIT);
        if (n < 0 && is_later(errno)) {
            udp->io.blocked = 1;
            return gone;
        }
        if (n < 0) {
            udp->io.last_error = errno;
            if (!is_loss(errno)) return -errno;
            n = 1;
        }
        udp->first += n;
        gone += n;
    }
    return gone;
}

static int udp_transmit(weir_io *io, weir_transport *t, int64_t now_ns)
{
    udp_io *udp = (udp_io *)io;
    int total = 0;
    io->blocked = 0;
    for (;;) {
        int n = flush(udp);
        if (n < 0) return n;
        total += n;
        if (io->blocked || !weir_transport_sendable(t, now_ns)) return total;
        udp->first = udp->last = 0;
        uint32_t length;
        uint8_t class;
        while (udp->last < WEIR_BATCH &&
               (length = weir_transport_send(t, now_ns, udp->out_buffer[udp->last], &class))) {
            int wide = class;
            memcpy(CMSG_DATA(&udp->out_class[udp->last].header), &wide, sizeof wide);
            udp->out_vector[udp->last++].iov_len = length;
        }
    }
}

static void udp_wait(weir_io *io, int64_t timeout_ns)
{
    udp_io *udp = (udp_io *)io;
    struct pollfd ready = {.fd = udp->fd, .events = (short)(io->blocked ? POLLIN | POLLOUT : POLLIN)};
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    ppoll(&ready, 1, &t, NULL);
}

static void udp_close(weir_io *io) { free(io); }

static struct msghdr message(struct iovec *vector, class_message *class)
{
    return (struct msghdr){.msg_iov = vector,
                           .msg_iovlen = 1,
                           .msg_control = class->bytes,
                           .msg_controllen = sizeof class->bytes};
}

/* Use a connected datagram socket, which stays the caller's to close. NULL with errno set. */
weir_io *weir_udp_open(int fd)
{
    static const int yes = 1;
    if (setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &yes, sizeof yes) < 0) return NULL;
    udp_io *udp = calloc(1, sizeof *udp);
    if (!udp) return NULL;
    udp->io =
        (weir_io){.receive = udp_receive, .transmit = udp_transmit, .wait = udp_wait, .close = udp_close};
    udp->fd = fd;
    for (int i = 0; i < WEIR_BATCH; i++) {
        udp->in_vector[i] = (struct iovec){udp->in_buffer[i], BUFFER};
        udp->out_vector[i] = (struct iovec){udp->out_buffer[i], 0};
        udp->in[i].msg_hdr = message(&udp->in_vector[i], &udp->in_class[i]);
        udp->out[i].msg_hdr = message(&udp->out_vector[i], &udp->out_class[i]);
        udp->out_class[i].header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TOS};
    }
    return &udp->io;
}
