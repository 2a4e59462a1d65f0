/* SPDX-License-Identifier: Apache-2.0 */
/* What a switch that restarts has forgotten, and only a worker that has gone on can tell it.
 *
 * A switch that dies may have sent the result of a round to some of its workers. They are in the next round, which
 * needs everybody; the others ask for a result that nobody holds any more. So a worker keeps its contribution to
 * the last completed round of each slot, and repeats them when it has heard nothing for long: the switch sums them
 * once more, to the same bits as everything in them is lossless, or answers with what it still has. Not kept is what
 * may have been given up: a second sum could have other workers in it. Chosen here; SwitchML and its like leave a
 * switch that fails to a new job.
 *
 * A worker whose reduce is done hears nothing of those that wait for a result of it. So it repeats, too, as long as
 * it has nothing else to do: after a while, and then more and more rarely. */
#include <string.h>

#include "recover.h"
#include "round.h"

enum { REST_DOUBLES = 6 };

void weir_keep(weir_transport *t, uint32_t s)
{
    if (!t->kept) return;
    t->kept_bytes[s] = 0;
    if (!t->budget.count)
        t->kept_bytes[s] =
            (uint16_t)weir_round_write(t, s, weir_repeated(&t->slots[s]), t->kept + (size_t)s * t->kept_size);
}

void weir_replay_timeout(weir_transport *t, int64_t now_ns)
{
    if (t->replay_ns == WEIR_NEVER)
        t->replay_wait_ns = t->config.max_rto_ns;
    else if (now_ns < t->replay_ns)
        return;
    else {
        t->replay = 0;
        t->replay_wait_ns *= 2;
    }
    t->replay_ns = now_ns + t->replay_wait_ns;
}

void weir_replay_rest(weir_transport *t, int64_t now_ns)
{
    if (!t->kept) return;
    t->replay_wait_ns = t->config.max_rto_ns;
    t->replay_ns = now_ns + t->replay_wait_ns;
}

void weir_replay_rested(weir_transport *t, int64_t now_ns)
{
    if (now_ns < t->replay_ns) return;
    t->replay = 0;
    if (t->replay_wait_ns < t->config.max_rto_ns << REST_DOUBLES) t->replay_wait_ns *= 2;
    t->replay_ns = now_ns + t->replay_wait_ns;
}

void weir_replay_stop(weir_transport *t)
{
    t->replay_ns = WEIR_NEVER;
    t->replay = t->config.slots;
}

int weir_replay_due(weir_transport *t)
{
    while (t->replay < t->config.slots && !t->kept_bytes[t->replay]) t->replay++;
    return t->replay < t->config.slots;
}

uint32_t weir_replay_write(weir_transport *t, uint8_t *out)
{
    const uint32_t s = t->replay++;
    memcpy(out, t->kept + (size_t)s * t->kept_size, t->kept_bytes[s]);
    t->report.replays++;
    return t->kept_bytes[s];
}
