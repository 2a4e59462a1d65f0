/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time estimation and retransmission timeout, RFC 6298. All times in nanoseconds.
 *
 * A round ends when the last worker's packet is in. When somebody else's was lost, it lasts as long as that
 * worker's timeout, which is about ours: measured, it would make timeouts feed on each other. So a round that
 * took more than half the timeout, or that needed a repeat (Karn), counts as slow and is left out; unless
 * round after round is: then it is the network that is. */
#ifndef WEIR_RTT_H
#define WEIR_RTT_H

#include <stdint.h>

typedef struct {
    int64_t srtt_ns, rttvar_ns; /* srtt 0: nothing measured yet */
    int64_t rto_ns, min_ns, max_ns;
    uint32_t slow; /* rounds left out since the last one that was not */
} weir_rtt;

enum { WEIR_SLOW_ROUNDS = 8 };

static inline void weir_rtt_init(weir_rtt *r, int64_t initial_ns, int64_t min_ns, int64_t max_ns)
{
    *r = (weir_rtt){.rto_ns = initial_ns, .min_ns = min_ns, .max_ns = max_ns};
}

static inline void weir_rtt_sample(weir_rtt *r, int64_t rtt_ns)
{
    if (rtt_ns < 1)
        rtt_ns = 1;
    if (r->srtt_ns == 0) {
        r->srtt_ns = rtt_ns;
        r->rttvar_ns = rtt_ns / 2;
    } else {
        int64_t error = rtt_ns - r->srtt_ns;
        r->rttvar_ns += ((error < 0 ? -error : error) - r->rttvar_ns) / 4;
        r->srtt_ns += error / 8;
    }
    int64_t rto = r->srtt_ns + 4 * r->rttvar_ns;
    r->rto_ns = rto < r->min_ns ? r->min_ns : rto > r->max_ns ? r->max_ns : rto;
}

/* A round took so long; `repeated`: its packet was sent more than once. */
static inline void weir_rtt_round(weir_rtt *r, int64_t ns, int repeated)
{
    if ((repeated || 2 * ns > r->rto_ns) && ++r->slow < WEIR_SLOW_ROUNDS)
        return;
    r->slow = 0;
    weir_rtt_sample(r, ns < 2 * r->rto_ns ? ns : 2 * r->rto_ns);
}

/* The timeout after `repeats` packets of a round went unanswered: doubled each time, up to the maximum. */
static inline int64_t weir_rtt_backed_off(const weir_rtt *r, uint32_t repeats)
{
    int64_t rto = r->rto_ns;
    while (repeats-- && rto < r->max_ns)
        rto *= 2;
    return rto < r->max_ns ? rto : r->max_ns;
}

#endif
