/* SPDX-License-Identifier: Apache-2.0 */
/* Whole frames of one job over a shared-memory port that other threads of the process may use for theirs. */
#include <stdlib.h>

#include "frame.h"
#include "shared_port.h"

typedef struct {
    weir_user user;
} weir_frames;

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

/* Returns whether there was room for the frame. */
int weir_frames_send(weir_frames *f, const void *frame, uint32_t length)
{
    sp4_port *port = weir_user_begin_send(&f->user);
    void *room = length <= SP4_MAX_FRAME ? sp4_port_reserve(port, SP4_SIDE_HOST) : NULL;
    if (room) {
        memcpy(room, frame, length);
        sp4_port_commit(port, SP4_SIDE_HOST, length);
    }
    weir_user_end_send(&f->user);
    return room != NULL;
}

/* Wake the switch for the frames that were sent. */
void weir_frames_notify(weir_frames *f)
{
    sp4_port *port = weir_user_begin_send(&f->user);
    weir_user_end_send(&f->user);
    sp4_port_notify(port, SP4_SIDE_HOST);
}

static int is_ours(weir_frames *f, const uint8_t *frame, uint32_t length)
{
    if (length < WEIR_FRAME_OVERHEAD + WEIR_WEIR_SIZE) return 0;
    const uint32_t job = weir_get32(frame + WEIR_FRAME_OVERHEAD + WEIR_WEIR_JOB_OFFSET);
    if (job == f->user.job) return 1;
    weir_user_forward(&f->user, job, frame, length);
    return 0;
}

/* Copies up to `most` frames to places of SP4_MAX_FRAME bytes each, with their lengths. Returns how many. */
uint32_t weir_frames_receive(weir_frames *f, uint8_t *frames, uint32_t *lengths, uint32_t most)
{
    sp4_port *inbox, *port = weir_user_turn(&f->user, &inbox);
    const uint8_t *frame;
    uint32_t length, taken = 0, seen = 0;
    for (; inbox && taken < most && (frame = sp4_port_peek(inbox, SP4_SIDE_HOST, &length));) {
        if (length) {
            memcpy(frames + (size_t)taken * SP4_MAX_FRAME, frame, length);
            lengths[taken++] = length;
        }
        sp4_port_release(inbox, SP4_SIDE_HOST);
    }
    for (; port && taken < most && seen < 4 * most && (frame = sp4_port_peek(port, SP4_SIDE_HOST, &length));
         seen++) {
        if (is_ours(f, frame, length)) {
            memcpy(frames + (size_t)taken * SP4_MAX_FRAME, frame, length);
            lengths[taken++] = length;
        }
        sp4_port_release(port, SP4_SIDE_HOST);
    }
    weir_user_notify(&f->user);
    if (taken) f->user.active_ns = sp4_clock_ns();
    return taken;
}

/* Sleep until a frame may be there, or the time is over. */
void weir_frames_wait(weir_frames *f, int64_t timeout_ns) { weir_user_wait(&f->user, timeout_ns); }
