/* SPDX-License-Identifier: Apache-2.0 */
/* Carrier over a connected kernel UDP socket, many datagrams a system call: of payloads to the aggregation address, or
 * of frames, through a tunnel to a switch's port.
 *
 * Datagrams of one size and class that follow one another are a batch: the kernel takes them in one piece
 * (UDP_SEGMENT) and segments it where a link wants single packets, and hands in one piece what came together
 * (UDP_GRO). A kernel that has neither gets and gives them one by one. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdlib.h>

#include "datagrams.h"
#include "drive.h"
#include "tunnel.h"

enum {
    MOST_BYTES = WEIR_FRAME_OVERHEAD + WEIR_MAX_PAYLOAD,
    SINGLE_BYTES = MOST_BYTES + 1, /* one byte more: a datagram that is too long shows */
    BATCH_BYTES = 65507,           /* the longest payload of UDP over IPv4 */
    BATCH_PACKETS = 64,            /* UDP_MAX_SEGMENTS, in every kernel that has it */
    BATCHES_IN = 16,               /* taken in before answers go out */
    BATCHES_OUT = 2,               /* written before they are sent */
    CHARGED =
        4608, /* of the receive buffer, by the kernel for a packet at most: a page and what describes it */
};

/* A message to be sent: one datagram, or several of this size, the last of which may be shorter. */
typedef struct {
    uint32_t packets, size;
    uint8_t class;
} gso_batch;

typedef struct {
    weir_io io;
    int fd;
    weir_tunnel *tunnel;           /* NULL: none */
    int class_level, class_option; /* how the kernel is told of traffic classes */
    int segments;                  /* whether the kernel segments batches that we send */
    uint32_t most_in;              /* messages taken in at once */
    uint32_t first, last;          /* messages in `out` that the socket has not taken yet */
    uint32_t written;              /* bytes of out_buffer */
    gso_batch batches[WEIR_BATCH];
    struct mmsghdr in[WEIR_BATCH], out[WEIR_BATCH];
    struct iovec in_vector[WEIR_BATCH], out_vector[WEIR_BATCH];
    weir_control in_control[WEIR_BATCH], out_control[WEIR_BATCH];
    uint8_t in_buffer[BATCHES_IN * (BATCH_BYTES + 1)], out_buffer[BATCHES_OUT * BATCH_BYTES];
} udp_io;

/* ------------------------------------------------------------------------------------------ receiving */

static void take_frame(udp_io *udp, weir_transport *t, const uint8_t *frame, uint32_t length, uint8_t class,
                       int64_t now_ns)
{
    weir_tunnel *tunnel = udp->tunnel;
    tunnel->heard_ns = now_ns;
    if (sp4_is_claim(frame, length)) {
        weir_claim_hear(tunnel, udp->fd, frame);
        return;
    }
    const int32_t payload = weir_frame_payload(frame, length, &tunnel->addresses);
    if (payload < 0)
        weir_transport_refuse(t, WEIR_NOT_OURS);
    else
        weir_transport_receive(t, frame + WEIR_FRAME_OVERHEAD, (uint32_t)payload,
                               weir_tunnel_class(frame, class), now_ns);
}

/* Hand in the datagrams of a message. Returns how many there were. */
static int take_apart(udp_io *udp, weir_transport *t, struct msghdr *message, uint32_t length, int64_t now_ns)
{
    const uint8_t *at = message->msg_iov->iov_base;
    uint32_t size = length;
    uint8_t class = weir_read_control(message, &size);
    if (length > size) weir_transport_batch(t, 0);
    int packets = 0;
    do {
        uint32_t here = length < size ? length : size;
        if (udp->tunnel)
            take_frame(udp, t, at, here, class, now_ns);
        else
            weir_transport_receive(t, at, here, class, now_ns);
        at += here;
        length -= here;
        packets++;
    } while (length);
    return packets;
}

static int udp_receive(weir_io *io, weir_transport *t, int64_t now_ns)
{
    udp_io *udp = (udp_io *)io;
    int n = recvmmsg(udp->fd, udp->in, udp->most_in, MSG_DONTWAIT, NULL);
    io->drained = n >= 0 && n < (int)udp->most_in;
    if (n < 0) {
        if (weir_is_later(errno)) return 0;
        io->last_error = errno;
        return weir_is_loss(errno) ? 0 : -errno;
    }
    int packets = 0;
    for (int i = 0; i < n; i++) {
        struct msghdr *message = &udp->in[i].msg_hdr;
        packets += take_apart(udp, t, message, udp->in[i].msg_len, now_ns);
        message->msg_controllen = sizeof udp->in_control[i].bytes; /* the kernel wrote what it used */
    }
    return packets;
}

/* -------------------------------------------------------------------------------------------- sending */

