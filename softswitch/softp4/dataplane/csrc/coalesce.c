// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "coalesce.h"

#include <linux/if_ether.h>
#include <linux/virtio_net.h>
#include <netinet/in.h>

#include "segment.h"

// Places in a frame, and what is there.
enum {
    IPV4 = ETH_HLEN,
    IPV4_LENGTH = IPV4 + 2,
    IPV4_FRAGMENT = IPV4 + 6,
    IPV4_TTL = IPV4 + 8,
    IPV4_PROTOCOL = IPV4 + 9,
    IPV4_ADDRESSES = IPV4 + 12,
    UDP = IPV4 + 20,
    UDP_LENGTH = UDP + 4,
    UDP_CHECKSUM = UDP + 6,
    NO_OPTIONS = 0x45,
    DONT_FRAGMENT = 0x4000,
};

static uint16_t load(const uint8_t *from) { return (uint16_t)(from[0] << 8 | from[1]); }

static void store(uint8_t *to, size_t value)
{
    to[0] = (uint8_t)(value >> 8);
    to[1] = (uint8_t)value;
}

static uint16_t pseudo_of(const uint8_t *frame)
{
    return pseudo_sum(frame + IPV4_ADDRESSES, UDP - IPV4_ADDRESSES, load(frame + UDP_LENGTH));
}

// Whether a datagram has no checksum, or a right one: a wrong one would become right in a batch.
static int is_summed(const uint8_t *frame, uint32_t len)
{
    return load(frame + UDP_CHECKSUM) == 0 || ones_sum(frame + UDP, len - UDP, pseudo_of(frame)) == 0xFFFF;
}

int coalesce_can(const uint8_t *frame, uint32_t len)
{
    return len > COALESCE_HEADERS && load(frame + IPV4 - 2) == ETH_P_IP && frame[IPV4] == NO_OPTIONS &&
           frame[IPV4_PROTOCOL] == IPPROTO_UDP && load(frame + IPV4_FRAGMENT) == DONT_FRAGMENT &&
           load(frame + IPV4_LENGTH) == len - IPV4 && load(frame + UDP_LENGTH) == len - UDP &&
           ones_sum(frame + IPV4, UDP - IPV4, 0) == 0xFFFF && is_summed(frame, len);
}

int coalesce_alike(const uint8_t *a, const uint8_t *b)
{
    return memcmp(a, b, IPV4_LENGTH) == 0 && a[IPV4_TTL] == b[IPV4_TTL] &&
           memcmp(a + IPV4_ADDRESSES, b + IPV4_ADDRESSES, UDP_LENGTH - IPV4_ADDRESSES) == 0;
}

static void set_lengths(uint8_t *frame, size_t len)
{
    store(frame + IPV4_LENGTH, len - IPV4);
    complete_ipv4(frame + IPV4, UDP - IPV4);
    store(frame + UDP_LENGTH, len - UDP);
}

// Leaves the pseudo header's sum in the checksum's field, for anyone who computes the checksum to go on from.
static void begin_checksum(uint8_t *frame)
{
    const uint16_t pseudo = pseudo_of(frame);
    memcpy(frame + UDP_CHECKSUM, &pseudo, sizeof pseudo);
}

// The batch looks like one long datagram, whose checksum is for whoever segments it.
static void coalesce(struct msghdr *message, const gso_batch *batch, uint8_t *note)
{
    uint8_t *frame = message->msg_iov[1].iov_base;
    set_lengths(frame, message->msg_iov[1].iov_len);
    begin_checksum(frame);
    const struct virtio_net_hdr offload = {.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
                                           .gso_type = VIRTIO_NET_HDR_GSO_UDP_L4,
                                           .hdr_len = COALESCE_HEADERS,
                                           .gso_size = (uint16_t)(batch->size - COALESCE_HEADERS),
                                           .csum_start = UDP,
                                           .csum_offset = UDP_CHECKSUM - UDP};
    memcpy(note, &offload, sizeof offload);
}

static void restore(uint8_t *frame, uint32_t len)
{
    set_lengths(frame, len);
    begin_checksum(frame);
    complete_checksum(frame, len, UDP, UDP_CHECKSUM - UDP);
}

const send_kind COALESCED_DATAGRAMS = {sizeof(struct virtio_net_hdr), coalesce, restore};
