/* SPDX-License-Identifier: Apache-2.0 */
/* The host's half of the slot protocol as a state machine without I/O.
 *
 * A caller begins a reduce, hands in every payload that arrives (weir_transport_receive), sends what
 * weir_transport_send writes until it writes nothing, and comes back at weir_transport_deadline. Times are
 * nanoseconds of any one monotonic clock. One thread at a time. Memory is allocated when a transport is
 * made and when a reduce begins, never per packet. */
#ifndef WEIR_TRANSPORT_H
#define WEIR_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* Of a wide packet, the longest there is; and of any other. */
#define WEIR_MAX_PAYLOAD (WEIR_WEIR_SIZE + WEIR_COLUMN_SIZE + 4u * WEIR_WIDE_LANES)
#define WEIR_MAX_NARROW_PAYLOAD (WEIR_WEIR_SIZE + WEIR_MAX_COLUMNS * WEIR_COLUMN_SIZE + 4u * WEIR_SLOT_LANES)
#define WEIR_FRAME_OVERHEAD 42u /* Ethernet, IPv4 and UDP headers: counted in all byte figures */
#define WEIR_NO_ACCOUNT UINT16_MAX
#define WEIR_MAX_ACCOUNT_ROWS 32u
#define WEIR_NEVER INT64_MAX /* a deadline that does not come */

/* What became of a payload. Mirrored by weir.host_agent.transport.report.Verdict; from SHORT on they are
 * refusals. */
enum weir_verdict {
    WEIR_ACCEPTED,
    WEIR_STALE,    /* of a round that is over: a duplicate */
    WEIR_TRIMMED,  /* a result whose lanes were cut off on its way: asked for again */
    WEIR_REPEAT,   /* the aggregator needs our lanes of this round: sent again */
    WEIR_DISAGREE, /* the workers are in different operations: the end of this reduce */
    WEIR_SHORT,
    WEIR_BAD_VERSION,
    WEIR_BAD_TYPE,
    WEIR_BAD_FLAGS,
    WEIR_BAD_CLASS, /* a layer or magnitude class that does not exist */
    WEIR_WRONG_JOB,
    WEIR_WRONG_WORKER,
    WEIR_BAD_SLOT,
    WEIR_BAD_ROUND, /* of the future, or never asked for */
    WEIR_BAD_OP,
    WEIR_BAD_BLOCK_SIZE,
    WEIR_BAD_GROUPS,
    WEIR_BAD_LENGTH,
    WEIR_BAD_COLUMN, /* not the block this round is about */
    WEIR_BAD_NEXT,
    WEIR_BAD_INCLUDED,
    WEIR_BAD_AUDIENCE, /* not the round's; or lanes that we want went elsewhere */
    WEIR_NO_MEMORY,    /* for lanes to be returned; the switch still has the result */
    WEIR_NOT_OURS,     /* a frame that is no Weir packet for this host; counted by drivers */
    WEIR_BAD_CHECK, /* not made with the job's key, or of another operation: no switch sent it in this round */
    WEIR_VERDICTS
};

/* What narrows the window of open slots. Mirrored by weir.host_agent.transport.slot_transport.Congestion. */
enum {
    WEIR_CONGESTION_NONE,
    WEIR_CONGESTION_MARKS, /* marked results, as DCTCP has it (window.h) */
    WEIR_CONGESTION_PATH,  /* losses, delay and marks of a path that is shared with TCP (path.h) */
};

typedef struct {
    uint32_t job;
    uint32_t worker, workers; /* own number at the switch, size of the job */
    uint32_t path;            /* own place in the tree, as an audience names it */
    uint32_t slots;           /* of the job: the window */
    uint32_t first_round;     /* 1, unless a test wants to see the counter wrap */
    uint32_t fill; /* for switches that make no packet longer by more than half a slot's lanes: blocks as
                            large as a slot are sent even when zero; of smaller ones a packet has half as many */
    uint32_t congestion; /* what narrows the window: WEIR_CONGESTION_... */
    uint32_t max_lanes; /* packets have one column, of this many lanes of ADD and a group of others; 0: any */
    uint32_t wide;      /* packets of one block of WEIR_WIDE_LANES lanes of ADD may be sent */
    uint32_t keep;      /* contributions to rounds that are over, for a switch that restarts */
    int64_t initial_rto_ns, min_rto_ns, max_rto_ns;
    int64_t min_probe_ns;        /* lower bound of the timeout after which we ask */
    int64_t reordering_ns;       /* packets sent less than this apart may overtake each other */
    uint8_t key[WEIR_KEY_BYTES]; /* the job's secret, which goes into the check of its packets */
} weir_config;

