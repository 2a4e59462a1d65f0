// SPDX-License-Identifier: Apache-2.0
// Ports whose frames are put in and taken out by calls: the CPU port, and files that are played back.
// Not for data paths: one lock and one copy a frame.
#define _GNU_SOURCE
#include <stdio.h>

#include "loop_state.h"

enum { QUEUE_FRAMES = 1024 };

typedef struct {
    uint32_t len;
    uint8_t frame[SW_MAX_FRAME];
} queue_cell;

typedef struct {
    atomic_uint head, tail; // consumer's and producer's positions
    queue_cell cells[QUEUE_FRAMES];
} frame_queue;

typedef struct {
    port base;
    pthread_mutex_t lock;
    pthread_cond_t changed; // a queue got or lost a frame, or the port closes
    int closed;
    uint32_t callers; // threads inside loop_inject or loop_receive
    capture *file;    // where sent frames go instead of the output queue, or NULL
    uint32_t file_interface;
    frame_queue input, output;
} queue_port;

static queue_cell *oldest(frame_queue *q)
{
    uint32_t head = atomic_load(&q->head);
    return atomic_load(&q->tail) == head ? NULL : &q->cells[head % QUEUE_FRAMES];
}

static queue_cell *room(frame_queue *q)
{
    uint32_t tail = atomic_load(&q->tail);
    return tail - atomic_load(&q->head) >= QUEUE_FRAMES ? NULL : &q->cells[tail % QUEUE_FRAMES];
}

static void fill(frame_queue *q, queue_cell *cell, const uint8_t *frame, uint32_t len)
{
    memcpy(cell->frame, frame, len);
    cell->len = len;
    atomic_fetch_add(&q->tail, 1);
}

static void announce(queue_port *q)
{
    pthread_mutex_lock(&q->lock);
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static const uint8_t *queue_peek(port *p, uint32_t *len)
{
    queue_cell *cell = oldest(&((queue_port *)p)->input);
    if (!cell) return NULL;
    *len = cell->len;
    return cell->frame;
}

static void queue_release(port *p)
{
    queue_port *q = (queue_port *)p;
    atomic_fetch_add(&q->input.head, 1);
    announce(q);
}

static int queue_send(port *p, const uint8_t *frame, uint32_t len)
{
    queue_port *q = (queue_port *)p;
    if (q->file) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        capture_frame(q->file, q->file_interface, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
                      frame, len, CAPTURE_OUT);
        if (capture_error(q->file)) return -1;
    } else {
        queue_cell *cell = room(&q->output);
        if (!cell || len > SW_MAX_FRAME) return -1;
        fill(&q->output, cell, frame, len);
    }
    p->stats.tx_packets++;
    p->stats.tx_bytes += len;
    return 0;
}

static void queue_flush(port *p)
{
    queue_port *q = (queue_port *)p;
    if (q->file)
        capture_flush(q->file);
    else
        announce(q);
}

static void queue_close(port *p)
{
    queue_port *q = (queue_port *)p;
    pthread_mutex_lock(&q->lock);
    q->closed = 1;
    pthread_cond_broadcast(&q->changed);
    while (q->callers) pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
    capture_close(q->file);
    free(q);
}

static const port_ops QUEUE_OPS = {.peek = queue_peek,
                                   .release = queue_release,
                                   .send = queue_send,
                                   .flush = queue_flush,
                                   .close = queue_close};

int loop_add_queue(loop *l, uint32_t number, const char *name, const char *output, int pcapng)
{
    queue_port *q = calloc(1, sizeof *q);
    if (!q) return -ENOMEM;
    q->base.ops = &QUEUE_OPS;
    q->base.number = number;
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&q->changed, &monotonic);
    snprintf(q->base.name, sizeof q->base.name, "port %u (%s)", number, name);
    loop_enter(l);
    int result = loop_free_number(l, number);
    if (result == 0 && output) {
        q->file = capture_open(output, pcapng);
        result = q->file ? 0 : -errno;
    }
    if (result == 0) {
        if (q->file) q->file_interface = capture_interface(q->file, q->base.name);
        loop_attach(l, &q->base);
    }
    loop_leave(l);
    if (result) free(q);
    return result;
}

// The errno that ended what is written of a queue port, or 0; -ENODEV.
int loop_output_error(loop *l, uint32_t number)
{
    loop_enter(l);
    port *p = loop_port(l, number);
    int result = p ? 0 : -ENODEV;
    if (p && p->ops == &QUEUE_OPS && ((queue_port *)p)->file) {
        capture_flush(((queue_port *)p)->file);
        result = capture_error(((queue_port *)p)->file);
    }
    loop_leave(l);
    return result;
}

// -- the callers' side -----------------------------------------------------------------------------

// The port, held until leave_queue: it may be removed meanwhile, but not freed.
static queue_port *enter_queue(loop *l, uint32_t number)
{
    loop_enter(l);
    port *p = loop_port(l, number);
    queue_port *q = p && p->ops == &QUEUE_OPS ? (queue_port *)p : NULL;
    if (q) {
        pthread_mutex_lock(&q->lock);
        q->callers++;
    }
    loop_leave(l);
    return q;
}

static void leave_queue(queue_port *q)
{
    q->callers--;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
}

static struct timespec deadline(int64_t timeout_ns)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = t.tv_nsec + timeout_ns;
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    return t;
}

// 0, or -ENODEV, -EMSGSIZE, -ETIMEDOUT (the queue stayed full).
int loop_inject(loop *l, uint32_t number, const uint8_t *frame, uint32_t len, int64_t timeout_ns)
{
    if (len > SW_MAX_FRAME) return -EMSGSIZE;
    queue_port *q = enter_queue(l, number);
    if (!q) return -ENODEV;
    struct timespec until = deadline(timeout_ns);
    queue_cell *cell;
    int result = 0;
    while (!(cell = room(&q->input)) && !q->closed && result == 0)
        result = -pthread_cond_timedwait(&q->changed, &q->lock, &until);
    if (q->closed)
        result = -ENODEV;
    else if (cell) {
        fill(&q->input, cell, frame, len);
        result = 0;
    }
    leave_queue(q);
    if (result == 0) loop_wake(l);
    return result;
}

// The length of the frame that was taken, or -ENODEV, -EMSGSIZE, -ETIMEDOUT.
int loop_receive(loop *l, uint32_t number, uint8_t *frame, uint32_t space, int64_t timeout_ns)
{
    queue_port *q = enter_queue(l, number);
    if (!q) return -ENODEV;
    struct timespec until = deadline(timeout_ns);
    queue_cell *cell;
    int result = 0;
    while (!(cell = oldest(&q->output)) && !q->closed && result == 0)
        result = -pthread_cond_timedwait(&q->changed, &q->lock, &until);
    if (q->closed)
        result = -ENODEV;
    else if (cell) {
        result = cell->len <= space ? (int)cell->len : -EMSGSIZE;
        if (result >= 0) memcpy(frame, cell->frame, cell->len);
        atomic_fetch_add(&q->output.head, 1);
    }
    leave_queue(q);
    return result;
}

// Waits until the program has seen every frame that was put in: 0, or -ENODEV, -ETIMEDOUT.
int loop_drain(loop *l, uint32_t number, int64_t timeout_ns)
{
    queue_port *q = enter_queue(l, number);
    if (!q) return -ENODEV;
    struct timespec until = deadline(timeout_ns);
    int result = 0;
    while (oldest(&q->input) && !q->closed && result == 0)
        result = -pthread_cond_timedwait(&q->changed, &q->lock, &until);
    if (q->closed) result = -ENODEV;
    leave_queue(q);
    return result;
}
