/* SPDX-License-Identifier: Apache-2.0 */
/* A host's end of a tunnel to a switch's port over an IP network: frames inside datagrams, and the claim of the port
 * (claim.h), which is made again now and then, as a translation of addresses on the way forgets, or moves us. */
#ifndef WEIR_TUNNEL_H
#define WEIR_TUNNEL_H

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "claim.h"
#include "datagrams.h"
#include "drive.h"
#include "frame.h"

enum { WEIR_ECN = 3 };

static const int64_t WEIR_CLAIM_EVERY_NS =
    10000000000; /* translations of addresses remember for 30 s and more */
static const int64_t WEIR_CLAIM_SILENCE_NS = 500000000; /* after which we may have been forgotten */

typedef struct {
    weir_addresses addresses;
    uint32_t label; /* of the claim: the UDP port of ours inside the frames, or a group */
    uint8_t key[SP4_KEY_BYTES];
    int64_t asked_ns, heard_ns;
    int taken;
} weir_tunnel;

static inline int weir_claim_is_due(const weir_tunnel *w, int64_t now_ns)
{
    return now_ns - w->asked_ns >= WEIR_CLAIM_EVERY_NS ||
           (now_ns - w->heard_ns >= WEIR_CLAIM_SILENCE_NS && now_ns - w->asked_ns >= WEIR_CLAIM_SILENCE_NS);
}

/* Claims may be lost: what the socket says of them does not matter. */
static inline void weir_claim_say(const weir_tunnel *w, int fd, const sp4_claim *said)
{
    uint8_t message[SP4_CLAIM_BYTES];
    sp4_claim_write(message, said, w->key);
    const ssize_t sent = send(fd, message, sizeof message, MSG_DONTWAIT);
    (void)sent;
}

static inline void weir_claim_ask(weir_tunnel *w, int fd, int64_t now_ns)
{
    w->asked_ns = now_ns;
    weir_claim_say(w, fd, &(sp4_claim){SP4_CLAIM_ASK, w->label, 0});
}

static inline void weir_claim_hear(weir_tunnel *w, int fd, const uint8_t *message)
{
    sp4_claim said;
    if (!sp4_claim_read(message, &said, w->key) || said.label != w->label) return;
    if (said.kind == SP4_CLAIM_CHALLENGE)
        weir_claim_say(w, fd, &(sp4_claim){SP4_CLAIM_PROOF, said.label, said.number});
    else if (said.kind == SP4_CLAIM_TAKEN)
        w->taken = 1;
}

/* Claim the port by a connected socket and wait, at most that long, until the switch says that it is ours. Returns
 * whether it is; `error` may say why not. */
static inline int weir_claim_wait(weir_tunnel *w, int fd, int64_t timeout_ns, int *error)
{
    static const int64_t AGAIN_NS = 100000000;
    const struct timespec again = {0, AGAIN_NS};
    const int64_t end = weir_now_ns() + timeout_ns;
    uint8_t heard[SP4_CLAIM_BYTES + 1];
    for (int64_t now = weir_now_ns(); now < end && !w->taken; now = weir_now_ns()) {
        if (now - w->asked_ns >= AGAIN_NS) weir_claim_ask(w, fd, now);
        const ssize_t n = recv(fd, heard, sizeof heard, MSG_DONTWAIT);
        if (n < 0 && !weir_is_later(errno)) *error = errno;
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        if (n < 0) ppoll(&ready, 1, &again, NULL);
        if (n > 0 && sp4_is_claim(heard, (uint32_t)n)) weir_claim_hear(w, fd, heard);
    }
    w->heard_ns = weir_now_ns();
    return w->taken;
}

/* DSCP << 2 | ECN of a frame that came in a datagram of this class: what was marked outside is marked (RFC 6040). */
static inline uint8_t weir_tunnel_class(const uint8_t *frame, uint8_t outside)
{
    const uint8_t inside = weir_frame_traffic_class(frame);
    return (outside & WEIR_ECN) == WEIR_ECN && inside & WEIR_ECN ? inside | WEIR_ECN : inside;
}

#endif
