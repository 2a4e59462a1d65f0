// SPDX-License-Identifier: Apache-2.0
// A GSO batch of UDP datagrams that came in as one frame, segmented into the frames that a device would have made of it.
#ifndef SOFTP4_SEGMENT_H
#define SOFTP4_SEGMENT_H

#include <linux/virtio_net.h>
#include <stdint.h>

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5 // Linux 6.2
#endif

enum { SEGMENT_HEADERS = 128 }; // longest headers up to UDP's

// Frames are made in place, one at a time, each over what is left of the one before it.
typedef struct {
    uint8_t headers[SEGMENT_HEADERS]; // of the whole batch
    uint32_t ip, udp, payload;        // where these begin in a frame
    uint32_t size;                    // of a payload, but for the last, which may be shorter
    uint32_t index, left;             // frames before this one; payload bytes from this one on
    uint8_t *at;                      // this frame's payload
    uint32_t made;                    // this frame's length, or 0: it has not been made
} segmenter;

// Begins to segment a frame that came with this offload. Returns 0, or -1 if it is no GSO batch of UDP over IP.
int segment_begin(segmenter *c, uint8_t *frame, uint32_t len, const struct virtio_net_hdr *offload);
uint8_t *segment_frame(segmenter *c, uint32_t *len); // this frame, or NULL after the last
void segment_next(segmenter *c);

// Writes the RFC 1071 checksum of frame[start..len), where its field holds the pseudo header's sum.
void complete_checksum(uint8_t *frame, uint32_t len, uint32_t start, uint32_t offset);
// Makes an IPv4 header's checksum right.
void complete_ipv4(uint8_t *header, uint32_t bytes);
uint16_t ones_sum(const uint8_t *bytes, uint32_t len, uint32_t sum); // added to `sum`; as it is stored
// The sum of UDP's pseudo header for a datagram of this length: both addresses, protocol, length.
uint16_t pseudo_sum(const uint8_t *addresses, uint32_t bytes, uint32_t datagram);

#endif
