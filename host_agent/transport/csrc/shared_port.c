/* SPDX-License-Identifier: Apache-2.0 */
#include "shared_port.h"

#include <sys/mman.h>

enum { WEIR_ON_PORT = 1, WEIR_ON_INBOX = 2 };

static const int64_t IDLE_NS = 1000000; /* a leader that got nothing for so long sleeps in vain */

struct weir_inbox {
    sp4_port port;    /* of memory that no other process has: the leader is the switch there */
    weir_inbox *next; /* of those that are not used */
};

struct weir_shared_port {
    sp4_bell *bell;
    sp4_port *port;
    pthread_mutex_t lock, sending;
    weir_user *leader, *users; /* under the lock, as the rest */
    weir_inbox *spare;
};

/* --------------------------------------------------------------------------------------------- inboxes */

static weir_inbox *inbox_new(void)
{
    weir_inbox *inbox = calloc(1, sizeof *inbox);
    void *memory = inbox ? mmap(NULL, sizeof *inbox->port.memory, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) /* of which but one ring is touched */
                         : MAP_FAILED;
    if (memory == MAP_FAILED) {
        free(inbox);
        return NULL;
    }
    inbox->port.memory = memory;
    return inbox;
}

/* The user's inbox, which is made if need be. NULL when there is no memory. */
static weir_inbox *inbox_of(weir_user *user)
{
    weir_shared_port *shared = user->shared;
    if (user->inbox) return user->inbox;
    if ((user->inbox = shared->spare))
        shared->spare = user->inbox->next;
    else
        user->inbox = inbox_new();
    return user->inbox;
}

static void give_inbox_back(weir_user *user)
{
    uint32_t length;
    weir_inbox *inbox = user->inbox;
    if (!inbox) return;
    while (sp4_port_peek(&inbox->port, SP4_SIDE_HOST, &length)) sp4_port_release(&inbox->port, SP4_SIDE_HOST);
    inbox->next = user->shared->spare;
    user->shared->spare = inbox;
    user->inbox = NULL;
}

/* ------------------------------------------------------------------------------------------------ life */

weir_shared_port *weir_shared_open(const char *bell_path, const char *port_path)
{
    weir_shared_port *shared = calloc(1, sizeof *shared);
    if (!shared) return NULL;
    shared->bell = sp4_bell_open(bell_path, 0);
    shared->port = shared->bell ? sp4_port_open(port_path, 0, shared->bell) : NULL;
    if (!shared->port) {
        int error = errno;
        sp4_bell_close(shared->bell);
        free(shared);
        errno = error;
        return NULL;
    }
    pthread_mutex_init(&shared->lock, NULL);
    pthread_mutex_init(&shared->sending, NULL);
    return shared;
}

void weir_shared_close(weir_shared_port *shared)
{
    for (weir_inbox *inbox = shared->spare, *next; inbox; inbox = next) {
        next = inbox->next;
        munmap(inbox->port.memory, sizeof *inbox->port.memory);
        free(inbox);
    }
    sp4_port_close(shared->port);
    sp4_bell_close(shared->bell);
    pthread_mutex_destroy(&shared->lock);
    pthread_mutex_destroy(&shared->sending);
    free(shared);
}

/* ---------------------------------------------------------------------------------------- who receives */

/* Nobody leads: have somebody wake who will. Who is awake looks for himself before he sleeps, and who still sleeps on
 * the port does when something comes. */
static void seek_leader(weir_shared_port *shared)
{
    weir_user *found = NULL;
    if (shared->leader) return;
    for (weir_user *user = shared->users; user; user = user->next) {
        if (user->sleeps == WEIR_ON_PORT) return;
        if (user->sleeps == WEIR_ON_INBOX && (!found || user->active_ns > found->active_ns)) found = user;
    }
    if (!found) return;
    sp4_port *inbox = &found->inbox->port;
    if (!sp4_port_reserve(inbox, SP4_SIDE_SWITCH)) return; /* full of what wakes it */
    sp4_port_commit(inbox, SP4_SIDE_SWITCH, 0);
    sp4_port_notify(inbox, SP4_SIDE_SWITCH);
}

void weir_user_join(weir_user *user, uint32_t job)
{
    weir_shared_port *shared = user->shared;
    if (user->joined) return;
    user->job = job;
    user->joined = 1;
    pthread_mutex_lock(&shared->lock);
    user->next = shared->users;
    shared->users = user;
    if (!shared->leader) shared->leader = user;
    user->leads = shared->leader == user;
    pthread_mutex_unlock(&shared->lock);
}

