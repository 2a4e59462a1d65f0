/* SPDX-License-Identifier: Apache-2.0 */
/* How many slots may be under way on a path that is shared with strangers: a window that grows as CUBIC's does (RFC
 * 9438), and a pace.
 *
 * Links that lose packets without being full would keep CUBIC's window small: 1 % of loss lets it have some ten
 * segments, where a path of 100 Mbit/s and 50 ms holds 500. So losses are counted apart: while packets wait in a queue,
 * and while they do not. If they are more frequent in queues, queues are full, and a loss closes the window by 30 %, as
 * CUBIC's: TCP gets its share there. Otherwise, it closes it by the part of the round trip that is spent in queues, beyond an
 * eighth, as this is what the path cannot hold (Westwood+): where no queue is, the line stays full. In queues too short
 * to be seen, one packet lost in 25 is taken for a full one. While no queue is seen, the window grows faster than
 * CUBIC's: by a 32nd in a round trip, unless such losses came of late. A mark is a loss in a full queue.
 *
 * The queue is what round trips took of late beyond the shortest one of 10 to 20 s. A round says nothing about it, as
 * it waits for other workers' packets, too. So now and then a question about a slot goes out right before the slot's
 * packet: the switch, which lacks that, asks for it at once, and this is a round trip of our own path.
 *
 * A packet that the switch lacks was lost on our own path. A result that is late may have been lost, or wait for another
 * worker that lost its own: such a loss says as much less as there are workers.
 */
#ifndef WEIR_PATH_H
#define WEIR_PATH_H

#include <math.h>
#include <stdint.h>

typedef struct {
    uint32_t results, lost;
} weir_losses;

typedef struct {
    double size; /* `least` to `most`: slots that may be under way */
    uint32_t least, most;
    uint8_t starting; /* doubles in every round trip, until it meets a queue */
    int64_t base_ns;  /* shortest round trip of late; 0: nothing measured yet */
    int64_t base_next_ns,
        base_turn_ns;                 /* shortest since then, which takes the place of `base` after a while */
    int64_t smooth_ns;                /* round trips now */
    int64_t round_ns, round_least_ns; /* the same of rounds as of round trips below */
    uint32_t rounds;
    int64_t ask_ns;              /* when to measure the next round trip */
    int64_t look_ns;             /* when to look whether lost packets were lost again */
    int64_t recent_ns, least_ns; /* the shortest of WEIR_PATH_SAMPLES; of those that are counted now */
    uint32_t samples;
    int64_t turn_ns;        /* since when this turn, of one round trip, lasts */
    double turn_size;       /* the window at its beginning */
    int64_t cut_ns;         /* what was sent before says no more: the window was closed since */
    uint32_t results, lost; /* counted together, for the share that is lost, times workers */
    uint32_t workers;
    int64_t drained_ns;        /* when a queue that was full is not so any more */
    weir_losses clear, queued; /* of packets that met no queue, and of others */
    uint32_t unasked;          /* packets since the last round trip was measured */
    double goal, away,
        reno;        /* CUBIC: where its curve is flat, after how many seconds; what Reno would have */
    double grown;    /* seconds for which it has grown */
    int64_t wary_ns; /* until then queues may be too short to be seen */
    int64_t free_ns; /* when the next packet may leave */
} weir_path;

static const double WEIR_CUBIC_SCALE = 0.55; /* slots per cubic second: 0.4 segments of TCP */
static const double WEIR_CUBIC_CUT = 0.3;
static const double WEIR_RENO_STEP = 0.73; /* slots in a round trip: RFC 9438's alpha, in segments of TCP */
static const double WEIR_FREE_STEP = 1 / 32.;
static const int64_t WEIR_BASE_LASTS_NS = 10000000000;
static const int64_t WEIR_PACE_CHUNK_NS =
    1000000; /* of a pace, sent at once: timers are not exact, and batches are cheap */
enum {
    WEIR_PATH_FIRST = 16,    /* slots at the beginning, as TCP's ten segments (RFC 6928) */
    WEIR_PATH_LOST = 24,     /* losses that say something, if they are more than one of ... */
    WEIR_PATH_SHARE = 25,    /* ... this many packets */
    WEIR_PATH_CLEAR = 128,   /* results without a queue that say how much is lost at random */
    WEIR_PATH_MEMORY = 1024, /* results that are counted together, at least: a window's, if that is more */
    WEIR_PATH_SAMPLES = 4,   /* round trips of which the shortest tells of queues */
    WEIR_PATH_ROUNDS = 16,   /* the same of rounds: another worker may have lost a packet */
    WEIR_PATH_ASKS = 32,     /* round trips that are measured in the time of one, at most, ... */
    WEIR_PATH_UNASKED = 8,   /* ... and at most one in this many packets */
    WEIR_PATH_CHUNK = 64,    /* packets sent at once, at most */
};

