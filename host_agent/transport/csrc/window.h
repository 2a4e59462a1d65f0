/* SPDX-License-Identifier: Apache-2.0 */
/* How many slots may be open at once: a window that marks close, as DCTCP's (Alizadeh et al., 2010).
 *
 * A window's worth of results is one observation. `alpha` follows the share of them that were marked, with gain
 * 1/16. The first mark of an observation closes the window by alpha/2; an observation without one that the
 * window held back opens it by one slot. Losses say nothing here, except that a packet that timed out twice
 * halves the window, at most once per observation too. */
#ifndef WEIR_WINDOW_H
#define WEIR_WINDOW_H

#include <stdint.h>

typedef struct {
    double size, alpha; /* slots, 1 to `most`; running share of marked results */
    uint32_t most;
    uint32_t limit;                 /* `size` in whole slots; UINT32_MAX when there is no window */
    uint32_t span, results, marked; /* of this observation: its length, and what was seen */
    uint8_t cut, limited;           /* in this observation: closed already; some slot had to wait */
} weir_window;

static inline void weir_window_observe(weir_window *w)
{
    w->span = w->limit;
    w->results = w->marked = 0;
    w->cut = w->limited = 0;
}

static inline void weir_window_init(weir_window *w, uint32_t slots, int enabled)
{
    *w = (weir_window){.size = slots, .alpha = 1, .most = slots, .limit = enabled ? slots : UINT32_MAX};
    weir_window_observe(w);
}

static inline void weir_window_close(weir_window *w, double share)
{
    if (w->cut || w->limit == UINT32_MAX) return;
    w->cut = 1;
    w->size -= w->size * share;
    if (w->size < 1) w->size = 1;
    w->limit = (uint32_t)w->size;
}

static inline void weir_window_turn(weir_window *w)
{
    w->alpha += ((double)w->marked / w->results - w->alpha) / 16;
    if (!w->marked && !w->cut && w->limited) {
        w->size = w->size + 1 < w->most ? w->size + 1 : w->most;
        w->limit = (uint32_t)w->size;
    }
    weir_window_observe(w);
}

/* A round's result came in. */
static inline void weir_window_result(weir_window *w, int marked)
{
    w->results++;
    if (marked) {
        w->marked++;
        weir_window_close(w, w->alpha / 2);
    }
    if (w->results >= w->span) weir_window_turn(w);
}

/* A packet timed out for the second time. */
static inline void weir_window_silence(weir_window *w) { weir_window_close(w, 0.5); }

#endif
