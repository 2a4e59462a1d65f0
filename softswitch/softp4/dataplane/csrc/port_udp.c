// SPDX-License-Identifier: Apache-2.0
// Ports that are one end of a UDP tunnel: every frame is the payload of one datagram, as it is. So switches
// can be linked without root, on one machine or several. What others than the peer send is not received. The peer is
// a fixed one, or anyone who claims the port with its key, from anywhere (claim.h).
//
// Frames of one length that follow one another leave as a batch, which the kernel segments (UDP_SEGMENT) where single
// datagrams are wanted, and come in as one where the kernel has gathered them (UDP_GRO).
#define _GNU_SOURCE
#include <linux/sock_diag.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

#include "batch.h"
#include "claimants.h"

#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum { RECEIVE_BATCH = 16, LONGEST = 0xFFFF };

typedef struct {
    port base;
    int fd;
    uint32_t next, filled; // of what the last call received
    uint32_t at, size; // in the message that is next: where its next frame is, and the length of its frames
    uint64_t kernel_drops;
    claimants *claimants; // NULL: the socket is connected to the peer
    struct sockaddr_storage senders[RECEIVE_BATCH], receivers[SEND_BATCH]; // where it is not
    struct mmsghdr messages[RECEIVE_BATCH];
    struct iovec vectors[RECEIVE_BATCH];
    _Alignas(struct cmsghdr) uint8_t notes[RECEIVE_BATCH][NOTE_BYTES];
    uint8_t frames[RECEIVE_BATCH][LONGEST];
    send_batch out;
} udp_port;

// The length of the frames in a message, but for the last, which may be shorter.
static uint32_t frame_size(struct mmsghdr *message)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message->msg_hdr); c; c = CMSG_NXTHDR(&message->msg_hdr, c)) {
        int size;
        memcpy(&size, CMSG_DATA(c), sizeof size);
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO && size > 0) return (uint32_t)size;
    }
    return message->msg_len;
}

static void open_message(udp_port *p)
{
    p->at = 0;
    if (p->next == p->filled) return;
    p->size = frame_size(&p->messages[p->next]);
    p->base.stats.rx_batches += p->messages[p->next].msg_len > p->size;
}

// Returns whether there is anything.
static int receive(udp_port *p)
{
    int n;
    for (uint32_t i = 0; i < RECEIVE_BATCH; i++) {
        struct msghdr *m = &p->messages[i].msg_hdr;
        m->msg_controllen = NOTE_BYTES;
        if (p->claimants) m->msg_namelen = sizeof p->senders[i];
    }
    do n = recvmmsg(p->fd, p->messages, RECEIVE_BATCH, MSG_DONTWAIT, NULL);
    while (n < 0 && (errno == EINTR || errno == ECONNREFUSED)); // nobody there when we last sent; said once
    p->next = 0;
    p->filled = n > 0 ? (uint32_t)n : 0;
    open_message(p);
    return p->filled != 0;
}

static void udp_release(port *base)
{
    udp_port *p = (udp_port *)base;
    p->at += p->size;
    if (p->at < p->messages[p->next].msg_len) return;
    p->next++;
    open_message(p);
}

// Whether a frame, which is next, is one that may come in. Claims are answered.
static int admit(udp_port *p, const uint8_t *frame, uint32_t len)
{
    if (len > SW_MAX_FRAME) {
        p->base.stats.rx_oversize++;
        return 0;
    }
    if (!p->claimants) return 1;
    const struct sockaddr_storage *from = &p->senders[p->next];
    const socklen_t size = p->messages[p->next].msg_hdr.msg_namelen;
    uint8_t answer[SP4_CLAIM_BYTES];
    if (!sp4_is_claim(frame, len)) {
        if (claimants_find(p->claimants, from, size)) return 1;
    } else if (claimants_hear(p->claimants, frame, from, size, answer)) {
        sendto(p->fd, answer, sizeof answer, MSG_DONTWAIT, (const struct sockaddr *)from, size);
        return 0;
    }
    p->base.stats.rx_drops++; // a stranger's, or a proof that proves nothing
    return 0;
}

static const uint8_t *udp_peek(port *base, uint32_t *len)
{
    udp_port *p = (udp_port *)base;
    while (p->next != p->filled || receive(p)) {
        const uint32_t left = p->messages[p->next].msg_len - p->at;
        const uint8_t *frame = p->frames[p->next] + p->at;
        *len = left < p->size ? left : p->size;
        if (admit(p, frame, *len)) return frame;
        udp_release(base);
    }
    return NULL;
}

static uint32_t udp_waiting(port *base)
{
    udp_port *p = (udp_port *)base;
    uint32_t n = 0;
    for (uint32_t i = p->next; i < p->filled; i++) {
        const uint32_t size = frame_size(&p->messages[i]), len = p->messages[i].msg_len;
        n += size ? (len - (i == p->next ? p->at : 0) + size - 1) / size : 1;
    }
    return n;
}

static void coalesce(struct msghdr *message, const gso_batch *batch, uint8_t *note)
{
    const uint16_t size = (uint16_t)batch->size;
    message->msg_control = note;
    message->msg_controllen = CMSG_SPACE(sizeof size);
    struct cmsghdr *c = CMSG_FIRSTHDR(message);
    *c = (struct cmsghdr){.cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof size)};
    memcpy(CMSG_DATA(c), &size, sizeof size);
}

static const send_kind DATAGRAMS = {0, coalesce, NULL};

