/* SPDX-License-Identifier: Apache-2.0 */
/* What a transport knows, and the vector it reduces; for the transport's own files.
 *
 *   transport.c   its life, the beginning of a reduce, and questions about it
 *   round.c       a slot's round: its blocks, and its packet
 *   replay.c      what a switch that restarts has forgotten
 *   recover.c     when a packet goes out again
 *   send.c        what goes out, and with which traffic class
 *   result.c      what a payload that came in says, and whether it can be
 *   receive.c     what a result does to vector, books and slots
 *
 * Of those that send, each uses only the ones above it. */
#ifndef WEIR_STATE_H
#define WEIR_STATE_H

#include "budget.h"
#include "fixed.h"
#include "lanes.h"
#include "path.h"
#include "queues.h"
#include "rate.h"
#include "rtt.h"
#include "transport.h"
#include "window.h"

/* Why a slot's packet must go out again. */
enum {
    WEIR_DUE_EARLY = 1,  /* it may be lost */
    WEIR_DUE_TIMER = 2,  /* the retransmission timeout is over */
    WEIR_DUE_LANES = 4,  /* the aggregator asked for them */
    WEIR_DUE_RESULT = 8, /* the round is complete, but its result lost its lanes */
};

/* Packets of one kind take the same queues and paths, so they keep their order: first packets and those of the
 * reliable class apart, and racks send slots to spines by their number. */
enum { WEIR_KINDS = 2 * WEIR_SPINE_CLASSES };

static inline uint8_t weir_kind(uint32_t slot, uint8_t traffic_class)
{
    uint32_t reliable = traffic_class >> 2 == WEIR_RELIABLE_DSCP;
    return (uint8_t)(reliable * WEIR_SPINE_CLASSES + slot % WEIR_SPINE_CLASSES);
}

typedef struct {
    uint32_t round;   /* in progress, or the last one done */
    uint32_t before;  /* the last one before this reduce began */
    uint32_t sends;   /* packets sent in this round; 0: it waits in `ready` */
    uint8_t active;   /* takes part in the reduce and is not finished */
    uint8_t groups;   /* that our contribution to this round carries */
    uint8_t together; /* all workers were known to be at work when the first packet was sent */
    uint8_t due;      /* reasons to send again */
    uint8_t queued;   /* in the queue of packets to send again */
    uint8_t reserved; /* our lanes of this round are, in the budget */
    uint8_t wanted;   /* the aggregator asked for our lanes: give them up no more */
    uint8_t attempts; /* in this round: times that we asked what became of the packet */
    uint8_t timeouts; /* in this round: retransmission timeouts */
    uint8_t kind;     /* of the last packet: WEIR_KINDS */
    uint8_t asked;    /* we did so in the round before */
    uint8_t
        suspect; /* in this round its packet, or the answer, was found to be lost: it is under way no more */
    int64_t sent_ns;    /* first packet of this round */
    int64_t last_ns;    /* last one */
    int64_t suspect_ns; /* when that was found */
    int64_t asked_ns;   /* when a question went out before the first packet; 0: none did, or it is answered */
    uint16_t audience;  /* of this round */
    uint32_t block[WEIR_MAX_COLUMNS]; /* of this round */
    uint32_t next[WEIR_MAX_COLUMNS];  /* our first after it that is not zero; blocks up to it are entered */
} slot_state;

struct weir_transport {
    weir_config config;
    weir_rtt rtt;
    weir_window window;
    weir_rate rate; /* of results, while more waits to be sent */
    weir_path path; /* in place of `window`, but for its limit, if the path is shared with strangers */
    slot_state *slots;
    int64_t *deadlines; /* per slot: when to send again */
    int64_t earliest;   /* no deadline comes before */
    weir_ready ready;   /* slots whose round's first packet is due */
    uint16_t *again;    /* ring of slots whose packet is due again */
    uint32_t again_head, again_length;
    weir_unanswered unanswered; /* slots that wait for a result */
    uint32_t outstanding;       /* how many */
    uint32_t suspects;          /* of them, those whose packet was found to be lost */
    int64_t answered_ns; /* when the last packet was sent that has been answered, of those sent only once */
    int64_t answered_kind_ns[WEIR_KINDS]; /* the same of each kind */
    int64_t quiet_ns;                     /* since then nothing came, and no new round's packet went out */
    uint32_t quiet_times;                 /* that we asked since something came */

    uint8_t *kept;        /* per slot: our contribution to its last round that is over; NULL: none is kept */
    uint32_t kept_size;   /* room for one: no more, so that all stay in the cache */
    uint16_t *kept_bytes; /* its length; 0: none */
    uint32_t replay;      /* the next slot whose must be repeated; none from config.slots on */
    int64_t replay_ns, replay_wait_ns; /* when all are, if nothing new comes; how long that was to wait */

    uint32_t reduces; /* begun so far */

    /* the reduce in progress */
    uint32_t op, block_log2, block, columns, column_groups, group_lanes;
    uint32_t wire_log2; /* of the block, as packets have it */
    uint32_t fused;     /* columns that are used */
    int fills;          /* requested blocks are sent even when zero */
    uint32_t check;     /* its fingerprint */
    int disagreement;   /* a result of another one came */
    uint32_t used;      /* slots in use */
    uint32_t active;    /* slots not finished */
    uint32_t *lanes; /* of blocks that are not entered yet, and of those that are done: values, if `floats` */
    weir_floats floats;       /* of the vector, if it has exponents, or of places that have */
    const weir_place *places; /* of blocks, in place of `lanes`; NULL: the vector is in one piece */
    uint64_t count, blocks, streams;
    const uint16_t *audiences;
    int heard; /* a result came: every worker is there */
    weir_service_class service;
    weir_budget budget;

