// SPDX-License-Identifier: Apache-2.0
// The inside of a simulated network: switches and clean links between them, and a queue of what happens when.
//
// Frames go from switch to switch in here. What comes out is returned to the caller: frames that reach a host,
// and frames that a switch sends on a link that is not clean (which the caller loses, delays or records).
// Events of one time run switch by switch and port by port, hosts last; those of one port in the order in which
// they were scheduled. So it makes no difference on which side of the border a frame was carried.
#include <stdlib.h>
#include <string.h>

#include "switch.h"

enum { PORTS = 512, NO_PORT = PORTS };
#define NEVER UINT64_MAX
#define SECOND 1000000000ull

typedef struct frame {
    struct frame *next; // in the list of free ones
    uint32_t len;
    uint8_t bytes[SW_MAX_FRAME];
} frame;

typedef enum { NOWHERE, TO_SWITCH, TO_HOST, TO_CALLER } target;

// One way of a cable, from a switch's port.
typedef struct {
    target to;
    uint32_t node, port; // TO_SWITCH
    uint32_t id;         // TO_HOST, TO_CALLER: what the caller calls it
    uint64_t rate_bps, delay_ns;
} fabric_link;

typedef struct {
    sw_switch *sw;
    uint64_t wake; // the earliest step in the queue, or NEVER
    int down;
    fabric_link links[PORTS];
} node_state;

// A frame that arrives at a switch or, with NO_PORT, at a host (whose id is in `node`); without a frame: a
// switch's step.
typedef struct {
    uint64_t time, order;
    uint32_t node, port;
    frame *frame;
} event;

typedef struct {
    uint32_t id, len;
    const uint8_t *bytes;
} output;

typedef struct {
    uint64_t next; // time of the first event, or NEVER; the caller reads it
    uint64_t now;
    const output *outputs;
    uint64_t events;
    // private
    uint64_t order;
    node_state *nodes;
    uint32_t node_count, current;
    event *heap;
    size_t length, capacity;
    output *out;
    frame **held; // of the outputs
    size_t out_count, out_capacity;
    frame *free;
    int failed; // out of memory
} fabric;

// ---- frames ----------------------------------------------------------------------------------------

static frame *take_frame(fabric *f, const uint8_t *bytes, uint32_t len)
{
    frame *made = f->free;
    if (made != NULL)
        f->free = made->next;
    else
        made = malloc(sizeof *made);
    if (made == NULL) {
        f->failed = 1;
        return NULL;
    }
    made->len = len;
    memcpy(made->bytes, bytes, len);
    return made;
}

static void drop_frame(fabric *f, frame *dropped)
{
    dropped->next = f->free;
    f->free = dropped;
}

// ---- the queue: a binary heap ----------------------------------------------------------------------

static int earlier(const event *a, const event *b)
{
    if (a->time != b->time) return a->time < b->time;
    if ((a->port == NO_PORT) != (b->port == NO_PORT)) return b->port == NO_PORT;
    if (a->node != b->node) return a->node < b->node;
    return a->port != b->port ? a->port < b->port : a->order < b->order;
}

static void push(fabric *f, uint64_t time, uint32_t node, uint32_t port, frame *carried)
{
    if (f->length == f->capacity) {
        size_t wanted = f->capacity ? 2 * f->capacity : 1024;
        event *grown = realloc(f->heap, wanted * sizeof *grown);
        if (grown == NULL) {
            f->failed = 1;
            if (carried != NULL) drop_frame(f, carried);
            return;
        }
        f->heap = grown;
        f->capacity = wanted;
    }
    event made = {time, f->order++, node, port, carried};
    size_t at = f->length++;
    while (at != 0 && earlier(&made, &f->heap[(at - 1) / 2])) {
        f->heap[at] = f->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    f->heap[at] = made;
    f->next = f->heap[0].time;
}

static event pop(fabric *f)
{
    event first = f->heap[0], last = f->heap[--f->length];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= f->length) break;
        if (child + 1 < f->length && earlier(&f->heap[child + 1], &f->heap[child])) child++;
        if (!earlier(&f->heap[child], &last)) break;
        f->heap[at] = f->heap[child];
        at = child;
    }
    if (f->length != 0) f->heap[at] = last;
    f->next = f->length ? f->heap[0].time : NEVER;
    return first;
}

// ---- switches and links ----------------------------------------------------------------------------

static void put_out(fabric *f, uint32_t id, frame *sent)
{
    if (f->out_count == f->out_capacity) {
        size_t wanted = f->out_capacity ? 2 * f->out_capacity : 64;
        output *out = realloc(f->out, wanted * sizeof *out);
        if (out != NULL) f->out = out;
        frame **held = realloc(f->held, wanted * sizeof *held);
        if (held != NULL) f->held = held;
        if (out == NULL || held == NULL) {
            f->failed = 1;
            drop_frame(f, sent);
            return;
        }
        f->out_capacity = wanted;
    }
    f->held[f->out_count] = sent;
    f->out[f->out_count++] = (output){id, sent->len, sent->bytes};
    f->outputs = f->out;
}

