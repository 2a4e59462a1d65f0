/* SPDX-License-Identifier: Apache-2.0 */
/* Ethernet, IPv4 and UDP around a payload, for drivers that deal in whole frames. */
#ifndef WEIR_FRAME_H
#define WEIR_FRAME_H

#include <stdint.h>
#include <string.h>

#include "lanes.h"
#include "transport.h"

/* Addresses as numbers. Mirrored by weir.host_agent.transport.engine.Addresses. */
typedef struct {
    uint8_t host_mac[6], switch_mac[6];
    uint32_t host_ip, switch_ip;
    uint16_t host_port, switch_port;
} weir_addresses;

enum {
    WEIR_ETHERNET = 14,
    WEIR_IPV4 = 20,
    WEIR_UDP = 8,
    WEIR_ETHERTYPE_IPV4 = 0x0800,
    WEIR_PROTOCOL_UDP = 17
};

/* The ones' complement sum of an IPv4 header: 0xffff when its checksum is right, RFC 1071. */
static inline uint16_t weir_ipv4_sum(const uint8_t *ip)
{
    uint32_t sum = 0;
    for (int i = 0; i < WEIR_IPV4; i += 2) sum += weir_get16(ip + i);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)((sum & 0xffff) + (sum >> 16));
}

/* The headers of a frame to the switch, WEIR_FRAME_OVERHEAD bytes. No UDP checksum: legal over IPv4. */
static inline void weir_frame_header(uint8_t *out, const weir_addresses *a, uint32_t payload_length,
                                     uint8_t traffic_class)
{
    memcpy(out, a->switch_mac, 6);
    memcpy(out + 6, a->host_mac, 6);
    weir_put16(out + 12, WEIR_ETHERTYPE_IPV4);
    uint8_t *ip = out + WEIR_ETHERNET, *udp = ip + WEIR_IPV4;
    static const uint8_t fixed[12] = {
        0x45, 0, 0, 0, 0, 0, 0x40 /* don't fragment */, 0, 64, WEIR_PROTOCOL_UDP};
    memcpy(ip, fixed, sizeof fixed);
    ip[1] = traffic_class;
    weir_put16(ip + 2, (uint16_t)(WEIR_IPV4 + WEIR_UDP + payload_length));
    weir_put32(ip + 12, a->host_ip);
    weir_put32(ip + 16, a->switch_ip);
    weir_put16(ip + 10, (uint16_t)~weir_ipv4_sum(ip));
    weir_put16(udp, a->host_port);
    weir_put16(udp + 2, a->switch_port);
    weir_put16(udp + 4, (uint16_t)(WEIR_UDP + payload_length));
    weir_put16(udp + 6, 0);
}

/* DSCP << 2 | ECN of a frame that weir_frame_payload took. */
static inline uint8_t weir_frame_traffic_class(const uint8_t *frame) { return frame[WEIR_ETHERNET + 1]; }

/* The length of the payload of a datagram in this frame to a host's MAC address, IPv4 address and UDP port (it starts at
 * WEIR_FRAME_OVERHEAD), or -1 when the frame is something else. */
static inline int32_t weir_frame_datagram(const uint8_t *frame, uint32_t length, const uint8_t *mac,
                                          uint32_t address, uint16_t port)
{
    const uint8_t *ip = frame + WEIR_ETHERNET, *udp = ip + WEIR_IPV4;
    if (length < WEIR_FRAME_OVERHEAD || memcmp(frame, mac, 6) != 0 ||
        weir_get16(frame + 12) != WEIR_ETHERTYPE_IPV4 || ip[0] != 0x45 || ip[9] != WEIR_PROTOCOL_UDP ||
        (weir_get16(ip + 6) & 0x3fff) != 0 || weir_ipv4_sum(ip) != 0xffff)
        return -1;
    uint32_t total = weir_get16(ip + 2), datagram = weir_get16(udp + 4);
    if (total > length - WEIR_ETHERNET || total < WEIR_IPV4 + WEIR_UDP || datagram < WEIR_UDP ||
        datagram > total - WEIR_IPV4)
        return -1;
    if (weir_get32(ip + 16) != address || weir_get16(udp + 2) != port) return -1;
    return (int32_t)(datagram - WEIR_UDP);
}

static inline uint32_t weir_frame_source_ip(const uint8_t *frame)
{
    return weir_get32(frame + WEIR_ETHERNET + 12);
}

static inline uint16_t weir_frame_source_port(const uint8_t *frame)
{
    return weir_get16(frame + WEIR_ETHERNET + WEIR_IPV4);
}

/* The length of the payload that the switch sent us in this frame, or -1: then it is none of ours. */
static inline int32_t weir_frame_payload(const uint8_t *frame, uint32_t length, const weir_addresses *a)
{
    const int32_t found = weir_frame_datagram(frame, length, a->host_mac, a->host_ip, a->host_port);
    if (found < 0 || weir_frame_source_ip(frame) != a->switch_ip ||
        weir_frame_source_port(frame) != a->switch_port)
        return -1;
    return found;
}

#endif
