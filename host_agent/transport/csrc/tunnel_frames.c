/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams that others made and others will read, in whole frames through a tunnel to a switch's port. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "datagram_batches.h"
#include "tunnel.h"

enum { BATCH_BYTES = 65000 };

typedef struct {
    weir_tunnel tunnel;
    weir_datagrams *datagrams;
    int error; /* of the claim */
    uint8_t batch[BATCH_BYTES];
} weir_tunnel_frames;

/* Use a connected socket that does not block, which stays the caller's to close, and claim the port under a label with its
 * key. NULL when out of memory. */
weir_tunnel_frames *weir_tunnel_frames_open(int fd, int batches, uint32_t label, const uint8_t *key)
{
    weir_tunnel_frames *f = calloc(1, sizeof *f);
    if (f) f->datagrams = weir_datagrams_open(fd, batches);
    if (!f || !f->datagrams) {
        free(f);
        return NULL;
    }
    f->tunnel.label = label;
    memcpy(f->tunnel.key, key, sizeof f->tunnel.key);
    return f;
}

void weir_tunnel_frames_close(weir_tunnel_frames *f)
{
    weir_datagrams_close(f->datagrams);
    free(f);
}

/* Claim the port and wait, at most that long. Returns 0 once it is ours, else an errno, or -1. */
int weir_tunnel_frames_claim(weir_tunnel_frames *f, int64_t timeout_ns)
{
    if (weir_claim_wait(&f->tunnel, f->datagrams->fd, timeout_ns, &f->error)) return 0;
    return f->error ? f->error : -1;
}

/* Send datagrams of `size` bytes, the last of which may be shorter, in frames with these addresses, until there is no
 * more room. Returns how many bytes of them are gone. */
uint64_t weir_tunnel_frames_send(weir_tunnel_frames *f, const weir_addresses *addresses, uint8_t class,
                                 const uint8_t *packets, uint64_t bytes, uint32_t size)
{
    const uint32_t whole = WEIR_FRAME_OVERHEAD + size;
    uint64_t gone = 0;
    while (gone < bytes && whole <= BATCH_BYTES) {
        uint64_t loaded = 0;
        uint32_t written = 0;
        while (gone + loaded < bytes && written + whole <= BATCH_BYTES) {
            const uint64_t left = bytes - gone - loaded;
            const uint32_t length = left < size ? (uint32_t)left : size;
            weir_frame_header(f->batch + written, addresses, length, class);
            memcpy(f->batch + written + WEIR_FRAME_OVERHEAD, packets + gone + loaded, length);
            written += WEIR_FRAME_OVERHEAD + length;
            loaded += length;
        }
        const uint64_t sent = weir_datagrams_send(f->datagrams, f->batch, written, whole, 0);
        if (sent < written) return gone + sent / whole * size; /* whole frames */
        gone += loaded;
    }
    return gone;
}

/* Make an arrival the payload of a datagram to one of the addresses; returns whether it is one. */
static int unwrap(weir_arrival *arrival, const uint8_t *memory, const weir_addresses *to, uint32_t addresses)
{
    const uint8_t *frame = memory + arrival->at;
    int32_t found = -1;
    for (uint32_t i = 0; i < addresses && found < 0; i++)
        found = weir_frame_datagram(frame, arrival->length, to[i].host_mac, to[i].host_ip, to[i].host_port);
    if (found < 0) return 0;
    arrival->source = (uint64_t)weir_frame_source_ip(frame) << 16 | weir_frame_source_port(frame);
    arrival->at += WEIR_FRAME_OVERHEAD;
    arrival->length = (uint32_t)found;
    return 1;
}

/* Do what weir_frames_receive does, and keep the port ours: to be called every now and then. */
uint32_t weir_tunnel_frames_receive(weir_tunnel_frames *f, const weir_addresses *to, uint32_t addresses,
                                    uint8_t *memory, weir_arrival *arrivals)
{
    const int64_t now_ns = weir_now_ns();
    const uint32_t count = weir_datagrams_receive(f->datagrams, memory, arrivals);
    uint32_t kept = 0;
    if (count) f->tunnel.heard_ns = now_ns;
    for (uint32_t i = 0; i < count; i++) {
        weir_arrival here = arrivals[i];
        if (sp4_is_claim(memory + here.at, here.length))
            weir_claim_hear(&f->tunnel, f->datagrams->fd, memory + here.at);
        else if (unwrap(&here, memory, to, addresses))
            arrivals[kept++] = here;
    }
    if (weir_claim_is_due(&f->tunnel, now_ns)) weir_claim_ask(&f->tunnel, f->datagrams->fd, now_ns);
    return kept;
}
