// SPDX-License-Identifier: Apache-2.0
#include "segment.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <netinet/in.h>
#include <string.h>

enum {
    VLAN_TAG = 4,
    UDP_HEADER = 8,
    UDP_LENGTH = 4,
    UDP_CHECKSUM = 6,
    IPV4_HEADER = 20,
    IPV4_LENGTH = 2,
    IPV4_ID = 4,
    IPV4_CHECKSUM = 10,
    IPV6_HEADER = 40,
    IPV6_LENGTH = 4,
};

static uint16_t load(const uint8_t *from)
{
    uint16_t value;
    memcpy(&value, from, sizeof value);
    return ntohs(value);
}

static void store(uint8_t *to, uint32_t value)
{
    const uint16_t ordered = htons((uint16_t)value);
    memcpy(to, &ordered, sizeof ordered);
}

// -- checksums -------------------------------------------------------------------------------------

// The sum does not depend on the order of bytes in a word, so words are taken as they are, two at a time.
uint16_t ones_sum(const uint8_t *bytes, uint32_t len, uint32_t start)
{
    uint64_t sum = start;
    uint32_t i = 0, word;
    for (; i + 4 <= len; i += 4) {
        memcpy(&word, bytes + i, sizeof word);
        sum += word;
    }
    word = 0;
    memcpy(&word, bytes + i, len - i);
    sum += word;
    while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)sum;
}

void complete_checksum(uint8_t *frame, uint32_t len, uint32_t start, uint32_t offset)
{
    if (start > len || start + offset + 2 > len) return;
    uint16_t result = (uint16_t)~ones_sum(frame + start, len - start, 0);
    if (result == 0) result = 0xFFFF; // means the same, and not "no checksum" in UDP
    memcpy(frame + start + offset, &result, sizeof result);
}

void complete_ipv4(uint8_t *header, uint32_t bytes)
{
    store(header + IPV4_CHECKSUM, 0);
    const uint16_t result = (uint16_t)~ones_sum(header, bytes, 0);
    memcpy(header + IPV4_CHECKSUM, &result, sizeof result);
}

// -- segmenting ------------------------------------------------------------------------------------

static int is_ipv6(const segmenter *c) { return c->headers[c->ip] >> 4 == 6; }

int segment_begin(segmenter *c, uint8_t *frame, uint32_t len, const struct virtio_net_hdr *offload)
{
    const uint32_t udp = offload->csum_start, payload = udp + UDP_HEADER;
    if (offload->gso_type != VIRTIO_NET_HDR_GSO_UDP_L4 || offload->gso_size == 0 ||
        !(offload->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) || offload->csum_offset != UDP_CHECKSUM ||
        payload > SEGMENT_HEADERS || payload >= len)
        return -1;
    uint32_t ip = ETH_HLEN;
    while (ip + IPV4_HEADER <= udp && load(frame + ip - 2) == ETH_P_8021Q) ip += VLAN_TAG;
    const uint16_t protocol = load(frame + ip - 2);
    if ((protocol != ETH_P_IP || ip + (frame[ip] & 15) * 4 != udp) &&
        (protocol != ETH_P_IPV6 || ip + IPV6_HEADER > udp))
        return -1;
    *c = (segmenter){
        .ip = ip, .udp = udp, .payload = payload, .size = offload->gso_size, .left = len - payload};
    c->at = frame + payload;
    memcpy(c->headers, frame, payload);
    return 0;
}

uint16_t pseudo_sum(const uint8_t *addresses, uint32_t bytes, uint32_t datagram)
{
    uint8_t rest[4] = {0, IPPROTO_UDP};
    store(rest + 2, datagram);
    return ones_sum(addresses, bytes, ones_sum(rest, sizeof rest, 0));
}

static void make(segmenter *c)
{
    const uint32_t here = c->left < c->size ? c->left : c->size, datagram = UDP_HEADER + here;
    uint8_t *frame = c->at - c->payload, *ip = frame + c->ip, *udp = frame + c->udp;
    c->made = c->payload + here;
    memcpy(frame, c->headers, c->payload);
    if (is_ipv6(c))
        store(ip + IPV6_LENGTH, c->udp - c->ip - IPV6_HEADER + datagram);
    else {
        store(ip + IPV4_LENGTH, c->udp - c->ip + datagram);
        store(ip + IPV4_ID, load(ip + IPV4_ID) + c->index);
        complete_ipv4(ip, c->udp - c->ip);
    }
    store(udp + UDP_LENGTH, datagram);
    const uint16_t pseudo = is_ipv6(c) ? pseudo_sum(ip + 8, 32, datagram) : pseudo_sum(ip + 12, 8, datagram);
    memcpy(udp + UDP_CHECKSUM, &pseudo, sizeof pseudo);
    complete_checksum(frame, c->made, c->udp, UDP_CHECKSUM);
}

uint8_t *segment_frame(segmenter *c, uint32_t *len)
{
    if (c->left == 0) return NULL;
    if (c->made == 0) make(c);
    *len = c->made;
    return c->at - c->payload;
}

void segment_next(segmenter *c)
{
    const uint32_t here = c->made - c->payload;
    c->at += here;
    c->left -= here;
    c->made = 0;
    c->index++;
}
