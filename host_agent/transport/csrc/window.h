/* SPDX-License-Identifier: Apache-2.0 */
/* How many slots, or chunks of a flow, may be under way: a window that marks close, as DCTCP's (Alizadeh et al.,
 * 2010; RFC 8257).
 *
 * A window's worth of results is one observation. `alpha` follows the share of them that were marked, with gain
 * 1/16. The first mark of an observation closes the window by alpha/2; an observation without one that the
 * window held back opens it by one. A window that begins narrow doubles in every observation until its first mark.
 * Losses say nothing here, unless they are counted as marked, and except that silence halves the window, at most
 * once per observation too.
 *
 * A slot's round is as long as the slowest worker's way, so where different queues fill at different times, here and
 * elsewhere, every observation has a mark. Who says how long results took therefore opens the window by one whenever
 * the way was without marks for as long as the shortest of late: a round trip without the others' queues.
 *
 * Who says how much of the link it has (rate.h) is not closed by others' bursts: marks say all from a half on, nothing
 * up to two fifths. Below three tenths the window opens by one in a marked observation, too, unless packets seem to be
 * lost in it. So it has a share beside senders that no mark slows down. */
#ifndef WEIR_WINDOW_H
#define WEIR_WINDOW_H

#include <stdint.h>

static const double WEIR_SHARE_POOR = 0.3, WEIR_SHARE_FREE = 0.4, WEIR_SHARE_FULL = 0.5;

typedef struct {
    double size, alpha; /* `least` to `most`; running share of marked results */
    uint32_t least, most;
    uint32_t limit;                 /* `size` in whole numbers; UINT32_MAX when there is no window */
    uint32_t span, results, marked; /* of this observation: its length, and what was seen */
    uint8_t cut, limited;           /* in this observation: closed already; something had to wait */
    uint8_t lost;                   /* in this observation: something seems to be lost */
    double weight;                  /* of marks, by our share of the link: 0 to 1 */
    uint8_t poor;                   /* our share is small */
    int64_t trip_ns;                /* the shortest result of late took so long; 0: nobody says */
    int64_t clear_ns;               /* the last mark, or the last opening since */
    uint8_t starting;               /* no mark was seen yet, and it began narrow */
    uint32_t cuts;                  /* how often it was closed */
} weir_window;

static inline void weir_window_observe(weir_window *w)
{
    w->span = w->limit;
    w->results = w->marked = 0;
    w->cut = w->limited = w->lost = 0;
}

static inline void weir_window_init(weir_window *w, uint32_t least, uint32_t first, uint32_t most,
                                    int enabled)
{
    *w = (weir_window){.size = first,
                       .alpha = 1,
                       .weight = 1,
                       .least = least,
                       .most = most,
                       .limit = enabled ? first : UINT32_MAX,
                       .starting = enabled && first < most};
    weir_window_observe(w);
}

static inline void weir_window_close(weir_window *w, double share)
{
    w->starting = 0;
    if (w->cut || w->limit == UINT32_MAX) return;
    w->cut = 1;
    w->cuts++;
    w->size -= w->size * share;
    if (w->size < w->least) w->size = w->least;
    w->limit = (uint32_t)w->size;
}

static inline void weir_window_open(weir_window *w, uint32_t by)
{
    if (!w->limited || w->limit == UINT32_MAX) return;
    w->size = w->size + by < w->most ? w->size + by : w->most;
    w->limit = (uint32_t)w->size;
}

static inline void weir_window_turn(weir_window *w)
{
    w->alpha += ((double)w->marked / w->results - w->alpha) / 16;
    if (!w->marked && !w->cut && !w->starting && !w->trip_ns) weir_window_open(w, 1);
    if (w->marked && w->poor && !w->lost) weir_window_open(w, 1);
    w->trip_ns += w->trip_ns / 8; /* the way may have become longer */
    weir_window_observe(w);
}

/* This many results came in, of which some were marked. */
static inline void weir_window_results(weir_window *w, uint32_t results, uint32_t marked)
{
    w->results += results;
    w->marked += marked;
    if (marked)
        weir_window_close(w, w->alpha / 2 * w->weight);
    else if (w->starting)
        weir_window_open(w, results);
    if (w->results >= w->span) weir_window_turn(w);
}

/* A result came now, for a packet that was sent once, so long ago (0: sent again). Before it is counted. */
static inline void weir_window_trip(weir_window *w, int64_t now_ns, int64_t trip_ns, int marked)
{
    if (trip_ns && (!w->trip_ns || trip_ns < w->trip_ns)) w->trip_ns = trip_ns;
    if (!marked && (!w->trip_ns || now_ns - w->clear_ns < w->trip_ns)) return;
    w->clear_ns = now_ns;
    if (!marked) weir_window_open(w, 1);
}

/* So much of the link is ours. */
static inline void weir_window_share(weir_window *w, double share)
{
    const double weight = (share - WEIR_SHARE_FREE) / (WEIR_SHARE_FULL - WEIR_SHARE_FREE);
    w->weight = weight < 0 ? 0 : weight > 1 ? 1 : weight;
    w->poor = share < WEIR_SHARE_POOR;
}

/* Nothing is heard any more. */
static inline void weir_window_silence(weir_window *w) { weir_window_close(w, 0.5); }

#endif
