/* SPDX-License-Identifier: Apache-2.0 */
/* How much of its link a job has, from the pace of its results' lanes: now, over the fastest that it ever was.
 *
 * Others' bursts mark whatever waits with them. To narrow a window for their marks gives them the link and shortens no
 * queue. So who has less than half of a link takes marks for somebody else's (window.h).
 *
 * A pace is that of WEIR_PACE_RESULTS results that take WEIR_PACE_NS, at least, so that those which arrive at once, as
 * the kernel or a nap bundles them, say nothing wrong. Time counts while more rounds wait to be sent. */
#ifndef WEIR_RATE_H
#define WEIR_RATE_H

#include <stdint.h>

static const int64_t WEIR_PACE_NS = 5000000;
static const double WEIR_PACE_MEMORY_NS = 100000000; /* that a pace is smoothed over */
enum { WEIR_PACE_RESULTS = 16 };

typedef struct {
    int64_t began_ns;         /* of the pace that is measured; 0: it begins with the next result */
    uint32_t results, groups; /* since then; lane groups in them */
    double smooth, most;      /* lane groups in a nanosecond; 0: not measured yet */
} weir_rate;

/* From now on nothing waits to be sent, so that results say nothing about the link. */
static inline void weir_rate_pause(weir_rate *r) { r->began_ns = 0; }

/* Returns whether the pace is known better now. */
static inline int weir_rate_result(weir_rate *r, uint32_t groups, int64_t now_ns)
{
    if (!r->began_ns) {
        r->began_ns = now_ns;
        r->results = r->groups = 0;
        return 0;
    }
    const int64_t took_ns = now_ns - r->began_ns;
    r->groups += groups;
    if (++r->results < WEIR_PACE_RESULTS || took_ns < WEIR_PACE_NS) return 0;
    const double pace = r->groups / (double)took_ns;
    if (r->smooth > 0)
        r->smooth += (pace - r->smooth) * (double)took_ns / ((double)took_ns + WEIR_PACE_MEMORY_NS);
    else
        r->smooth = pace;
    if (pace > r->most) r->most = pace;
    r->began_ns = now_ns;
    r->results = r->groups = 0;
    return 1;
}

/* All of it where nothing is known. */
static inline double weir_rate_share(const weir_rate *r) { return r->most > 0 ? r->smooth / r->most : 1; }

#endif
