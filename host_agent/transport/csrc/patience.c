/* SPDX-License-Identifier: Apache-2.0 */
/* How long to let results gather.
 *
 * Where a link limits, results come at its pace, and whoever is woken for each train of them is woken for little.
 * So they may lie for half the time that packets spend in queues on their way: the other half of what is under way
 * still waits in front of the link, which does not run empty; and what waits for us does not wait there, so that
 * rounds take no longer. Where there is no queue nothing waits, nor at the end of a reduce, when each result may be
 * what the caller waits for. And no more than half of the room that there is for them is made use of. */
#include "state.h"

static const int64_t LEAST_NS = 200000 /* shorter naps cost more than they save */, MOST_NS = 10000000;

int64_t weir_transport_patience(const weir_transport *t, uint32_t room)
{
    if (!t->heard || t->active < t->used) return 0;
    int64_t half = weir_rtt_queueing(&t->rtt) / 2;
    if (t->outstanding > room) half = half * room / t->outstanding;
    return half < LEAST_NS ? 0 : half < MOST_NS ? half : MOST_NS;
}