/* What a reduce's packets are marked with, and how much of it may go missing. The arrays are the caller's, and
 * stay as they are until the reduce is done. */
typedef struct {
    uint32_t layer;            /* layer class: the packets' priority, 0 the highest */
    const uint8_t *magnitudes; /* per block: magnitude class; NULL: all 0 */
    const uint16_t *accounts; /* rows of one per block: index into budgets, or WEIR_NO_ACCOUNT; NULL: all 0 */
    const uint64_t *budgets;  /* per account: lanes of non-zero blocks that no result need include */
    uint32_t budget_count;    /* 0: nothing may go missing */
    uint32_t account_rows; /* a block counts against an account of each row, at most WEIR_MAX_ACCOUNT_ROWS */
} weir_service_class;

/* One account of a reduce's loss budget: reserved + missing <= limit at all times. */
typedef struct {
    uint64_t limit;
    uint64_t reserved; /* lanes in packets on their way that may arrive without them */
    uint64_t missing;  /* lanes given back */
} weir_account;

/* What one reduce did so far: reset when it begins. TransportCounters in counters.py says what is
 * counted. */
typedef struct {
    uint64_t blocks, blocks_sent; /* all blocks of the vector; those of which this worker sent lanes */
    uint64_t rounds;              /* slot rounds completed */
    uint64_t packets_up, packets_down, bytes_up, bytes_down;
    uint64_t batches_up, batches_down; /* packets that the kernel took, or gave, several in one piece */
    uint64_t timeouts;                 /* retransmission timeouts */
    uint64_t retransmissions;          /* packets of a round after its first, but for releases and probes */
    uint64_t probes;   /* packets that ask for the result, or whether our lanes have arrived */
    uint64_t releases; /* packets without lanes of ours: given up, so that the round can complete */
    uint64_t replays;  /* packets of rounds that are over, for a switch that may have forgotten them */
    uint64_t marked;   /* results that tell of congestion */
    uint64_t trimmed;  /* rounds whose result lacks lanes that we had */
    uint64_t entered_lanes, entered_sum;   /* lanes of non-zero blocks, when the reduce began */
    uint64_t included_lanes, included_sum; /* of those, in a result that was applied */
    uint64_t returned_lanes, returned_sum; /* of those, given back */
    uint64_t applied_lanes, applied_sum;   /* lanes of results, written to the vector */
    uint64_t verdicts[WEIR_VERDICTS];
} weir_report;

/* Says that the vector is of float32, and how they become lanes: each block when its turn comes, and its sums
 * become float32 again when they are written. `exponents`, of 2^values_log2 values each, at least as many as a
 * block has, are those that all workers agreed on, none below the values' own; they stay as they are until the
 * reduce is done. See quantize.py. */
typedef struct {
    const uint32_t *exponents;
    uint32_t values_log2, headroom;
} weir_floats;

/* Where a block of a vector is that is not in one piece. */
typedef struct {
    uint32_t *lanes;
    const uint32_t *exponents; /* of the block's float32 values, as in weir_floats; NULL: it holds lanes */
    uint32_t count;            /* of its lanes: the others, up to the block size, are zero on all workers */
    uint32_t how;              /* WEIR_PLACE_... */
} weir_place;

enum {
    WEIR_PLACE_SILENT = 1, /* this worker contributes zeros, whatever the memory holds */
    WEIR_PLACE_XOR = 2,    /* so, too; and results change these lanes by exclusive or */
};

typedef struct weir_transport weir_transport;