void weir_user_yield(weir_user *user)
{
    weir_shared_port *shared = user->shared;
    user->leads = 0;
    pthread_mutex_lock(&shared->lock);
    if (shared->leader == user) shared->leader = NULL;
    seek_leader(shared); /* also if this one was woken to lead, and did not */
    pthread_mutex_unlock(&shared->lock);
}

void weir_user_leave(weir_user *user)
{
    weir_shared_port *shared = user->shared;
    if (!user->joined) return;
    user->joined = user->leads = 0;
    pthread_mutex_lock(&shared->lock);
    weir_user **at = &shared->users;
    while (*at != user) at = &(*at)->next;
    *at = user->next;
    give_inbox_back(user);
    user->filled = 0;
    if (shared->leader == user) shared->leader = NULL;
    seek_leader(shared);
    pthread_mutex_unlock(&shared->lock);
}

sp4_port *weir_user_turn(weir_user *user, sp4_port **inbox)
{
    weir_shared_port *shared = user->shared;
    const int led = user->leads; /* then nobody else touches its inbox */
    if (!led) {
        pthread_mutex_lock(&shared->lock);
        if (!shared->leader) shared->leader = user;
        user->leads = shared->leader == user;
    }
    *inbox = user->inbox ? &user->inbox->port : NULL;
    if (!led) pthread_mutex_unlock(&shared->lock);
    return user->leads ? shared->port : NULL;
}

static int sleeps_in_vain(const weir_user *leader)
{
    return leader->sleeps == WEIR_ON_PORT && sp4_clock_ns() - leader->active_ns > IDLE_NS;
}

void weir_user_wait(weir_user *user, int64_t timeout_ns)
{
    weir_shared_port *shared = user->shared;
    pthread_mutex_lock(&shared->lock);
    if (!user->leads && (!shared->leader || sleeps_in_vain(shared->leader))) {
        shared->leader = user;
        user->leads = 1;
        pthread_mutex_unlock(&shared->lock);
        return; /* to look at the port first, and at what the last leader left in the inbox */
    }
    sp4_port *on = user->leads ? shared->port : inbox_of(user) ? &user->inbox->port : NULL;
    const uint32_t head = on ? on->side[SP4_SIDE_HOST].head : 0; /* another may lead, and go on, meanwhile */
    user->sleeps = user->leads ? WEIR_ON_PORT : on ? WEIR_ON_INBOX : 0;
    pthread_mutex_unlock(&shared->lock);
    if (on)
        sp4_port_wait_behind(on, SP4_SIDE_HOST, head, timeout_ns);
    else
        nanosleep(&(struct timespec){0, IDLE_NS}, NULL); /* without an inbox nobody can wake it */
    pthread_mutex_lock(&shared->lock);
    user->sleeps = 0;
    user->leads = shared->leader == user;
    pthread_mutex_unlock(&shared->lock);
}

/* ----------------------------------------------------------------------------------------------- frames */

int weir_user_forward(weir_user *user, uint32_t job, const void *frame, uint32_t length)
{
    weir_shared_port *shared = user->shared;
    pthread_mutex_lock(&shared->lock);
    weir_user *to = shared->users;
    while (to && to->job != job) to = to->next;
    weir_inbox *inbox = to && to != user ? inbox_of(to) : NULL;
    void *room = inbox ? sp4_port_reserve(&inbox->port, SP4_SIDE_SWITCH) : NULL;
    if (room) {
        memcpy(room, frame, length);
        sp4_port_commit(&inbox->port, SP4_SIDE_SWITCH, length);
        to->filled = user->forwarded = 1;
    }
    pthread_mutex_unlock(&shared->lock);
    return to && to != user;
}

void weir_user_notify(weir_user *user)
{
    weir_shared_port *shared = user->shared;
    if (!user->forwarded) return;
    user->forwarded = 0;
    pthread_mutex_lock(&shared->lock);
    for (weir_user *to = shared->users; to; to = to->next) {
        if (to->filled) sp4_port_notify(&to->inbox->port, SP4_SIDE_SWITCH);
        to->filled = 0;
    }
    pthread_mutex_unlock(&shared->lock);
}

sp4_port *weir_user_begin_send(weir_user *user)
{
    pthread_mutex_lock(&user->shared->sending);
    return user->shared->port;
}

void weir_user_end_send(weir_user *user) { pthread_mutex_unlock(&user->shared->sending); }