    uint64_t *nonzero; /* bitmap of blocks; of those that are not entered yet, 0 */
    uint64_t nonzero_words;
    uint32_t *returned_blocks, *returned_lanes;
    uint64_t returned, returned_capacity; /* in blocks of `returned_block` lanes */
    uint32_t returned_block;
    weir_report report;
};

/* ------------------------------------------------------------------------------------------ the vector */

/* Lanes of the vector in this block: fewer than the block size only in the last one. */
static inline uint32_t weir_block_count(const weir_transport *t, uint64_t block)
{
    if (t->places) return t->places[block].count;
    uint64_t left = t->count - (block << t->block_log2);
    return left < t->block ? (uint32_t)left : t->block;
}

static inline uint32_t *weir_block_lanes(const weir_transport *t, uint64_t block)
{
    return t->places ? t->places[block].lanes : t->lanes + (block << t->block_log2);
}

/* What a block's places are for: WEIR_PLACE_... */
static inline uint32_t weir_block_how(const weir_transport *t, uint64_t block)
{
    return t->places ? t->places[block].how : 0;
}

/* The exponents of a block's float32 values; NULL: it holds lanes. */
static inline const uint32_t *weir_block_exponents(const weir_transport *t, uint64_t block)
{
    if (t->places) return t->places[block].exponents;
    return t->floats.exponents ? t->floats.exponents + (block << t->block_log2 >> t->floats.values_log2)
                               : NULL;
}

/* The power of two by which float32 values of a block become lanes, from this one of them on, ... */
static inline int weir_shift_at(const weir_transport *t, const uint32_t *exponents, uint32_t at)
{
    return weir_fixed_shift(exponents[at >> t->floats.values_log2], t->floats.headroom);
}

/* ... and how many of the next `count` values of a block have it: parts of one exponent divide blocks, or hold whole ones. */
static inline uint32_t weir_values_together(const weir_transport *t, uint32_t count)
{
    return t->floats.values_log2 < t->block_log2 && count >> t->floats.values_log2
               ? 1u << t->floats.values_log2
               : count;
}

static inline int weir_block_nonzero(const weir_transport *t, uint64_t block)
{
    return t->nonzero[block >> 6] >> (block & 63) & 1;
}

/* Whether our contribution to the slot's round carries this column. */
static inline int weir_column_sent(const weir_transport *t, const slot_state *slot, uint32_t column)
{
    return slot->groups >> column * t->column_groups & 1;
}

/* Whether the path is shared with strangers, so that `path` is minded. */
static inline int weir_on_path(const weir_transport *t)
{
    return t->config.congestion == WEIR_CONGESTION_PATH;
}

/* Whether the window is full. */
static inline int weir_full(const weir_transport *t)
{
    return t->outstanding - t->suspects >= t->window.limit;
}

/* Whether we are of this audience. */
static inline int weir_wanted(const weir_transport *t, uint16_t audience)
{
    return audience & WEIR_AUDIENCE_EXCEPT ? (audience & ~WEIR_AUDIENCE_EXCEPT) != t->config.path
                                           : audience == t->config.path;
}

/* Whether a block's result is for us alone. Then our own lanes stay here, and are combined with those of the
 * others; but not where every requested block must be sent, nor values, nor what we do not contribute. */
static inline int weir_block_local(const weir_transport *t, uint64_t block)
{
    return t->audiences && !t->fills && t->audiences[block] == t->config.path && !weir_block_how(t, block) &&
           !weir_block_exponents(t, block);
}

/* The place of a slot's round among those that wait to be sent. */
static inline uint64_t weir_order_of(const weir_transport *t, uint32_t s)
{
    return weir_ready_key(t->slots[s].round - t->slots[s].before, s);
}

enum { WEIR_MAX_SHARES = WEIR_MAX_COLUMNS * WEIR_MAX_ACCOUNT_ROWS };

/* What our contribution to the slot's round holds of each account: blocks of zeros hold nothing. */
static inline uint32_t weir_slot_shares(const weir_transport *t, const slot_state *slot, weir_share *shares)
{
    uint32_t found = 0;
    for (uint32_t c = 0; c < t->columns; c++)
        if (weir_column_sent(t, slot, c) && weir_block_nonzero(t, slot->block[c])) {
            uint32_t block = slot->block[c], rows = t->service.accounts ? t->service.account_rows : 1;
            for (uint32_t row = 0; row < rows; row++) {
                uint32_t account = t->service.accounts ? t->service.accounts[row * t->blocks + block] : 0;
                if (account == WEIR_NO_ACCOUNT) continue;
                shares[found++] = (weir_share){account, weir_block_count(t, block)};
            }
        }
    return found;
}

/* ------------------------------------------------------------------------------------------- result.c */

/* The headers of what the aggregator sent, copied out of memory that others could still change. */
typedef struct {
    uint8_t version, type, flags, op, block_log2, groups, worker, layer, magnitude;
    uint32_t job, round, included, check;
    uint16_t slot, audience, count;
    uint32_t block[WEIR_MAX_COLUMNS], next[WEIR_MAX_COLUMNS];
} weir_result;

/* Read a payload and say whether it can be what it claims. */
enum weir_verdict weir_result_check(const weir_transport *t, const uint8_t *payload, uint32_t length,
                                    weir_result *result);

static inline int weir_own_included(const weir_transport *t, const weir_result *result)
{
    return result->included >> t->config.worker & 1;
}

#endif
