// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "loop_state.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>

// -- making way for the control side ---------------------------------------------------------------

static void end_poll(loop *l)
{
    uint64_t one = 1;
    if (write(l->wake_fd, &one, sizeof one) < 0) {
        // the counter is full, so the loop is being woken anyway
    }
}

void loop_wake(loop *l)
{
    end_poll(l);
    if (l->bell) sp4_bell_ring(l->bell);
}

void loop_enter(loop *l)
{
    atomic_fetch_add(&l->waiting, 1);
    loop_wake(l);
    pthread_mutex_lock(&l->lock);
}

void loop_leave(loop *l)
{
    if (atomic_fetch_sub(&l->waiting, 1) == 1) pthread_cond_broadcast(&l->resumed);
    pthread_mutex_unlock(&l->lock);
}

loop *loop_new(void)
{
    loop *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->wake_fd < 0) {
        free(l);
        return NULL;
    }
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->resumed, NULL);
    clock_gettime(CLOCK_MONOTONIC, &l->epoch);
    return l;
}

void loop_stop(loop *l)
{
    atomic_store(&l->stop, 1);
    loop_wake(l);
}

// -- ports -----------------------------------------------------------------------------------------

port *loop_port(loop *l, uint32_t number) { return number < LOOP_PORTS ? l->by_number[number] : NULL; }

int loop_free_number(loop *l, uint32_t number)
{
    if (number >= LOOP_PORTS) return -ERANGE;
    return l->by_number[number] ? -EEXIST : 0;
}

void loop_attach(loop *l, port *p)
{
    p->up = 1;
    l->by_number[p->number] = p;
    l->ports[l->count++] = p;
    loop_tap_port(l, p);
}

static void detach(loop *l, port *p)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (l->ports[i] == p) l->ports[i] = l->ports[--l->count];
    l->by_number[p->number] = NULL;
    p->ops->close(p);
}

int loop_remove(loop *l, uint32_t number)
{
    loop_enter(l);
    port *p = loop_port(l, number);
    if (p) {
        if (p->limited) loop_lift_limits(l, p);
        p->ops->flush(p);
        detach(l, p);
    }
    loop_leave(l);
    return p ? 0 : -ENODEV;
}

int loop_set_up(loop *l, uint32_t number, int up)
{
    loop_enter(l);
    port *p = loop_port(l, number);
    if (p) p->up = up;
    loop_leave(l);
    return p ? 0 : -ENODEV;
}

int loop_get_stats(loop *l, uint32_t number, port_stats *out)
{
    loop_enter(l);
    port *p = loop_port(l, number);
    if (p) {
        if (p->ops->refresh) p->ops->refresh(p);
        *out = p->stats;
    }
    loop_leave(l);
    return p ? 0 : -ENODEV;
}

uint64_t loop_unknown_port(loop *l)
{
    loop_enter(l);
    uint64_t frames = l->unknown_port;
    loop_leave(l);
    return frames;
}

// -- sleeping --------------------------------------------------------------------------------------

// Waits for the bell on the loop's behalf, once each time it is armed, and ends the loop's poll.
static void *helper_main(void *arg)
{
    loop *l = arg;
    while (!atomic_load(&l->stop)) {
        if (!atomic_load(&l->armed)) {
            sp4_futex_wait(&l->armed, 0, -1);
            continue;
        }
        sp4_bell_wait(l->bell, l->armed_seen, -1);
        atomic_store(&l->armed, 0);
        end_poll(l);
    }
    return NULL;
}

static void arm_helper(loop *l, uint32_t seen)
{
    if (!l->helper_runs) l->helper_runs = pthread_create(&l->helper, NULL, helper_main, l) == 0;
    if (atomic_load(&l->armed)) return; // still waiting for the ring that ends this sleep
    l->armed_seen = seen;
    atomic_store(&l->armed, 1);
    sp4_futex_wake(&l->armed);
}

// Until a frame comes in, a deadline is over or somebody wants the loop. Where many frames wait for their times, the loop
// naps: it is not woken by frames, and sees to all that have become due or came in meanwhile at once.
static void sleep_until_work(loop *l, uint32_t seen)
{
    uint64_t deadline = loop_deadline(l);
    const uint64_t now = deadline == SW_NEVER ? 0 : loop_now(l);
    const int naps = deadline < l->served + l->nap;
    if (naps) deadline = l->served + l->nap;
    if (deadline <= now) return;
    const int64_t left = deadline == SW_NEVER ? -1 : (int64_t)(deadline - now);
    const struct timespec timeout = {left / 1000000000, left % 1000000000};
    struct pollfd fds[LOOP_PORTS + 1];
    nfds_t n = 0;
    for (uint32_t i = 0; i < l->count && !naps; i++) {
        int fd = l->ports[i]->ops->fd ? l->ports[i]->ops->fd(l->ports[i]) : -1;
        if (fd < 0 || l->ports[i]->held) continue;
        fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    // A helper that still waits for the bell would clear its "somebody sleeps" mark under our feet.
    int bell_only = n == 0 && l->bell && !atomic_load(&l->armed) && !naps;
    if (l->shm_ports && !bell_only && !naps) arm_helper(l, seen);
    fds[n] = (struct pollfd){.fd = l->wake_fd, .events = POLLIN};
    loop_flush_taps(l);
    pthread_mutex_unlock(&l->lock);
    if (bell_only)
        sp4_bell_wait(l->bell, seen, left);
    else
        ppoll(fds, n + 1, left < 0 ? NULL : &timeout, NULL);
    pthread_mutex_lock(&l->lock);
    uint64_t rings;
    if (read(l->wake_fd, &rings, sizeof rings) < 0) {
        // nothing to drain: it was a port, or the bell
    }
    for (nfds_t i = 0; i < n; i++)
        if (fds[i].revents & (POLLERR | POLLHUP)) {
            int error;
            socklen_t size = sizeof error; // reading an interface's error clears it: else poll never sleeps
            getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &error, &size);
        }
}

int loop_run(loop *l)
{
    prctl(PR_SET_TIMERSLACK, 1); // nanosecond: a deadline is when a frame has to leave
    pthread_mutex_lock(&l->lock);
    while (!atomic_load(&l->stop)) {
        while (atomic_load(&l->waiting)) pthread_cond_wait(&l->resumed, &l->lock);
        uint32_t seen = l->bell ? sp4_bell_value(l->bell) : 0;
        const uint32_t served = loop_serve(l);
        if ((served == 0 || (l->nap && !l->more)) && !atomic_load(&l->stop) && !atomic_load(&l->waiting))
            sleep_until_work(l, seen);
    }
    loop_flush_taps(l);
    pthread_mutex_unlock(&l->lock);
    return 0;
}

void loop_free(loop *l)
{
    atomic_store(&l->stop, 1);
    if (l->helper_runs) {
        atomic_store(&l->armed, 1);
        sp4_futex_wake(&l->armed);
        loop_wake(l);
        pthread_join(l->helper, NULL);
    }
    while (l->count) detach(l, l->ports[l->count - 1]);
    loop_close_taps(l);
    loop_free_gathered(l);
    loop_close_bell(l);
    close(l->wake_fd);
    pthread_cond_destroy(&l->resumed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}
