// SPDX-License-Identifier: Apache-2.0
// Ports on network interfaces: AF_PACKET, received through a memory-mapped TPACKET_V2 ring (no call per
// frame, and no block timer as V3 has, which would delay the last frames of a window), sent with sendmmsg.
//
// What the kernel leaves undone on virtual links is done here: a VLAN tag held beside the frame goes back
// into it, a checksum left to a device that does not exist is computed, and a GSO batch of UDP datagrams is segmented.
// A batch does not fit into the ring: it waits in the socket beside it (PACKET_COPY_THRESH), and the ring
// says so in its place. Batches of TCP (TSO) are dropped and counted as oversize.
//
// Frames that are alike leave as batches, which the receiver's kernel or its device segments.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <stdio.h>
#include <sys/socket.h>

#include "coalesce.h"
#include "segment.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

enum {
    RING_BLOCK = 1 << 16,
    RING_FRAME = 2176, // headers and a frame of 1,500 bytes and more, a multiple of TPACKET_ALIGNMENT
    FRAMES_PER_BLOCK = RING_BLOCK / RING_FRAME,
    RING_BLOCKS = 35, // about a thousand frames, as in a shared-memory port
    RING_FRAMES = RING_BLOCKS * FRAMES_PER_BLOCK,
    VLAN_TAG = 4,
    MAC_ADDRESSES = 2 * ETH_ALEN,
    LONG_FRAME = VLAN_TAG + ETH_HLEN + 0xFFFF, // a batch
};

typedef struct {
    port base;
    int rx, tx;
    uint8_t *ring;
    uint32_t next;
    uint8_t *frame; // what peek returned, until it is released, and its length
    uint32_t len;
    segmenter batch; // which it is of, when any of that is left
    uint8_t long_frame[LONG_FRAME];
    int coalescing; // the last message that waits to be sent may be made a batch
    send_batch out;
} packet_port;

// -- receiving -------------------------------------------------------------------------------------

static struct tpacket2_hdr *place(const packet_port *p, uint32_t number)
{
    return (void *)(p->ring + (size_t)(number / FRAMES_PER_BLOCK) * RING_BLOCK +
                    (size_t)(number % FRAMES_PER_BLOCK) * RING_FRAME);
}

static struct tpacket2_hdr *current(const packet_port *p) { return place(p, p->next); }

static void next_in_ring(packet_port *p)
{
    __atomic_store_n(&current(p)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    if (++p->next == RING_FRAMES) p->next = 0;
}

static void packet_release(port *base)
{
    packet_port *p = (packet_port *)base;
    p->frame = NULL;
    if (p->batch.left) {
        segment_next(&p->batch);
        p->frame = segment_frame(&p->batch, &p->len);
    }
    if (!p->frame) next_in_ring(p);
}

static uint8_t *restore_vlan_tag(uint8_t *frame, const struct tpacket2_hdr *header)
{
    uint16_t tpid = header->tp_status & TP_STATUS_VLAN_TPID_VALID ? header->tp_vlan_tpid : ETH_P_8021Q;
    uint16_t tag[2] = {htons(tpid), htons(header->tp_vlan_tci)};
    memmove(frame - VLAN_TAG, frame, MAC_ADDRESSES); // over the virtio header, which was read
    memcpy(frame - VLAN_TAG + MAC_ADDRESSES, tag, VLAN_TAG);
    return frame - VLAN_TAG;
}

// A frame that was too long for the ring. Returns its length, 0 when it is longer than a batch can be.
static uint32_t receive_long(packet_port *p)
{
    struct virtio_net_hdr offload; // as in the ring
    struct iovec vectors[] = {{&offload, sizeof offload}, {p->long_frame + VLAN_TAG, LONG_FRAME - VLAN_TAG}};
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
    ssize_t n = recvmsg(p->rx, &message, MSG_DONTWAIT);
    return n < (ssize_t)sizeof offload || message.msg_flags & MSG_TRUNC ? 0 : (uint32_t)n - sizeof offload;
}

// The frame that is next in the ring, the first of a batch's, or NULL when it cannot be taken: counted.
static uint8_t *open_frame(packet_port *p, const struct tpacket2_hdr *header, uint32_t status)
{
    uint8_t *frame = (uint8_t *)header + header->tp_mac;
    uint32_t len = header->tp_snaplen;
    const uint32_t tag = status & TP_STATUS_VLAN_VALID ? VLAN_TAG : 0;
    struct virtio_net_hdr offload;
    memcpy(&offload, frame - sizeof offload, sizeof offload);
    if (status & TP_STATUS_COPY) {
        len = receive_long(p);
        frame = p->long_frame + VLAN_TAG;
    }
    const int batch = offload.gso_type != VIRTIO_NET_HDR_GSO_NONE;
    if (len != header->tp_len) {
        if (batch) // it found no room in the socket
            p->base.stats.rx_drops++;
        else
            p->base.stats.rx_oversize++;
        return NULL;
    }
    if (!batch && offload.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)
        complete_checksum(frame, len, offload.csum_start, offload.csum_offset);
    if (tag) frame = restore_vlan_tag(frame, header);
    p->len = len + tag;
    offload.csum_start += tag;
    if (batch && segment_begin(&p->batch, frame, p->len, &offload) == 0) {
        p->base.stats.rx_batches++;
        frame = segment_frame(&p->batch, &p->len);
    } else if (batch)
        p->len = UINT32_MAX;
    if (p->len <= SW_MAX_FRAME) return frame;
    p->batch.left = 0;
    p->base.stats.rx_oversize++;
    return NULL;
}

static const uint8_t *packet_peek(port *base, uint32_t *len)
{
    packet_port *p = (packet_port *)base;
    while (!p->frame) {
        const struct tpacket2_hdr *header = current(p);
        uint32_t status = __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE);
        if (!(status & TP_STATUS_USER)) return NULL;
        p->frame = open_frame(p, header, status);
        if (!p->frame) next_in_ring(p);
    }
    *len = p->len;
    return p->frame;
}

