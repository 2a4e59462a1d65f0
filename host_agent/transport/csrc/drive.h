/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a transport's reduce to its end over something that carries packets. */
#ifndef WEIR_DRIVE_H
#define WEIR_DRIVE_H

#include <stdint.h>

#include "transport.h"

enum { WEIR_BATCH = 64 }; /* packets taken in before answers go out */

/* A carrier of packets. The functions never block, except `wait`. */
typedef struct weir_io weir_io;
struct weir_io {
    /* Hand up to WEIR_BATCH waiting payloads to the transport. Returns how many frames were there, or -errno. */
    int (*receive)(weir_io *, weir_transport *, int64_t now_ns);
    /* Send what the transport has. Returns how many packets went out, or -errno; sets `blocked` when there
     * is more than the carrier takes now. */
    int (*transmit)(weir_io *, weir_transport *, int64_t now_ns);
    /* Sleep until something arrived or the time is over. */
    void (*wait)(weir_io *, int64_t timeout_ns);
    /* Where the carrier is shared, or NULL: let others receive, as the caller will not for a while; and as what it
     * runs is over. */
    void (*yield)(weir_io *);
    void (*leave)(weir_io *);
    void (*close)(weir_io *);
    uint32_t room; /* packets that wait in the carrier without being lost */
    int blocked;
    int spins;   /* `wait` looks for frames without sleeping, for a while */
    int drained; /* set by `receive`: nothing more is there, and to wait costs no more than to look again */
    int last_error; /* an errno that was taken for a lost packet, for error messages */
};

/* Mirrored by weir.host_agent.transport.links._DriveResult. */
enum weir_drive_result { WEIR_DRIVE_DONE, WEIR_DRIVE_RUNNING, WEIR_DRIVE_ERROR, WEIR_DRIVE_DISAGREE };

/* Run until the reduce is done, `slice_ns` is over (RUNNING: the caller looks around and calls again), or
 * the carrier failed (ERROR, errno says how), or the workers turn out to be in different operations (DISAGREE). */
enum weir_drive_result weir_drive(weir_io *io, weir_transport *t, int64_t slice_ns);

/* Take in what came and send what is due of a transport whose reduce is done. Returns after how many nanoseconds it
 * must be called again, WEIR_NEVER for never, or -errno when the carrier failed. */
int64_t weir_drive_rest(weir_io *io, weir_transport *t);

/* Give up what was RUNNING. */
void weir_io_leave(weir_io *io);

/* The time that `now_ns` is everywhere here. */
int64_t weir_now_ns(void);

int weir_io_last_error(const weir_io *io);
void weir_io_close(weir_io *io);

#endif
