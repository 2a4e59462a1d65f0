// SPDX-License-Identifier: Apache-2.0
// Who holds a port that hosts claim over an IP network (claim.h): addresses, each under a label of its own.
#ifndef SOFTP4_CLAIMANTS_H
#define SOFTP4_CLAIMANTS_H

#include <sys/socket.h>

#include "claim.h"

enum { MOST_CLAIMANTS = 64 }; // of one port; the one that was heard of first gives way to another

typedef struct {
    struct sockaddr_storage address;
    socklen_t size;
    uint32_t label;
    uint64_t proofs; // how many there were of the port when it gave its last one
} claimant;

typedef struct {
    uint8_t key[SP4_KEY_BYTES];
    uint64_t number; // that the next proof must be made of
    uint64_t proofs;
    uint32_t count;
    claimant all[MOST_CLAIMANTS];
} claimants;

int claimants_init(claimants *c, const uint8_t key[SP4_KEY_BYTES]); // 0 or a negative errno
const claimant *claimants_find(const claimants *c, const struct sockaddr_storage *address, socklen_t size);
// Whom a frame is for: who claimed the UDP port or the group that it goes to, else whose proof is the newest; NULL: nobody
// is there. `after`: NULL, or the one that was returned before: then the group's next member, or NULL.
const claimant *claimants_for(const claimants *c, const uint8_t *frame, uint32_t len, const claimant *after);
// Takes in a message of SP4_CLAIM_BYTES from an address. Returns whether there is an answer.
int claimants_hear(claimants *c, const uint8_t *message, const struct sockaddr_storage *from, socklen_t size,
                   uint8_t answer[SP4_CLAIM_BYTES]);

#endif
