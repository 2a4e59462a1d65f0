/* SPDX-License-Identifier: Apache-2.0 */
/* Carrier over a shared-memory port: frames are built and read in place, in the rings. */
#include <errno.h>
#include <stdlib.h>

#include "drive.h"
#include "frame.h"
#include "ring.h"

typedef struct {
    weir_io io;
    weir_addresses addresses;
    weir_bell *bell;
    weir_port *port;
} shm_io;

static int shm_receive(weir_io *io, weir_transport *t, int64_t now_ns)
{
    shm_io *shm = (shm_io *)io;
    const uint8_t *frame;
    uint32_t length;
    int frames = 0;
    while (frames < WEIR_BATCH && (frame = weir_port_peek(shm->port, WEIR_SIDE_HOST, &length))) {
        int32_t payload = weir_frame_payload(frame, length, &shm->addresses);
        if (payload < 0)
            weir_transport_refuse(t, WEIR_NOT_OURS);
        else
            weir_transport_receive(t, frame + WEIR_FRAME_OVERHEAD, (uint32_t)payload,
                                   weir_frame_traffic_class(frame), now_ns);
        weir_port_release(shm->port, WEIR_SIDE_HOST);
        frames++;
    }
    return frames;
}

static int shm_transmit(weir_io *io, weir_transport *t, int64_t now_ns)
{
    shm_io *shm = (shm_io *)io;
    int frames = 0;
    io->blocked = 0;
    while (weir_transport_sendable(t, now_ns)) {
        uint8_t *frame = weir_port_reserve(shm->port, WEIR_SIDE_HOST);
        if (!frame) {
            io->blocked = 1;
            break;
        }
        uint8_t traffic_class;
        uint32_t length = weir_transport_send(t, now_ns, frame + WEIR_FRAME_OVERHEAD, &traffic_class);
        weir_frame_header(frame, &shm->addresses, length, traffic_class);
        weir_port_commit(shm->port, WEIR_SIDE_HOST, WEIR_FRAME_OVERHEAD + length);
        frames++;
    }
    if (frames) weir_port_notify(shm->port, WEIR_SIDE_HOST);
    return frames;
}

static void shm_wait(weir_io *io, int64_t timeout_ns)
{
    weir_port_wait(((shm_io *)io)->port, WEIR_SIDE_HOST, timeout_ns);
}

static void shm_close(weir_io *io)
{
    shm_io *shm = (shm_io *)io;
    weir_port_close(shm->port);
    weir_bell_close(shm->bell);
    free(shm);
}

/* Send from and receive for these addresses from now on. */
void weir_shm_readdress(weir_io *io, const weir_addresses *addresses)
{
    ((shm_io *)io)->addresses = *addresses;
}

/* For how many nanoseconds threads look for work before they sleep; see ring.h. */
int64_t weir_shm_spin_ns(void) { return weir_spin_ns(); }

/* Attach to a switch's port. NULL with errno set. */
weir_io *weir_shm_open(const char *bell_path, const char *port_path, const weir_addresses *addresses)
{
    shm_io *shm = calloc(1, sizeof *shm);
    if (!shm) return NULL;
    shm->io =
        (weir_io){.receive = shm_receive, .transmit = shm_transmit, .wait = shm_wait, .close = shm_close};
    shm->io.room = WEIR_RING_BYTES / WEIR_MAX_RECORD;
    shm->io.spins = weir_spin_ns() > 0;
    shm->addresses = *addresses;
    shm->bell = weir_bell_open(bell_path, 0);
    shm->port = shm->bell ? weir_port_open(port_path, 0, shm->bell) : NULL;
    if (!shm->port) {
        int error = errno;
        weir_bell_close(shm->bell);
        free(shm);
        errno = error;
        return NULL;
    }
    return &shm->io;
}
