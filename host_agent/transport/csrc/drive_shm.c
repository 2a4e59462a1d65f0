/* SPDX-License-Identifier: Apache-2.0 */
/* Carrier over a shared-memory port, one of several on it: frames are built and read in place, in the rings. */
#include <stdlib.h>

#include "drive.h"
#include "frame.h"
#include "shared_port.h"

typedef struct {
    weir_io io;
    weir_addresses addresses;
    weir_user user;
} shm_io;

/* Whether a frame is another thread's, which then has it. */
static int is_anothers(shm_io *shm, const uint8_t *frame, uint32_t length)
{
    if (length < WEIR_FRAME_OVERHEAD + WEIR_WEIR_SIZE) return 0;
    const uint32_t job = weir_get32(frame + WEIR_FRAME_OVERHEAD + WEIR_WEIR_JOB_OFFSET);
    return job != shm->user.job && weir_user_forward(&shm->user, job, frame, length);
}

static void take_in(shm_io *shm, weir_transport *t, const uint8_t *frame, uint32_t length, int64_t now_ns)
{
    int32_t payload = weir_frame_payload(frame, length, &shm->addresses);
    if (payload < 0)
        weir_transport_refuse(t, WEIR_NOT_OURS);
    else
        weir_transport_receive(t, frame + WEIR_FRAME_OVERHEAD, (uint32_t)payload,
                               weir_frame_traffic_class(frame), now_ns);
    shm->user.active_ns = now_ns;
}

static int shm_receive(weir_io *io, weir_transport *t, int64_t now_ns)
{
    shm_io *shm = (shm_io *)io;
    sp4_port *inbox, *port;
    const uint8_t *frame;
    uint32_t length;
    int frames = 0;
    weir_user_join(&shm->user, weir_transport_job(t));
    port = weir_user_turn(&shm->user, &inbox);
    for (; inbox && frames < WEIR_BATCH && (frame = sp4_port_peek(inbox, SP4_SIDE_HOST, &length)); frames++) {
        if (length) take_in(shm, t, frame, length, now_ns);
        sp4_port_release(inbox, SP4_SIDE_HOST);
    }
    for (; port && frames < WEIR_BATCH && (frame = sp4_port_peek(port, SP4_SIDE_HOST, &length)); frames++) {
        if (!is_anothers(shm, frame, length)) take_in(shm, t, frame, length, now_ns);
        sp4_port_release(port, SP4_SIDE_HOST);
    }
    weir_user_notify(&shm->user);
    return frames;
}

static int shm_transmit(weir_io *io, weir_transport *t, int64_t now_ns)
{
    shm_io *shm = (shm_io *)io;
    int frames = 0;
    io->blocked = 0;
    if (!weir_transport_sendable(t, now_ns)) return 0;
    sp4_port *port = weir_user_begin_send(&shm->user);
    do {
        uint8_t *frame = sp4_port_reserve(port, SP4_SIDE_HOST);
        if (!frame) {
            io->blocked = 1;
            break;
        }
        uint8_t traffic_class;
        uint32_t length = weir_transport_send(t, now_ns, frame + WEIR_FRAME_OVERHEAD, &traffic_class);
        weir_frame_header(frame, &shm->addresses, length, traffic_class);
        sp4_port_commit(port, SP4_SIDE_HOST, WEIR_FRAME_OVERHEAD + length);
        frames++;
    } while (weir_transport_sendable(t, now_ns));
    weir_user_end_send(&shm->user);
    if (!frames) return 0;
    sp4_port_notify(port, SP4_SIDE_HOST);
    shm->user.active_ns = now_ns;
    return frames;
}

static void shm_wait(weir_io *io, int64_t timeout_ns) { weir_user_wait(&((shm_io *)io)->user, timeout_ns); }

static void shm_yield(weir_io *io) { weir_user_yield(&((shm_io *)io)->user); }

static void shm_leave(weir_io *io) { weir_user_leave(&((shm_io *)io)->user); }

static void shm_close(weir_io *io)
{
    shm_leave(io);
    free(io);
}

/* For how many nanoseconds threads look for work before they sleep; see ring.h. */
int64_t weir_shm_spin_ns(void) { return sp4_spin_ns(); }

/* Use a switch's port, from and to these addresses, in one thread at a time. The port stays the caller's to close. NULL
 * when out of memory. */
weir_io *weir_shm_open(weir_shared_port *shared, const weir_addresses *addresses)
{
    shm_io *shm = calloc(1, sizeof *shm);
    if (!shm) return NULL;
    shm->io = (weir_io){.receive = shm_receive,
                        .transmit = shm_transmit,
                        .wait = shm_wait,
                        .yield = shm_yield,
                        .leave = shm_leave,
                        .close = shm_close};
    shm->io.room = SP4_RING_BYTES / SP4_MAX_RECORD;
    shm->io.spins = sp4_spin_ns() > 0;
    shm->addresses = *addresses;
    shm->user.shared = shared;
    return &shm->io;
}