/* NULL when out of memory or the configuration makes no sense (errno EINVAL). */
weir_transport *weir_transport_new(const weir_config *config);
void weir_transport_free(weir_transport *t);

/* Begin to reduce `count` lanes in place; they belong to the transport until it is done. With no lanes it is
 * a barrier. `audiences`: per block who wants its result: a worker's path, or WEIR_AUDIENCE_EXCEPT and the path of
 * the only one that does not; other lanes are useless afterwards, but for those of blocks that no other worker
 * has: they stay. NULL: all want all. `operation` is a fingerprint of what the reduce is a part of: it, operator,
 * block size, `count`, audiences and how many reduces came before must be the same on all workers. `service` may be
 * NULL: front layer, lossless. Budgets are for ADD of some lanes that all want only. `floats`: of a vector of float32,
 * for ADD without budgets; else NULL. With audiences, vectors of float32 have `places`. `places`: of each block of a
 * vector that is not in one piece, `count` being that of full blocks; `lanes` is NULL then; for ADD without budgets;
 * else NULL. They stay as they are until the reduce is done. Returns 0, or an errno: EBUSY (the last reduce is not done),
 * EINVAL, ERANGE (an account without a budget, a class that does not exist), EFBIG, ENOMEM. */
int weir_transport_begin(weir_transport *t, uint32_t op, uint32_t block_log2, uint32_t *lanes, uint64_t count,
                         const uint16_t *audiences, const weir_service_class *service,
                         const weir_floats *floats, const weir_place *places, uint32_t operation);

/* Turn lanes that this worker has made of float32 values into values again, for a reduce that is given up before any
 * round of it was complete, and made elsewhere: the values become the same lanes there. Nothing else may follow. */
void weir_transport_restore(weir_transport *t);

/* Write the next packet that is due into `out` (WEIR_MAX_PAYLOAD bytes), and the traffic class byte it must
 * travel with (DSCP << 2 | ECN). Returns its length, 0 for none. */
uint32_t weir_transport_send(weir_transport *t, int64_t now_ns, uint8_t *out, uint8_t *traffic_class);

/* Hand in a payload that arrived with this traffic class byte. `payload` may be memory that others can change
 * meanwhile. */
enum weir_verdict weir_transport_receive(weir_transport *t, const uint8_t *payload, uint32_t length,
                                         uint8_t traffic_class, int64_t now_ns);

/* Count a frame that a driver refused before it came to a payload. */
void weir_transport_refuse(weir_transport *t, enum weir_verdict verdict);

/* Count a batch that a driver sent (`up`) or received. */
void weir_transport_batch(weir_transport *t, int up);

uint32_t weir_transport_job(const weir_transport *t);
int weir_transport_done(const weir_transport *t);
int weir_transport_disagrees(const weir_transport *t); /* with other workers: it will never be done */
int weir_transport_sendable(weir_transport *t, int64_t now_ns); /* would weir_transport_send write one? */
int64_t weir_transport_deadline(const weir_transport *t);       /* when to come back; WEIR_NEVER when done */
/* How long results may lie before they are read, where there is room for this many. */
int64_t weir_transport_coalescing(const weir_transport *t, uint32_t room);
const weir_report *weir_transport_report(const weir_transport *t);
int64_t weir_transport_rto(const weir_transport *t);
int64_t weir_transport_round_trip(const weir_transport *t); /* the shortest on a path; 0: not measured */
uint32_t weir_transport_window(const weir_transport *t);    /* slots that may be open at once */

/* Slots that wait for a result, into slots[] and rounds[] (up to `capacity`); returns how many there are. */
uint32_t weir_transport_waiting(const weir_transport *t, uint32_t *slots, uint32_t *rounds,
                                uint32_t capacity);

/* Blocks of this reduce whose lanes no result included: indexes and lanes (block-size lanes each, zero-padded),
 * valid until the next begin. Returns how many. */
uint64_t weir_transport_returned(const weir_transport *t, const uint32_t **blocks, const uint32_t **lanes);

/* The accounts of this reduce's budget, valid until the next begin. Returns how many. */
uint32_t weir_transport_accounts(const weir_transport *t, const weir_account **accounts);

#endif
