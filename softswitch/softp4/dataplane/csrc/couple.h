// SPDX-License-Identifier: Apache-2.0
// Frames that may leave as a train of UDP datagrams, and what the kernel is told of one, over AF_PACKET.
#ifndef SOFTP4_COUPLE_H
#define SOFTP4_COUPLE_H

#include "batch.h"

enum { COUPLE_HEADERS = 42 }; // Ethernet, IPv4, UDP

// Whether a frame can be of a train: one UDP datagram in IPv4 and nothing more, without a checksum of its own,
// which whoever cuts would replace, and with an identification that means nothing (RFC 6864), for the same reason.
int couple_can(const uint8_t *frame, uint32_t len);
int couple_alike(const uint8_t *a,
                 const uint8_t *b); // whether two such frames can be of one train, but for lengths
extern const send_kind COUPLED_DATAGRAMS;

#endif
