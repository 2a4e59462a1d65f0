// SPDX-License-Identifier: Apache-2.0
// Ports on network interfaces: AF_PACKET, received through a memory-mapped TPACKET_V2 ring (no call per
// frame, and no block timer as V3 has, which would delay the last frames of a window), sent with sendmmsg.
//
// What the kernel leaves undone on virtual links is done here: a VLAN tag held beside the frame goes back
// into it, and a checksum left to a device that does not exist is computed. Segmentation is not: frames
// that a host left for the device to cut (TSO, GSO) are dropped and counted as oversize.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <stdio.h>
#include <sys/socket.h>

#include "batch.h"

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

enum {
    RING_BLOCK = 1 << 16,
    RING_FRAME = 2176, // header, virtio header and SW_MAX_FRAME, a multiple of TPACKET_ALIGNMENT
    FRAMES_PER_BLOCK = RING_BLOCK / RING_FRAME,
    RING_BLOCKS = 35, // about a thousand frames, as in a shared-memory port
    RING_FRAMES = RING_BLOCKS * FRAMES_PER_BLOCK,
    VLAN_TAG = 4,
    MAC_ADDRESSES = 2 * ETH_ALEN,
};

typedef struct {
    port base;
    int rx, tx;
    uint8_t *ring;
    uint32_t next;
    uint64_t kernel_drops;
    send_batch out;
} packet_port;

// -- receiving -------------------------------------------------------------------------------------

static struct tpacket2_hdr *current(packet_port *p)
{
    return (void *)(p->ring + (size_t)(p->next / FRAMES_PER_BLOCK) * RING_BLOCK +
                    (size_t)(p->next % FRAMES_PER_BLOCK) * RING_FRAME);
}

static void packet_release(port *base)
{
    packet_port *p = (packet_port *)base;
    __atomic_store_n(&current(p)->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    if (++p->next == RING_FRAMES) p->next = 0;
}

// RFC 1071 over frame[start..len), where the checksum field holds the pseudo header's sum.
static void complete_checksum(uint8_t *frame, uint32_t len, uint32_t start, uint32_t offset)
{
    if (start + offset + 2 > len) return;
    uint64_t sum = 0;
    uint32_t i = start;
    for (; i + 1 < len; i += 2) sum += (uint32_t)frame[i] << 8 | frame[i + 1];
    if (i < len) sum += (uint32_t)frame[i] << 8;
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    uint16_t result = (uint16_t)~sum;
    if (result == 0) result = 0xFFFF; // means the same, and not "no checksum" in UDP
    frame[start + offset] = (uint8_t)(result >> 8);
    frame[start + offset + 1] = (uint8_t)result;
}

static uint8_t *restore_vlan_tag(uint8_t *frame, const struct tpacket2_hdr *header)
{
    uint16_t tpid = header->tp_status & TP_STATUS_VLAN_TPID_VALID ? header->tp_vlan_tpid : ETH_P_8021Q;
    uint16_t tag[2] = {htons(tpid), htons(header->tp_vlan_tci)};
    memmove(frame - VLAN_TAG, frame, MAC_ADDRESSES); // over the virtio header, which was read
    memcpy(frame - VLAN_TAG + MAC_ADDRESSES, tag, VLAN_TAG);
    return frame - VLAN_TAG;
}

static const uint8_t *packet_peek(port *base, uint32_t *len)
{
    packet_port *p = (packet_port *)base;
    for (;;) {
        struct tpacket2_hdr *header = current(p);
        uint32_t status = __atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE);
        if (!(status & TP_STATUS_USER)) return NULL;
        uint8_t *frame = (uint8_t *)header + header->tp_mac;
        struct virtio_net_hdr offload;
        memcpy(&offload, frame - sizeof offload, sizeof offload);
        uint32_t tag = status & TP_STATUS_VLAN_VALID ? VLAN_TAG : 0;
        *len = header->tp_snaplen + tag;
        if (header->tp_snaplen == header->tp_len && *len <= SW_MAX_FRAME &&
            offload.gso_type == VIRTIO_NET_HDR_GSO_NONE) {
            if (offload.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)
                complete_checksum(frame, header->tp_snaplen, offload.csum_start, offload.csum_offset);
            return tag ? restore_vlan_tag(frame, header) : frame;
        }
        base->stats.rx_oversize++;
        packet_release(base);
    }
}

static int packet_fd(port *base) { return ((packet_port *)base)->rx; }

// -- sending ---------------------------------------------------------------------------------------

static int packet_send(port *base, const uint8_t *frame, uint32_t len)
{
    packet_port *p = (packet_port *)base;
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
        setsockopt(p->rx, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) != 0 ||
        setsockopt(p->rx, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) != 0)
        return -errno;
    void *memory = mmap(NULL, (size_t)RING_BLOCKS * RING_BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, p->rx, 0);
    if (memory == MAP_FAILED) return -errno;
    p->ring = memory;
    return bind_to(p->rx, interface, ETH_P_ALL) == 0 ? 0 : -errno;
}

static int open_sender(packet_port *p, int interface)
{
    p->tx = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->tx < 0 || bind_to(p->tx, interface, 0) != 0) return -errno;
    grow_buffer(p->tx, SO_SNDBUFFORCE, SO_SNDBUF);
    batch_init(&p->out);
    return 0;
}

int loop_add_interface(loop *l, uint32_t number, const char *interface)
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
    if (result == 0) result = open_sender(p, (int)index);
    loop_enter(l);
    if (result == 0) result = loop_free_number(l, number);
    if (result == 0) loop_attach(l, &p->base);
    loop_leave(l);
    if (result) packet_close(&p->base);
    return result;
}
