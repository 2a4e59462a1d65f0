/* SPDX-License-Identifier: Apache-2.0 */
/* How long answers take, and timeouts that follow from it (RFC 6298). All times in nanoseconds. A flow has one
 * estimate: all that its timeout does is to ask. Slots have two:
 *
 * After the early one we ask, which costs little; after the other, lanes are sent again. Each has an estimate of
 * its own, because a round ends when the last worker's packet is in: when somebody else's was lost, it lasts as
 * long as that worker's timeout, which is about ours. Measured, it would make timeouts feed on each other. So a
 * round that took more than half the timeout, or that needed a repeat (Karn), counts as slow and is left out;
 * unless round after round is: then it is the network, or the machine, that is.
 *
 * On a slow link the packets of all slots wait in one queue and take equally long, so that the deviation goes to
 * nothing. Then the slightest delay would time all of them out, and their repeats would be the next delay. So the
 * other timeout is above the mean by its minimum at least, as Linux has it.
 *
 * Asking too early shows: the answer comes twice. Then the early timeout doubles, up to a quarter of the other,
 * and is halved again for every WEIR_CALM_NS in which that does not happen; RACK's reordering window adapts
 * likewise (RFC 8985). */
#ifndef WEIR_RTT_H
#define WEIR_RTT_H

#include <stdint.h>

enum { WEIR_SLOW_ROUNDS = 8 };
static const int64_t WEIR_CALM_NS = 500000000;

typedef struct {
    int64_t mean_ns, deviation_ns; /* mean 0: nothing measured yet */
    int64_t timeout_ns, least_ns, most_ns;
    int64_t margin_ns;    /* the timeout is at least this much above the mean ... */
    uint32_t margin_part; /* ... and by this part of it: one in this many; 0: no more */
    uint32_t slow;        /* rounds since the last one that was not */
} weir_estimate;

typedef struct {
    weir_estimate early, late;
    int64_t shortest_ns; /* that a round took: the way without queues; 0: nothing measured yet */
    uint32_t caution;    /* times that the early timeout is doubled */
    int64_t caution_ns;  /* since when */
} weir_rtt;

static inline void weir_rtt_init(weir_rtt *r, int64_t initial_ns, int64_t least_early_ns, int64_t least_ns,
                                 int64_t most_ns)
{
    *r = (weir_rtt){
        .early = {.timeout_ns = initial_ns, .least_ns = least_early_ns, .most_ns = most_ns},
        .late = {.timeout_ns = initial_ns, .least_ns = least_ns, .most_ns = most_ns, .margin_ns = least_ns},
    };
}

static inline void weir_estimate_sample(weir_estimate *e, int64_t ns)
{
    if (ns < 1) ns = 1;
    if (e->mean_ns == 0) {
        e->mean_ns = ns;
        e->deviation_ns = ns / 2;
    } else {
        int64_t error = ns - e->mean_ns;
        e->deviation_ns += ((error < 0 ? -error : error) - e->deviation_ns) / 4;
        e->mean_ns += error / 8;
    }
    int64_t margin = 4 * e->deviation_ns > e->margin_ns ? 4 * e->deviation_ns : e->margin_ns;
    if (e->margin_part && margin < e->mean_ns / e->margin_part) margin = e->mean_ns / e->margin_part;
    int64_t timeout = e->mean_ns + margin;
    timeout = timeout < e->most_ns ? timeout : e->most_ns;
    e->timeout_ns = timeout > e->least_ns ? timeout : e->least_ns;
}

static inline void weir_estimate_round(weir_estimate *e, int64_t ns, int repeated)
{
    if (!repeated && 2 * ns <= e->timeout_ns)
        e->slow = 0;
    else if (e->slow < WEIR_SLOW_ROUNDS && ++e->slow < WEIR_SLOW_ROUNDS)
        return;
    weir_estimate_sample(e, ns < 2 * e->timeout_ns ? ns : 2 * e->timeout_ns);
}

/* A round took so long. `repeated`: its packet was sent more than once. `together`: all workers were known to
 * be at work when it was sent. */
static inline void weir_rtt_round(weir_rtt *r, int64_t ns, int repeated, int together)
{
    if (!repeated && (ns < r->shortest_ns || !r->shortest_ns)) r->shortest_ns = ns > 1 ? ns : 1;
    if (together) {
        weir_estimate_round(&r->early, ns, repeated);
        weir_estimate_round(&r->late, ns, repeated);
    } else if (!repeated) {
        /* It may have waited for a late worker, or have been the first in an empty queue: so it says nothing about
         * when to send lanes again, and to the early timeout at most that it is too long. */
        if (2 * ns < r->early.mean_ns)
            r->early.mean_ns = 0; /* what was measured was a late worker: forget it */
        if (!r->early.mean_ns || ns < r->early.mean_ns) weir_estimate_sample(&r->early, ns);
    }
}

/* The early timeout: never more than the other. */
static inline int64_t weir_rtt_early(const weir_rtt *r)
{
    int64_t early = r->early.timeout_ns, late = r->late.timeout_ns, cautious = early << r->caution;
    if (early > late) return late;
    return cautious < late / 4 ? cautious : early > late / 4 ? early : late / 4;
}

/* The way may have become longer since it was measured. Once per reduce: so that it is learnt in some tens. */
static inline void weir_rtt_forget(weir_rtt *r)
{
    if (r->shortest_ns < r->late.most_ns) r->shortest_ns += r->shortest_ns / 16;
}

/* How much of the time that rounds take now is spent in queues. */
static inline int64_t weir_rtt_queueing(const weir_rtt *r)
{
    return r->shortest_ns && r->early.mean_ns > r->shortest_ns ? r->early.mean_ns - r->shortest_ns : 0;
}

/* We asked too early. */
static inline void weir_rtt_hasty(weir_rtt *r, int64_t now_ns)
{
    if (r->early.timeout_ns << r->caution >= r->late.timeout_ns / 4 ||
        (r->caution && now_ns - r->caution_ns < weir_rtt_early(r)))
        return;
    r->caution++;
    r->caution_ns = now_ns;
}

/* A round is complete. */
static inline void weir_rtt_calm(weir_rtt *r, int64_t now_ns)
{
    if (r->caution && now_ns - r->caution_ns >= WEIR_CALM_NS) {
        r->caution--;
        r->caution_ns = now_ns;
    }
}

/* A timeout of which `repeats` went by: doubled each time, up to a maximum. */
static inline int64_t weir_backed_off(int64_t timeout_ns, uint32_t repeats, int64_t most_ns)
{
    while (repeats-- && timeout_ns < most_ns) timeout_ns *= 2;
    return timeout_ns < most_ns ? timeout_ns : most_ns;
}

static inline int64_t weir_rtt_backed_off(const weir_rtt *r, int64_t timeout_ns, uint32_t repeats)
{
    return weir_backed_off(timeout_ns, repeats, r->late.most_ns);
}

#endif