static uint32_t packet_waiting(port *base)
{
    const packet_port *p = (packet_port *)base;
    uint32_t n = 0;
    for (uint32_t i = 0; i < RING_FRAMES && n < LOOP_BATCH; i++) {
        const struct tpacket2_hdr *header = place(p, (p->next + i) % RING_FRAMES);
        if (!(__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) break;
        struct virtio_net_hdr offload;
        memcpy(&offload, (const uint8_t *)header + header->tp_mac - sizeof offload, sizeof offload);
        const int batch = offload.gso_type != VIRTIO_NET_HDR_GSO_NONE && offload.gso_size != 0;
        n += batch ? 1 + header->tp_len / offload.gso_size : 1;
    }
    return n;
}

static int packet_fd(port *base) { return ((packet_port *)base)->rx; }

// -- sending ---------------------------------------------------------------------------------------

static int packet_send(port *base, const uint8_t *frame, uint32_t len)
{
    packet_port *p = (packet_port *)base;
    const int can = p->out.segments && coalesce_can(frame, len);
    const uint8_t *last = can && p->coalescing ? batch_last(&p->out) : NULL;
    if (last && coalesce_alike(last, frame) && batch_join(&p->out, frame, len, COALESCE_HEADERS)) return 0;
    p->coalescing = can;
    return batch_add(&p->out, base, p->tx, frame, len);
}

static void packet_flush(port *base)
{
    packet_port *p = (packet_port *)base;
    batch_flush(&p->out, base, p->tx);
}

// -- life ------------------------------------------------------------------------------------------

static void packet_refresh(port *base)
{
    packet_port *p = (packet_port *)base;
    struct tpacket_stats since; // reading resets it
    socklen_t size = sizeof since;
    if (getsockopt(p->rx, SOL_PACKET, PACKET_STATISTICS, &since, &size) == 0)
        base->stats.rx_drops += since.tp_drops;
}

static void packet_close(port *base)
{
    packet_port *p = (packet_port *)base;
    if (p->ring) munmap(p->ring, (size_t)RING_BLOCKS * RING_BLOCK);
    if (p->rx >= 0) close(p->rx);
    if (p->tx >= 0) close(p->tx);
    free(p);
}

static const port_ops PACKET_OPS = {.peek = packet_peek,
                                    .waiting = packet_waiting,
                                    .release = packet_release,
                                    .send = packet_send,
                                    .flush = packet_flush,
                                    .fd = packet_fd,
                                    .refresh = packet_refresh,
                                    .close = packet_close};

static int bind_to(int fd, int interface, uint16_t protocol)
{
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_ifindex = interface, .sll_protocol = htons(protocol)};
    return bind(fd, (struct sockaddr *)&address, sizeof address);
}

static int set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

static int open_receiver(packet_port *p, int interface)
{
    // Protocol 0 until everything is set: nothing of another interface, or without a ring, gets in.
    p->rx = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (p->rx < 0) return -errno;
    struct tpacket_req ring = {.tp_block_size = RING_BLOCK,
                               .tp_block_nr = RING_BLOCKS,
                               .tp_frame_size = RING_FRAME,
                               .tp_frame_nr = RING_FRAMES};
    struct packet_mreq promiscuous = {.mr_ifindex = interface, .mr_type = PACKET_MR_PROMISC};
    if (set_option(p->rx, SOL_PACKET, PACKET_VERSION, TPACKET_V2) != 0 ||
        set_option(p->rx, SOL_PACKET, PACKET_VNET_HDR, 1) != 0 ||
        set_option(p->rx, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1) != 0 ||
        set_option(p->rx, SOL_PACKET, PACKET_COPY_THRESH, 1) != 0 ||
        setsockopt(p->rx, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) != 0 ||
        setsockopt(p->rx, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) != 0)
        return -errno;
    void *memory = mmap(NULL, (size_t)RING_BLOCKS * RING_BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, p->rx, 0);
    if (memory == MAP_FAILED) return -errno;
    p->ring = memory;
    grow_buffer(p->rx, SO_RCVBUFFORCE, SO_RCVBUF); // for batches
    return bind_to(p->rx, interface, ETH_P_ALL) == 0 ? 0 : -errno;
}

static int open_sender(packet_port *p, int interface, int batches)
{
    p->tx = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->tx < 0 || set_option(p->tx, SOL_PACKET, PACKET_VNET_HDR, 1) != 0 ||
        bind_to(p->tx, interface, 0) != 0)
        return -errno;
    grow_buffer(p->tx, SO_SNDBUFFORCE, SO_SNDBUF);
    batch_init(&p->out, &COALESCED_DATAGRAMS, batches);
    return 0;
}

int loop_add_interface(loop *l, uint32_t number, const char *interface, int batches)
{
    unsigned index = if_nametoindex(interface);
    if (index == 0) return -errno;
    packet_port *p = calloc(1, sizeof *p);
    if (!p) return -ENOMEM;
    p->base.ops = &PACKET_OPS;
    p->base.number = number;
    p->rx = p->tx = -1;
    snprintf(p->base.name, sizeof p->base.name, "port %u (%s)", number, interface);
    int result = open_receiver(p, (int)index);
    if (result == 0) result = open_sender(p, (int)index, batches);
    loop_enter(l);
    if (result == 0) result = loop_free_number(l, number);
    if (result == 0) loop_attach(l, &p->base);
    loop_leave(l);
    if (result) packet_close(&p->base);
    return result;
}
