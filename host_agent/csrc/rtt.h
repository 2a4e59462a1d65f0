/* SPDX-License-Identifier: Apache-2.0 */
/* Round-trip time estimation and timeouts, RFC 6298. All times in nanoseconds.
 *
 * Two timeouts come of one estimate, with different lower bounds: `early_ns`, after which we ask, which costs
 * little, and `rto_ns`, after which lanes are sent again.
 *
 * A round ends when the last worker's packet is in. When somebody else's was lost, it lasts as long as that
 * worker's timeout, which is about ours: measured, it would make timeouts feed on each other. So a round that
 * took more than half the lesser timeout, or that needed a repeat (Karn), counts as slow and is left out; unless
 * round after round is: then it is the network that is. */
#ifndef WEIR_RTT_H
#define WEIR_RTT_H

#include <stdint.h>

typedef struct {
    int64_t srtt_ns, rttvar_ns; /* srtt 0: nothing measured yet */
    int64_t early_ns, rto_ns;
    int64_t min_early_ns, min_rto_ns, max_ns;
    uint32_t slow; /* rounds left out since the last one that was not */
} weir_rtt;

enum { WEIR_SLOW_ROUNDS = 8 };

static inline int64_t weir_rtt_clamp(int64_t ns, int64_t least, int64_t most)
{
    return ns < least ? least : ns > most ? most : ns;
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
    int64_t timeout = r->srtt_ns + 4 * r->rttvar_ns;
    r->early_ns = weir_rtt_clamp(timeout, r->min_early_ns, r->max_ns);
    r->rto_ns = weir_rtt_clamp(timeout, r->min_rto_ns, r->max_ns);
}

/* A round took so long. `repeated`: its packet was sent more than once. `together`: all workers were known to
 * be at work when it was sent; else it may have waited for a late one, and only shows an estimate too high. */
static inline void weir_rtt_round(weir_rtt *r, int64_t ns, int repeated, int together)
{
    if (!together) {
        if (repeated || (r->srtt_ns && ns >= r->srtt_ns))
            return;
        if (2 * ns < r->srtt_ns)
            r->srtt_ns = 0; /* so what we measured was a late worker: forget it */
        weir_rtt_sample(r, ns);
        return;
    }
    int64_t timeout = r->early_ns < r->rto_ns ? r->early_ns : r->rto_ns;
    if ((repeated || 2 * ns > timeout) && ++r->slow < WEIR_SLOW_ROUNDS)
        return;
    r->slow = 0;
    weir_rtt_sample(r, ns < 2 * timeout ? ns : 2 * timeout);
}

/* A timeout of which `repeats` went by: doubled each time, up to the maximum. */
static inline int64_t weir_rtt_backed_off(const weir_rtt *r, int64_t timeout_ns, uint32_t repeats)
{
    while (repeats-- && timeout_ns < r->max_ns)
        timeout_ns *= 2;
    return timeout_ns < r->max_ns ? timeout_ns : r->max_ns;
}

#endif
