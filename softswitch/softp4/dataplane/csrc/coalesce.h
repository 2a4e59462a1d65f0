// SPDX-License-Identifier: Apache-2.0
// Frames that may leave as a GSO batch of UDP datagrams, and what the kernel is told of one, over AF_PACKET.
#ifndef SOFTP4_COALESCE_H
#define SOFTP4_COALESCE_H

#include "batch.h"

enum { COALESCE_HEADERS = 42 }; // Ethernet, IPv4, UDP

// Whether a frame can be of a batch: one UDP datagram in IPv4 and nothing more. Anyone who segments the batch writes
// UDP checksums and identifications, so the frame has a right checksum or none, and an identification that means
// nothing (RFC 6864).
int coalesce_can(const uint8_t *frame, uint32_t len);
int coalesce_alike(const uint8_t *a,
                   const uint8_t *b); // whether two such frames can be of one batch, but for lengths
extern const send_kind COALESCED_DATAGRAMS;

#endif