static int is_full(const udp_io *udp, const gso_batch *of, uint32_t bytes)
{
    return !udp->segments || of->packets == BATCH_PACKETS || bytes + of->size > BATCH_BYTES;
}

/* Put a datagram that was written at the end of out_buffer into the last batch, or begin another. */
static void append(udp_io *udp, uint32_t length, uint8_t class)
{
    gso_batch *at = &udp->batches[udp->last - 1];
    struct iovec *vector = &udp->out_vector[udp->last - 1];
    struct msghdr *message = &udp->out[udp->last - 1].msg_hdr;
    udp->written += length;
    if (udp->last && class == at->class && length <= at->size && vector->iov_len == at->packets * at->size &&
        !is_full(udp, at, (uint32_t)vector->iov_len)) {
        uint16_t size = (uint16_t)at->size;
        if (at->packets++ == 1) weir_add_control(message, SOL_UDP, UDP_SEGMENT, &size, sizeof size);
        vector->iov_len += length;
        return;
    }
    int wide = class;
    udp->batches[udp->last] = (gso_batch){1, length, class};
    udp->out_vector[udp->last] = (struct iovec){udp->out_buffer + udp->written - length, length};
    message = &udp->out[udp->last++].msg_hdr;
    message->msg_controllen = 0;
    weir_add_control(message, udp->class_level, udp->class_option, &wide, sizeof wide);
}

/* Whether another datagram may be written. Not if it would begin a batch that has to end early. */
static int has_room(const udp_io *udp)
{
    uint32_t room = (uint32_t)sizeof udp->out_buffer - udp->written, last = udp->last - 1;
    if (!udp->last) return 1;
    return udp->last < WEIR_BATCH && room >= MOST_BYTES &&
           (room >= BATCH_BYTES ||
            !is_full(udp, &udp->batches[last], (uint32_t)udp->out_vector[last].iov_len));
}

static void load(udp_io *udp, weir_transport *t, int64_t now_ns)
{
    const uint32_t headers = udp->tunnel ? WEIR_FRAME_OVERHEAD : 0;
    uint32_t length;
    uint8_t class;
    udp->first = udp->last = udp->written = 0;
    while (has_room(udp)) {
        uint8_t *at = udp->out_buffer + udp->written;
        if (!(length = weir_transport_send(t, now_ns, at + headers, &class))) return;
        if (headers) weir_frame_header(at, &udp->tunnel->addresses, length, class);
        append(udp, headers + length, class);
    }
}

/* Send the first datagram of a batch that the kernel does not segment. Returns whether it was the last, or -1. */
static int send_piece(udp_io *udp)
{
    gso_batch *at = &udp->batches[udp->first];
    struct iovec *whole = &udp->out_vector[udp->first], piece = {whole->iov_base, at->size};
    struct msghdr message = udp->out[udp->first].msg_hdr;
    if (whole->iov_len < piece.iov_len) piece.iov_len = whole->iov_len;
    message.msg_iov = &piece;
    message.msg_controllen = CMSG_SPACE(sizeof(int)); /* the class alone */
    ssize_t sent = sendmsg(udp->fd, &message, MSG_DONTWAIT);
    int last = piece.iov_len == whole->iov_len;
    if (sent < 0 && !weir_is_loss(errno)) return -1;
    if (sent < 0) udp->io.last_error = errno;
    whole->iov_base = (uint8_t *)whole->iov_base + piece.iov_len;
    whole->iov_len -= piece.iov_len;
    return last;
}

/* Whether an error means that this kernel, or the way that the datagrams take, knows no batches. */
static int is_refusal(const udp_io *udp, int error)
{
    return udp->segments && udp->batches[udp->first].packets > 1 && !weir_is_loss(error) &&
           !weir_is_later(error);
}

/* Send out[first..last). Returns how many calls did so, or -errno; what is not taken stays for the next call. */
static int flush(udp_io *udp, weir_transport *t)
{
    int gone = 0;
    while (udp->first < udp->last) {
        int whole = udp->segments || udp->batches[udp->first].packets == 1;
        int n = whole ? sendmmsg(udp->fd, udp->out + udp->first, udp->last - udp->first, MSG_DONTWAIT)
                      : send_piece(udp);
        if (n < 0 && weir_is_later(errno)) {
            udp->io.blocked = 1;
            return gone;
        }
        if (n < 0 && is_refusal(udp, errno)) {
            udp->segments = 0;
            continue;
        }
        if (n < 0) {
            udp->io.last_error = errno;
            if (!weir_is_loss(errno)) return -errno;
            n = 1;
        }
        for (gone++; n; n--)
            if (udp->batches[udp->first++].packets > 1 && whole) weir_transport_batch(t, 1);
    }
    return gone;
}

