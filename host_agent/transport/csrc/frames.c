/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams of one job, in whole frames over a shared-memory port that other threads of the process may use for theirs. */
#include <stdlib.h>

#include "arrivals.h"
#include "frame.h"
#include "shared_port.h"

typedef struct {
    weir_user user;
} weir_frames;

typedef struct {
    uint8_t *memory;
    weir_arrival *arrivals;
    uint32_t bytes, count;
} inbound;

/* NULL when out of memory. The port stays the caller's to close. */
weir_frames *weir_frames_open(weir_shared_port *shared, uint32_t job)
{
    weir_frames *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    f->user.shared = shared;
    weir_user_join(&f->user, job);
    return f;
}

void weir_frames_close(weir_frames *f)
{
    weir_user_leave(&f->user);
    free(f);
}

/* Send datagrams of `size` bytes, the last of which may be shorter, in frames with these addresses, until there is no
 * more room. Returns how many bytes of them are gone. */
uint64_t weir_frames_send(weir_frames *f, const weir_addresses *addresses, uint8_t class,
                          const uint8_t *packets, uint64_t bytes, uint32_t size)
{
    sp4_port *port = weir_user_begin_send(&f->user);
    uint64_t gone = 0;
    while (gone < bytes) {
        const uint32_t length = bytes - gone < size ? (uint32_t)(bytes - gone) : size;
        uint8_t *room =
            WEIR_FRAME_OVERHEAD + length <= SP4_MAX_FRAME ? sp4_port_reserve(port, SP4_SIDE_HOST) : NULL;
        if (!room) break;
        weir_frame_header(room, addresses, length, class);
        memcpy(room + WEIR_FRAME_OVERHEAD, packets + gone, length);
        sp4_port_commit(port, SP4_SIDE_HOST, WEIR_FRAME_OVERHEAD + length);
        gone += length;
    }
    weir_user_end_send(&f->user);
    if (gone) sp4_port_notify(port, SP4_SIDE_HOST);
    return gone;
}

static int is_ours(weir_frames *f, const uint8_t *frame, uint32_t length)
{
    if (length < WEIR_FRAME_OVERHEAD + WEIR_WEIR_SIZE) return 0;
    const uint32_t job = weir_get32(frame + WEIR_FRAME_OVERHEAD + WEIR_WEIR_JOB_OFFSET);
    if (job == f->user.job) return 1;
    weir_user_forward(&f->user, job, frame, length);
    return 0;
}

/* Copy the payload of a datagram to one of the addresses; anything else is nobody's. */
static void take(const uint8_t *frame, uint32_t length, const weir_addresses *to, uint32_t addresses,
                 inbound *in)
{
    int32_t found = -1;
    for (uint32_t i = 0; i < addresses && found < 0; i++)
        found = weir_frame_datagram(frame, length, to[i].host_mac, to[i].host_ip, to[i].host_port);
    if (found < 0) return;
    const uint64_t source = (uint64_t)weir_frame_source_ip(frame) << 16 | weir_frame_source_port(frame);
    memcpy(in->memory + in->bytes, frame + WEIR_FRAME_OVERHEAD, (size_t)found);
    in->arrivals[in->count++] = (weir_arrival){source, in->bytes, (uint32_t)found};
    in->bytes += (uint32_t)found;
}

static int is_full(const inbound *in)
{
    return in->count == WEIR_MOST_ARRIVALS || in->bytes + SP4_MAX_FRAME > WEIR_ARRIVING_BYTES;
}

/* Put payloads of the job's datagrams to these hosts' ends into `memory` of WEIR_ARRIVING_BYTES, and where each is into
 * `arrivals`, of which there is room for WEIR_MOST_ARRIVALS. Returns how many there are. */
uint32_t weir_frames_receive(weir_frames *f, const weir_addresses *to, uint32_t addresses, uint8_t *memory,
                             weir_arrival *arrivals)
{
    sp4_port *inbox, *port = weir_user_turn(&f->user, &inbox);
    inbound in = {memory, arrivals, 0, 0};
    const uint8_t *frame;
    uint32_t length, seen = 0;
    for (; inbox && !is_full(&in) && (frame = sp4_port_peek(inbox, SP4_SIDE_HOST, &length));) {
        if (length) take(frame, length, to, addresses, &in);
        sp4_port_release(inbox, SP4_SIDE_HOST);
    }
    for (; port && !is_full(&in) && seen < WEIR_MOST_ARRIVALS &&
           (frame = sp4_port_peek(port, SP4_SIDE_HOST, &length));
         seen++) {
        if (is_ours(f, frame, length)) take(frame, length, to, addresses, &in);
        sp4_port_release(port, SP4_SIDE_HOST);
    }
    weir_user_notify(&f->user);
    if (in.count) f->user.active_ns = sp4_clock_ns();
    return in.count;
}

/* Sleep until a frame may be there, or the time is over. */
void weir_frames_wait(weir_frames *f, int64_t timeout_ns) { weir_user_wait(&f->user, timeout_ns); }
