/* SPDX-License-Identifier: Apache-2.0 */
#include "drive.h"

#include <errno.h>
#include <time.h>

static const int64_t FULL_NS = 1000000; /* nobody wakes a sender when room is made: look again soon */

int64_t weir_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void nap(int64_t ns)
{
    if (ns <= 0) return;
    const struct timespec t = {ns / 1000000000, ns % 1000000000};
    nanosleep(&t, NULL);
}

/* gathering: something came, and more may come before it is read. Then it is slept without being woken, perhaps
 * somewhat beyond `end`. */
static void sleep_until_due(weir_io *io, const weir_transport *t, int64_t now, int64_t end, int gathering)
{
    const int naps = gathering && !io->blocked && !io->spins;
    const int64_t wait = naps ? weir_transport_coalescing(t, io->room) : 0;
    int64_t due = weir_transport_deadline(t);
    if (wait) {
        if (io->yield) io->yield(io);
        nap(now + wait < due ? wait : due - now);
        return;
    }
    due = due < end ? due : end;
    if (io->blocked && due > now + FULL_NS) due = now + FULL_NS;
    if (due > now) io->wait(io, due - now);
}

static enum weir_drive_result run(weir_io *io, weir_transport *t, int64_t slice_ns)
{
    int64_t now = weir_now_ns(), end = now + slice_ns;
    while (!weir_transport_done(t)) {
        int received = io->receive(io, t, now);
        int sent = received < 0 ? received : io->transmit(io, t, now);
        if (weir_transport_disagrees(t)) return WEIR_DRIVE_DISAGREE;
        if (sent < 0) {
            errno = -sent;
            return WEIR_DRIVE_ERROR;
        }
        const int idle = (!received && !sent) || io->drained;
        if (idle && !weir_transport_done(t)) sleep_until_due(io, t, now, end, received > 0);
        now = weir_now_ns();
        if (now >= end && !weir_transport_done(t)) return WEIR_DRIVE_RUNNING;
    }
    return WEIR_DRIVE_DONE;
}

enum weir_drive_result weir_drive(weir_io *io, weir_transport *t, int64_t slice_ns)
{
    const enum weir_drive_result result = run(io, t, slice_ns);
    const int error = errno;
    if (result != WEIR_DRIVE_RUNNING)
        weir_io_leave(io);
    else if (io->yield)
        io->yield(io);
    errno = error;
    return result;
}

static int64_t rest(weir_io *io, weir_transport *t)
{
    int64_t now = weir_now_ns(), due = weir_transport_deadline(t);
    if (due == WEIR_NEVER) return due;
    /* Even before the next time, there may be what did not fit in the last one. */
    if (due > now && !weir_transport_sendable(t, now)) return due - now;
    int done;
    while ((done = io->receive(io, t, now)) > 0) continue;
    if (done == 0) done = io->transmit(io, t, now);
    if (done < 0) return done;
    if (io->blocked) return FULL_NS;
    return weir_transport_deadline(t) - now;
}

int64_t weir_drive_rest(weir_io *io, weir_transport *t)
{
    const int64_t due = rest(io, t);
    weir_io_leave(io);
    return due;
}

void weir_io_leave(weir_io *io)
{
    if (io->leave) io->leave(io);
}

int weir_io_last_error(const weir_io *io) { return io->last_error; }

void weir_io_close(weir_io *io) { io->close(io); }