static inline void weir_path_init(weir_path *p, uint32_t workers, uint32_t least, uint32_t most)
{
    const uint32_t first = most < WEIR_PATH_FIRST ? most : WEIR_PATH_FIRST;
    *p = (weir_path){.size = first,
                     .least = least,
                     .most = most,
                     .starting = 1,
                     .workers = workers,
                     .unasked = WEIR_PATH_UNASKED};
}

static inline uint32_t weir_path_limit(const weir_path *p) { return (uint32_t)p->size; }

static inline void weir_path_resize(weir_path *p, double size)
{
    p->size = size < p->least ? p->least : size > p->most ? p->most : size;
}

/* How much of a round trip is spent in queues, beyond a little that keeps the line busy. */
static inline double weir_path_queue(const weir_path *p)
{
    const int64_t spare = p->base_ns / 8 > 1000000 ? p->base_ns / 8 : 1000000;
    const int64_t queue = p->recent_ns - p->base_ns - spare;
    return queue > 0 ? (double)queue / (double)p->recent_ns : 0;
}

static inline int weir_path_queued(const weir_path *p)
{
    const int64_t queue = p->smooth_ns - p->base_ns;
    return queue > p->base_ns / 16 && queue > 1000000;
}

/* Losses come to light in bursts, so less than a round trip of results says nothing about their share. */
static inline uint32_t weir_path_memory(const weir_path *p)
{
    return p->size > WEIR_PATH_MEMORY ? (uint32_t)p->size : WEIR_PATH_MEMORY;
}

/* Count a result, or a loss, unless the window was closed by much just before, so that the queue is another now.
 * Losses are known a round trip later than results, of which there are twice as many by then at the start. */
static inline void weir_path_count(weir_path *p, int lost, int64_t sent_ns)
{
    if (sent_ns < p->drained_ns) return;
    weir_losses *now = weir_path_queued(p) ? &p->queued : &p->clear;
    if (lost)
        now->lost += p->starting ? 2 : 1;
    else
        now->results++;
    if (now->results >= weir_path_memory(p)) now->results /= 2, now->lost /= 2;
}

/* Whether more is lost in queues than without them. */
static inline int weir_path_overflows(const weir_path *p)
{
    const weir_losses *clear = &p->clear;
    const double usual = clear->results >= WEIR_PATH_CLEAR ? (double)clear->lost / clear->results : 0;
    return p->queued.lost > 2 * usual * p->queued.results + 2;
}

/* CUBIC's curve from here on. `before`: the window that was too much. */
static inline void weir_path_epoch(weir_path *p, double before)
{
    p->starting = 0;
    p->goal = before > p->size ? before : p->size;
    p->away = cbrt((p->goal - p->size) / WEIR_CUBIC_SCALE);
    p->reno = p->size;
    p->grown = 0;
}

static inline void weir_path_close(weir_path *p, double share, int64_t now_ns)
{
    /* One that did not reach the last goal leaves room for others. */
    const double before = p->size < p->goal ? p->size * (1 - WEIR_CUBIC_CUT / 2) : p->size;
    p->cut_ns = now_ns;
    p->results = p->lost = 0;
    p->recent_ns = p->samples = 0; /* the queue is another from now on */
    if (share >= WEIR_CUBIC_CUT) {
        p->drained_ns = now_ns + p->smooth_ns;
        p->queued = (weir_losses){0};
    }
    weir_path_resize(p, p->size * (1 - share));
    weir_path_epoch(p, before);
}

/* A round took so long whose packet was sent once. */
static inline void weir_path_round(weir_path *p, int64_t round_ns)
{
    if (!p->rounds || round_ns < p->round_least_ns) p->round_least_ns = round_ns;
    if (++p->rounds < WEIR_PATH_ROUNDS) return;
    p->round_ns = p->round_least_ns;
    p->rounds = 0;
}

/* Whether other workers hold the rounds up, not our window: a wider one would only lead further ahead of them. */
static inline int weir_path_waits(const weir_path *p)
{
    return p->round_ns > p->recent_ns + p->recent_ns / 4;
}

/* A packet that was sent then met congestion, or was `lost`: on our own path for certain if this many workers say so. */
static inline void weir_path_signal(weir_path *p, uint32_t lost, int64_t sent_ns, int64_t now_ns)
{
    /* Others hold the rounds up, in an order of their own: a late result says nothing of our path. */
    if (lost && lost < p->workers && weir_path_waits(p)) return;
    p->lost += lost;
    if (lost) weir_path_count(p, 1, sent_ns);
    if (sent_ns < p->cut_ns) return;
    double share = weir_path_queue(p);
    const int often =
        p->lost >= WEIR_PATH_LOST * p->workers && p->lost * WEIR_PATH_SHARE > p->results * p->workers;
    if (often) {
        share = WEIR_CUBIC_CUT;
        if (!weir_path_queued(p)) p->wary_ns = now_ns + WEIR_BASE_LASTS_NS;
    }
    if (weir_path_queued(p) && (!lost || weir_path_overflows(p))) share = WEIR_CUBIC_CUT;
    if (share > 0) weir_path_close(p, share < WEIR_CUBIC_CUT ? share : WEIR_CUBIC_CUT, now_ns);
}