static int udp_transmit(weir_io *io, weir_transport *t, int64_t now_ns)
{
    udp_io *udp = (udp_io *)io;
    int total = 0;
    io->blocked = 0;
    if (udp->tunnel && weir_claim_is_due(udp->tunnel, now_ns)) weir_claim_ask(udp->tunnel, udp->fd, now_ns);
    for (;;) {
        int n = flush(udp, t);
        if (n < 0) return n;
        total += n;
        if (io->blocked || !weir_transport_sendable(t, now_ns)) return total;
        load(udp, t, now_ns);
    }
}

/* ------------------------------------------------------------------------------------------------ life */

static void udp_wait(weir_io *io, int64_t timeout_ns)
{
    udp_io *udp = (udp_io *)io;
    struct pollfd ready = {.fd = udp->fd, .events = (short)(io->blocked ? POLLIN | POLLOUT : POLLIN)};
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    ppoll(&ready, 1, &t, NULL);
}

static void udp_close(weir_io *io)
{
    free(((udp_io *)io)->tunnel);
    free(io);
}

static struct msghdr message(struct iovec *vector, weir_control *about)
{
    return (struct msghdr){.msg_iov = vector,
                           .msg_iovlen = 1,
                           .msg_control = about->bytes,
                           .msg_controllen = sizeof about->bytes};
}

/* Have the kernel say, and be told, of traffic classes: of IPv6 in other words than of IPv4. */
static int use_classes(udp_io *udp)
{
    static const int yes = 1;
    struct sockaddr_storage own;
    socklen_t size = sizeof own;
    if (getsockname(udp->fd, (struct sockaddr *)&own, &size) < 0) return -1;
    const int six = own.ss_family == AF_INET6;
    udp->class_level = six ? IPPROTO_IPV6 : IPPROTO_IP;
    udp->class_option = six ? IPV6_TCLASS : IP_TOS;
    return setsockopt(udp->fd, udp->class_level, six ? IPV6_RECVTCLASS : IP_RECVTOS, &yes, sizeof yes);
}

static void use_offloads(udp_io *udp, int batches)
{
    static const int yes = 1, none = 0;
    udp->segments = batches && setsockopt(udp->fd, SOL_UDP, UDP_SEGMENT, &none, sizeof none) == 0;
    const int gathers = batches && setsockopt(udp->fd, SOL_UDP, UDP_GRO, &yes, sizeof yes) == 0;
    udp->most_in = gathers ? BATCHES_IN : WEIR_BATCH;
    const size_t bytes = gathers ? BATCH_BYTES + 1 : SINGLE_BYTES;
    for (uint32_t i = 0; i < WEIR_BATCH; i++) {
        if (i < udp->most_in) udp->in_vector[i] = (struct iovec){udp->in_buffer + i * bytes, bytes};
        udp->in[i].msg_hdr = message(&udp->in_vector[i], &udp->in_control[i]);
        udp->out[i].msg_hdr = message(&udp->out_vector[i], &udp->out_control[i]);
    }
}

/* Use a connected datagram socket, which stays the caller's to close; `batches`: also its offloads, where the
 * kernel has them. NULL with errno set. */
weir_io *weir_udp_open(int fd, int batches)
{
    int buffer;
    socklen_t size = sizeof buffer;
    udp_io *udp = calloc(1, sizeof *udp);
    if (!udp) return NULL;
    udp->io =
        (weir_io){.receive = udp_receive, .transmit = udp_transmit, .wait = udp_wait, .close = udp_close};
    udp->fd = fd;
    if (use_classes(udp) < 0 || getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, &size) < 0) {
        udp_close(&udp->io);
        return NULL;
    }
    udp->io.room = (uint32_t)buffer / CHARGED;
    use_offloads(udp, batches);
    return &udp->io;
}

/* The same through a tunnel, to a switch's port with this key of SP4_KEY_BYTES. */
weir_io *weir_tunnel_open(int fd, int batches, const weir_addresses *addresses, const uint8_t *key)
{
    weir_tunnel *tunnel = calloc(1, sizeof *tunnel);
    weir_io *io = tunnel ? weir_udp_open(fd, batches) : NULL;
    if (!io) {
        free(tunnel);
        return NULL;
    }
    tunnel->addresses = *addresses;
    tunnel->label = addresses->host_port;
    memcpy(tunnel->key, key, sizeof tunnel->key);
    ((udp_io *)io)->tunnel = tunnel;
    return io;
}

/* Claim the port and wait, at most that long, until the switch says that it is ours. Returns whether it is; else
 * weir_io_last_error may say why. */
int weir_tunnel_claim(weir_io *io, int64_t timeout_ns)
{
    udp_io *udp = (udp_io *)io;
    return weir_claim_wait(udp->tunnel, udp->fd, timeout_ns, &io->last_error);
}
