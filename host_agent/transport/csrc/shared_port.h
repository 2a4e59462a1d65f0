/* SPDX-License-Identifier: Apache-2.0 */
/* A shared-memory port that several threads of a process use at once, each for a job of its own.
 *
 * A ring has one producer and one consumer. So threads send one after the other, and one at a time leads: it receives
 * for all, and puts frames of the others' jobs into their inboxes, which are rings as well. A thread that has no more to
 * receive for now lets another lead. A leader that sleeps in vain, because a worker of its job is late, loses the lead to
 * the next thread to come, whose results then do not go by way of a thread that must be woken first. A thread that is alone takes
 * a lock when it begins and when it ends, and to send. */
#ifndef WEIR_SHARED_PORT_H
#define WEIR_SHARED_PORT_H

#include <pthread.h>
#include <stdint.h>

#include "ring.h"

typedef struct weir_shared_port weir_shared_port;
typedef struct weir_inbox weir_inbox;
typedef struct weir_user weir_user;

/* One thread's part in a port. Its own but for what the lock is for. */
struct weir_user {
    weir_shared_port *shared;
    uint32_t job;
    int joined;
    int leads;         /* as far as this thread knows: it is told otherwise when it wakes */
    int forwarded;     /* frames went into others' inboxes since they were woken */
    int64_t active_ns; /* when it sent or received last */

    /* under the lock */
    weir_user *next;
    weir_inbox *inbox; /* NULL: it has needed none */
    int sleeps;        /* WEIR_ON_PORT, WEIR_ON_INBOX, or 0: it is awake */
    int filled;        /* something came into its inbox, and it was not woken */
};

/* Attach to a switch's port. NULL with errno set. */
weir_shared_port *weir_shared_open(const char *bell_path, const char *port_path);
/* Nobody uses it any more. */
void weir_shared_close(weir_shared_port *shared);

/* Take part: from now on frames of this job come here. Joining twice is harmless. */
void weir_user_join(weir_user *user, uint32_t job);
/* Take part no more, and let another lead. What is in the inbox is lost. */
void weir_user_leave(weir_user *user);
/* Receive nothing for a while: let another lead. */
void weir_user_yield(weir_user *user);
/* The port if this thread must receive from it, because it leads or nobody else does, or NULL; and its inbox, which must
 * be emptied first, or NULL. A frame of length 0 in there only wakes it. */
sp4_port *weir_user_turn(weir_user *user, sp4_port **inbox);
/* The port to send to, between begin and end. */
sp4_port *weir_user_begin_send(weir_user *user);
void weir_user_end_send(weir_user *user);
/* Put a frame of this job into its user's inbox. Returns 0 when there is none such. A full inbox loses it. */
int weir_user_forward(weir_user *user, uint32_t job, const void *frame, uint32_t length);
/* After a batch of frames: wake those that some were for. */
void weir_user_notify(weir_user *user);
/* Sleep until a frame may be there, or the lead must be taken, or the time is over. */
void weir_user_wait(weir_user *user, int64_t timeout_ns);

#endif