/* Nothing is heard any more. */
static inline void weir_path_silence(weir_path *p, int64_t now_ns)
{
    if (now_ns - p->cut_ns > p->smooth_ns) weir_path_close(p, 0.5, now_ns);
}

static inline void weir_path_base(weir_path *p, int64_t now_ns, int64_t trip_ns)
{
    if (now_ns - p->base_turn_ns >= WEIR_BASE_LASTS_NS) {
        if (p->base_next_ns) p->base_ns = p->base_next_ns;
        p->base_next_ns = trip_ns;
        p->base_turn_ns = now_ns;
    }
    if (!p->base_ns || trip_ns < p->base_ns) p->base_ns = trip_ns;
    if (!p->base_next_ns || trip_ns < p->base_next_ns) p->base_next_ns = trip_ns;
}

/* A round trip. */
static inline void weir_path_trip(weir_path *p, int64_t now_ns, int64_t trip_ns)
{
    weir_path_base(p, now_ns, trip_ns);
    p->smooth_ns = p->smooth_ns ? p->smooth_ns + (trip_ns - p->smooth_ns) / 16 : trip_ns;
    if (now_ns - trip_ns < p->cut_ns) return;
    if (!p->samples || trip_ns < p->least_ns) p->least_ns = trip_ns;
    if (++p->samples < WEIR_PATH_SAMPLES) return;
    p->recent_ns = p->least_ns;
    p->samples = 0;
}

/* `free`: no queue is seen. */
static inline void weir_path_grow(weir_path *p, double seconds, int free)
{
    p->grown += seconds;
    p->reno += WEIR_RENO_STEP;
    if (free && p->reno < p->size * (1 + WEIR_FREE_STEP)) p->reno = p->size * (1 + WEIR_FREE_STEP);
    const double from = p->grown - p->away;
    double size = p->goal + WEIR_CUBIC_SCALE * from * from * from;
    if (size > 1.5 * p->size) size = 1.5 * p->size;
    if (size < p->reno) size = p->reno;
    if (size > p->size) weir_path_resize(p, size);
}

/* A result came for a packet that was sent then. `limited`: the window held others back since the last turn; it is
 * set back at a turn. */
static inline void weir_path_result(weir_path *p, int64_t sent_ns, int64_t now_ns, uint8_t *limited)
{
    const int grows = *limited && !weir_path_waits(p);
    weir_path_count(p, 0, sent_ns);
    if (++p->results >= weir_path_memory(p)) p->results /= 2, p->lost /= 2;
    if (p->starting && grows) weir_path_resize(p, p->size + 1);
    const double queue = weir_path_queue(p);
    if (p->starting && queue > 0) {
        /* The queue is one that the window of a round trip ago made; it has doubled since. */
        weir_path_resize(p, p->turn_size * (1 - queue));
        weir_path_epoch(p, p->size);
        p->cut_ns = now_ns;
    }
    if (sent_ns < p->turn_ns) return;
    /* A pause between two reduces is no time to grow in. */
    int64_t since = now_ns - p->turn_ns, most = 2 * p->smooth_ns;
    if (!p->starting && grows)
        weir_path_grow(p, (double)(since < most ? since : most) / 1e9, !queue && now_ns >= p->wary_ns);
    p->turn_ns = now_ns;
    p->turn_size = p->size;
    *limited = 0;
}

/* How long the answer to a question takes at most, unless it is lost. */
static inline int64_t weir_path_timeout(const weir_path *p)
{
    return p->smooth_ns + p->smooth_ns / 4 + 2000000;
}

/* Whether to measure a round trip now. */
static inline int weir_path_asks(weir_path *p, int64_t now_ns)
{
    if (now_ns < p->ask_ns || p->unasked < WEIR_PATH_UNASKED) return 0;
    p->ask_ns = now_ns + p->smooth_ns / WEIR_PATH_ASKS;
    p->unasked = 0;
    return 1;
}

/* How long a packet takes at the pace: somewhat faster than the window alone would have it. */
static inline int64_t weir_path_step(const weir_path *p)
{
    return (int64_t)((double)p->smooth_ns / (p->size * (p->starting ? 2 : 1.25)));
}

/* When the next packets may leave, several at a time; of those that follow at once, `free_ns` says it. */
static inline int64_t weir_path_chunk(const weir_path *p)
{
    const int64_t most = WEIR_PATH_CHUNK * weir_path_step(p);
    return p->free_ns + (most < WEIR_PACE_CHUNK_NS ? most : WEIR_PACE_CHUNK_NS);
}

/* A packet left. */
static inline void weir_path_sent(weir_path *p, int64_t now_ns)
{
    const int64_t step = weir_path_step(p);
    int64_t behind =
        2 * (WEIR_PATH_CHUNK * step < WEIR_PACE_CHUNK_NS ? WEIR_PATH_CHUNK * step : WEIR_PACE_CHUNK_NS);
    if (p->free_ns < now_ns - behind) p->free_ns = now_ns - behind;
    p->free_ns += step;
    p->unasked++;
}

#endif