// A switch begins to send: the frame has arrived when its last bit has.
static void on_emit(void *ctx, uint32_t port, const uint8_t *bytes, uint32_t len)
{
    fabric *f = ctx;
    if (port >= PORTS) return;
    const fabric_link *link = &f->nodes[f->current].links[port];
    if (link->to == NOWHERE) return;
    frame *sent = take_frame(f, bytes, len);
    if (sent == NULL) return;
    if (link->to == TO_CALLER) {
        put_out(f, link->id, sent);
        return;
    }
    uint64_t arrival = f->now + link->delay_ns + (link->rate_bps ? len * 8ull * SECOND / link->rate_bps : 0);
    if (link->to == TO_SWITCH)
        push(f, arrival, link->node, link->port, sent);
    else
        push(f, arrival, link->id, NO_PORT, sent);
}

// See to it that the switch is stepped when something is due.
static void rearm(fabric *f, uint32_t number)
{
    node_state *node = &f->nodes[number];
    uint64_t due = sw_deadline(node->sw);
    if (due < f->now) due = f->now;
    if (due < node->wake) {
        node->wake = due;
        push(f, due, number, 0, NULL);
    }
}

static void happen(fabric *f, event what)
{
    if (what.port == NO_PORT) {
        put_out(f, what.node, what.frame);
        return;
    }
    node_state *node = &f->nodes[what.node];
    f->current = what.node;
    if (what.frame == NULL) {
        if (node->wake != what.time) return; // an earlier step has seen to it
        node->wake = NEVER;
        if (node->down) return;
        sw_step(node->sw, f->now, on_emit, f);
    } else {
        if (!node->down)
            sw_process(node->sw, what.port, what.frame->bytes, what.frame->len, f->now, on_emit, f);
        drop_frame(f, what.frame);
        if (node->down) return;
    }
    rearm(f, what.node);
}

// ---- for the caller --------------------------------------------------------------------------------

void fabric_free(fabric *f)
{
    if (f == NULL) return;
    for (size_t i = 0; i < f->length; i++) free(f->heap[i].frame);
    for (size_t i = 0; i < f->out_count; i++) free(f->held[i]);
    while (f->free != NULL) {
        frame *next = f->free->next;
        free(f->free);
        f->free = next;
    }
    free(f->nodes);
    free(f->heap);
    free(f->out);
    free(f->held);
    free(f);
}

fabric *fabric_new(uint32_t nodes, sw_switch *const *switches)
{
    fabric *f = calloc(1, sizeof *f);
    if (f == NULL) return NULL;
    f->next = NEVER;
    f->nodes = calloc(nodes, sizeof *f->nodes);
    f->node_count = nodes;
    if (f->nodes == NULL) {
        fabric_free(f);
        return NULL;
    }
    for (uint32_t i = 0; i < nodes; i++) {
        f->nodes[i].sw = switches[i];
        f->nodes[i].wake = NEVER;
    }
    return f;
}

// What leaves `node` by `port` goes to `to`: `there` is a switch and its port `there_port`, or the caller's id.
void fabric_attach(fabric *f, uint32_t node, uint32_t port, uint32_t to, uint32_t there, uint32_t there_port,
                   uint64_t rate_bps, uint64_t delay_ns)
{
    f->nodes[node].links[port] = (fabric_link){to, there, there_port, there, rate_bps, delay_ns};
}

void fabric_set_down(fabric *f, uint32_t node, int down) { f->nodes[node].down = down; }

// A frame of at most SW_MAX_FRAME bytes arrives at a switch's port, or with NO_PORT at the host of id `node`, at
// `time`.
void fabric_arrive(fabric *f, uint64_t time, uint32_t node, uint32_t port, const uint8_t *bytes, uint32_t len)
{
    frame *carried = take_frame(f, bytes, len);
    if (carried != NULL) push(f, time, node, port, carried);
}

enum { MOST_EVENTS = 1 << 16 };

// Runs events up to time `until` (included), to the first with outputs, which stay valid until the next call, or as
// many as the caller wants to wait for.
// Returns how many outputs there are, or -1 when memory ran out.
int64_t fabric_run(fabric *f, uint64_t until)
{
    for (size_t i = 0; i < f->out_count; i++) drop_frame(f, f->held[i]);
    f->out_count = 0;
    for (uint32_t left = MOST_EVENTS; left != 0 && f->out_count == 0 && !f->failed; left--) {
        if (f->length == 0 || f->heap[0].time > until) break;
        event first = pop(f);
        f->now = first.time;
        f->events++;
        happen(f, first);
    }
    return f->failed ? -1 : (int64_t)f->out_count;
}