// Whether the last message goes to an address.
static int goes_to(const send_batch *b, const claimant *to)
{
    const struct msghdr *last = b->queued ? &b->messages[b->queued - 1].msg_hdr : NULL;
    return last && last->msg_namelen == to->size && memcmp(last->msg_name, &to->address, to->size) == 0;
}

static int send_to(udp_port *p, const claimant *to, const uint8_t *frame, uint32_t len)
{
    if (goes_to(&p->out, to) && batch_join(&p->out, frame, len, 0)) return 0;
    if (batch_add(&p->out, &p->base, p->fd, frame, len) != 0) return -1;
    const uint32_t message = p->out.queued - 1;
    p->receivers[message] = to->address;
    p->out.messages[message].msg_hdr.msg_name = &p->receivers[message];
    p->out.messages[message].msg_hdr.msg_namelen = to->size;
    return 0;
}

static int send_to_claimants(udp_port *p, const uint8_t *frame, uint32_t len)
{
    const claimant *to = claimants_for(p->claimants, frame, len, NULL);
    int result = -1;
    for (; to; to = claimants_for(p->claimants, frame, len, to)) result = send_to(p, to, frame, len);
    return result;
}

static int udp_send(port *base, const uint8_t *frame, uint32_t len)
{
    udp_port *p = (udp_port *)base;
    if (p->claimants) return send_to_claimants(p, frame, len);
    if (batch_join(&p->out, frame, len, 0)) return 0;
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
    free(p->claimants);
    free(p);
}

static const port_ops UDP_OPS = {.peek = udp_peek,
                                 .waiting = udp_waiting,
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

// A bound socket. 0 or a negative errno.
static int open_socket(udp_port *p, const struct addrinfo *local, int batches)
{
    const int none = 0, yes = 1, no = 0;
    p->fd = socket(local->ai_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->fd < 0) return -errno;
    if (local->ai_family == AF_INET6) setsockopt(p->fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    grow_buffer(p->fd, SO_RCVBUFFORCE, SO_RCVBUF);
    grow_buffer(p->fd, SO_SNDBUFFORCE, SO_SNDBUF);
    batch_init(&p->out, &DATAGRAMS,
               batches && setsockopt(p->fd, SOL_UDP, UDP_SEGMENT, &none, sizeof none) == 0);
    if (batches)
        setsockopt(p->fd, SOL_UDP, UDP_GRO, &yes,
                   sizeof yes); // without: the kernel segments what it gathered
    return bind(p->fd, local->ai_addr, local->ai_addrlen) == 0 ? 0 : -errno;
}

static int connect_to(udp_port *p, const struct addrinfo *peer)
{
    if (connect(p->fd, peer->ai_addr, peer->ai_addrlen) != 0) return -errno;
    char stranger;
    while (recv(p->fd, &stranger, 1, 0) >= 0) {
        // anybody could send until there was a peer
    }
    return 0;
}

static int await_claims(udp_port *p, const uint8_t key[SP4_KEY_BYTES])
{
    p->claimants = calloc(1, sizeof *p->claimants);
    if (!p->claimants) return -ENOMEM;
    for (uint32_t i = 0; i < RECEIVE_BATCH; i++) p->messages[i].msg_hdr.msg_name = &p->senders[i];
    return claimants_init(p->claimants, key);
}

static udp_port *make_port(uint32_t number)
{
    udp_port *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->base.ops = &UDP_OPS;
    p->base.number = number;
    p->fd = -1;
    for (uint32_t i = 0; i < RECEIVE_BATCH; i++) {
        p->vectors[i] = (struct iovec){p->frames[i], LONGEST};
        p->messages[i].msg_hdr =
            (struct msghdr){.msg_iov = &p->vectors[i], .msg_iovlen = 1, .msg_control = p->notes[i]};
    }
    snprintf(p->base.name, sizeof p->base.name, "port %u (udp)", number);
    return p;
}

// Attaches a port that was opened, unless `result` says that it was not.
static int attach(loop *l, udp_port *p, int result)
{
    loop_enter(l);
    if (result == 0) result = loop_free_number(l, p->base.number);
    if (result == 0) loop_attach(l, &p->base);
    loop_leave(l);
    if (result) udp_close(&p->base);
    return result;
}

// The local address and the peer's, in numbers.
int loop_add_udp(loop *l, uint32_t number, const char *host, const char *service, const char *peer_host,
                 const char *peer_service, int batches)
{
    udp_port *p = make_port(number);
    if (!p) return -ENOMEM;
    struct addrinfo *local = NULL, *peer = NULL;
    int result = find_address(host, service, &local);
    if (result == 0) result = find_address(peer_host, peer_service, &peer);
    if (result == 0) result = open_socket(p, local, batches);
    if (result == 0) result = connect_to(p, peer);
    if (local) freeaddrinfo(local);
    if (peer) freeaddrinfo(peer);
    return attach(l, p, result);
}

// The local address, in numbers, and the key of SP4_KEY_BYTES.
int loop_add_claimed(loop *l, uint32_t number, const char *host, const char *service, const uint8_t *key,
                     int batches)
{
    udp_port *p = make_port(number);
    if (!p) return -ENOMEM;
    struct addrinfo *local = NULL;
    int result = find_address(host, service, &local);
    if (result == 0) result = open_socket(p, local, batches);
    if (result == 0) result = await_claims(p, key);
    if (local) freeaddrinfo(local);
    return attach(l, p, result);
}
