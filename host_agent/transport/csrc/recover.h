/* SPDX-License-Identifier: Apache-2.0 */
/* What goes out more than once: packets of rounds in progress (recover.c), and of rounds that are over (replay.c). */
#ifndef WEIR_RECOVER_H
#define WEIR_RECOVER_H

#include "state.h"

/* Send the packet of the slot's round again, for this reason. */
void weir_send_again(weir_transport *t, uint32_t s, uint8_t reason);

/* The next slot to be sent again; there must be one. It may have got its result meanwhile: then `due` is 0. */
uint32_t weir_take_again(weir_transport *t);

/* A packet of the slot was sent. Until the first result of a reduce, silence says that some worker is late, not
 * that packets were lost: then only slot 0 has a timer. */
void weir_arm_timer(weir_transport *t, uint32_t s, int64_t now_ns);

/* The first result of a reduce came: from now on every slot has a timer. */
void weir_hear(weir_transport *t, int64_t now_ns);

/* Find what is lost by now. */
void weir_recover(weir_transport *t, int64_t now_ns);

/* ------------------------------------------------------------------------------------------- replay.c */

/* Make a note of our contribution to the slot's round, whose result has come and is not yet applied. */
void weir_keep(weir_transport *t, uint32_t s);

/* A retransmission timeout is over. The first one in a silence starts the clock. */
void weir_replay_timeout(weir_transport *t, int64_t now_ns);

/* Something new came: nothing needs repeating. */
void weir_replay_stop(weir_transport *t);

/* Our reduce is done; it may not be so for others. */
void weir_replay_rest(weir_transport *t, int64_t now_ns);

/* Our reduce has been done for some time. */
void weir_replay_rested(weir_transport *t, int64_t now_ns);

/* Whether one must be repeated now, and to write it. Returns its length. */
int weir_replay_due(weir_transport *t);
uint32_t weir_replay_write(weir_transport *t, uint8_t *out);

#endif
