/* SPDX-License-Identifier: Apache-2.0 */
/* The load of the suite `switch`: workers that keep every slot busy, self-clocked by the results.
 *
 * In memory: frames are handed straight to a switch. Over AF_PACKET: one socket per worker, batched; over shared
 * memory: one port per worker. A worker sends its next round of a slot when that slot's result arrives, as a
 * training job's would.
 */
#define _GNU_SOURCE /* recvmmsg, sendmmsg */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <net/ethernet.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"
#include "switch.h"
#include "wire.h"

#ifdef COUNTED /* under callgrind, which sees nothing but the load */
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#endif

#define UDP_PAYLOAD 42u
#define BATCH 64
#define PEEK 96 /* of a result, only the headers are looked at */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void set_round(uint8_t *frame, uint32_t slot, uint32_t round)
{
    uint16_t s = htons((uint16_t)slot);
    round = htonl(round);
    memcpy(frame + UDP_PAYLOAD + WEIR_WEIR_SLOT_OFFSET, &s, 2);
    memcpy(frame + UDP_PAYLOAD + WEIR_WEIR_ROUND_OFFSET, &round, 4);
}

static void count(void *ctx, uint32_t port, const uint8_t *frame, uint32_t len)
{
    (void)port, (void)frame, (void)len;
    ++*(uint64_t *)ctx;
}

/* `frames`: one contribution per worker, `len` bytes each. Runs rounds `from` to `to` on every slot.
 * Returns nanoseconds; `*results` is the number of frames the switch sent. */
uint64_t load_memory(sw_switch *sw, uint8_t *frames, uint32_t len, uint32_t workers, uint32_t slots,
                     uint32_t from, uint32_t to, uint64_t *results)
{
    *results = 0;
    CALLGRIND_START_INSTRUMENTATION;
    uint64_t start = now_ns();
    for (uint32_t round = from; round < to; round++)
        for (uint32_t slot = 0; slot < slots; slot++)
            for (uint32_t worker = 0; worker < workers; worker++) {
                uint8_t *frame = frames + worker * len;
                set_round(frame, slot, round);
                sw_process(sw, worker + 1, frame, len, start, count, results);
            }
    uint64_t taken = now_ns() - start;
    CALLGRIND_STOP_INSTRUMENTATION;
    return taken;
}

typedef struct {
    _Alignas(64) uint64_t frames;
} counter; /* of one part */

static void count_many(void *ctx, uint32_t part, uint32_t number, uint32_t port, const uint8_t *frame,
                       uint32_t len)
{
    (void)number, (void)port, (void)frame, (void)len;
    ((counter *)ctx)[part].frames++;
}

typedef struct {
    uint8_t *bytes;
    sw_frame *frames;
    size_t count;
    uint32_t together; /* handed over at once */
} rounds;

void load_discard(rounds *made)
{
    if (made == NULL) return;
    free(made->bytes);
    free(made->frames);
    free(made);
}

/* All frames of rounds, an even number, made before. They will be handed over two rounds at a time, as a cell has two
 * versions, each worker's one behind the other, as they would come from its port. They lie in huge pages, if Linux has
 * them: a port's few megabytes stay in the TLB, where this many do not. NULL: no memory. */
rounds *load_make(const uint8_t *frames, uint32_t len, uint32_t workers, uint32_t slots, uint32_t from,
                  uint32_t to)
{
    const size_t count = (size_t)(to - from) * slots * workers, huge = 1 << 21;
    const size_t bytes = (count * len + huge - 1) / huge * huge;
    rounds *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    *made =
        (rounds){aligned_alloc(huge, bytes), malloc(count * sizeof(sw_frame)), count, 2 * slots * workers};
    if (made->bytes == NULL || made->frames == NULL) {
        load_discard(made);
        return NULL;
    }
    (void)madvise(made->bytes, bytes, MADV_HUGEPAGE);
    uint8_t *next = made->bytes;
    sw_frame *at = made->frames;
    for (uint32_t round = from; round < to; round += 2)
        for (uint32_t worker = 0; worker < workers; worker++)
            for (uint32_t i = 0; i < 2 * slots; i++, next += len, at++) {
                memcpy(next, frames + (size_t)worker * len, len);
                set_round(next, i % slots, round + i / slots);
                *at = (sw_frame){next, worker + 1, len};
            }
    return made;
}

/* Returns nanoseconds; `*results` is the number of frames the switch sent. */
uint64_t load_hand_over(sw_switch *sw, const rounds *made, uint64_t *results)
{
    counter sent[SW_MOST_THREADS] = {0};
    const uint64_t start = now_ns();
    for (size_t at = 0; at < made->count; at += made->together)
        sw_process_many(sw, made->frames + at, made->together, start, count_many, sent);
    const uint64_t spent = now_ns() - start;
    *results = 0;
    for (uint32_t i = 0; i < SW_MOST_THREADS; i++) *results += sent[i].frames;
    return spent;
}

typedef struct {
    int fd;          /* a raw socket, or -1: */
    sp4_port *port;  /* a shared-memory port */
    uint32_t *round; /* of each slot */
    uint64_t sent, received;
    uint64_t *sent_at;
} load_worker;

/* A raw socket on `interface` of the network namespace file `netns`, whose caller stays where it is.
 * -1 with errno set on failure. */
int load_open(const char *netns, const char *interface)
{
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), there = open(netns, O_RDONLY | O_CLOEXEC),
        fd = -1;
    if (home >= 0 && there >= 0 && setns(there, CLONE_NEWNET) == 0) {
        struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP)};
        int one = 1, size = 32 << 20;
        address.sll_ifindex = (int)if_nametoindex(interface);
        fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, htons(ETH_P_IP));
        if (fd >= 0 && (bind(fd, (struct sockaddr *)&address, sizeof address) ||
                        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one))) {
            close(fd);
            fd = -1;
        } else if (fd >= 0) {
            setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one);
            setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
            setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
        }
        if (setns(home, CLONE_NEWNET) != 0) abort(); /* everything after would happen in the wrong network */
    }
    close(home);
    close(there);
    return fd;
}

/* Sends `n` frames of `len` bytes; how many went out. */
static int send_frames(load_worker *w, uint8_t *batch, uint32_t len, int n)
{
    int done = 0;
    if (w->port) {
        for (; done < n && sp4_port_send(w->port, SP4_SIDE_HOST, batch + (size_t)done * len, len) == 0;
             done++);
        sp4_port_notify(w->port, SP4_SIDE_HOST);
        return done;
    }
    struct mmsghdr messages[BATCH] = {0};
    struct iovec parts[BATCH];
    for (int i = 0; i < n; i++) {
        parts[i] = (struct iovec){batch + (size_t)i * len, len};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    for (int tries = 0; done < n && tries < 1000; tries++) { /* a full queue drains when others run */
        int more = sendmmsg(w->fd, messages + done, (unsigned)(n - done), 0);
        done += more > 0 ? more : 0;
        if (done < n) sched_yield();
    }
    return done;
}

static void send_slots(load_worker *w, uint8_t *batch, uint32_t len, const uint32_t *slots, int n)
{
    uint64_t now = now_ns();
    for (int i = 0; i < n; i++) {
        set_round(batch + (size_t)i * len, slots[i], w->round[slots[i]]);
        w->sent_at[slots[i]] = now;
    }
    w->sent += (uint64_t)send_frames(w, batch, len, n);
}

/* Whether a frame is the result that its slot waits for: then `*slot` goes on to its next round. */
static int is_answer(load_worker *w, const uint8_t *frame, uint32_t slots, uint32_t *slot)
{
    const uint8_t *weir = frame + UDP_PAYLOAD;
    uint32_t round;
    memcpy(&round, weir + WEIR_WEIR_ROUND_OFFSET, 4);
    *slot = (uint32_t)weir[WEIR_WEIR_SLOT_OFFSET] << 8 | weir[WEIR_WEIR_SLOT_OFFSET + 1];
    if ((weir[0] & 15) != WEIR_TYPE_RESULT || *slot >= slots || ntohl(round) != w->round[*slot]) return 0;
    w->received++;
    w->round[*slot]++;
    return 1;
}

/* The slots that were answered, up to BATCH of them. */
static int receive(load_worker *w, uint32_t slots, uint32_t *ready)
{
    int out = 0;
    if (w->port) {
        const uint8_t *frame;
        uint32_t length;
        for (int i = 0; i < BATCH && (frame = sp4_port_peek(w->port, SP4_SIDE_HOST, &length)) != NULL; i++) {
            out += is_answer(w, frame, slots, &ready[out]);
            sp4_port_release(w->port, SP4_SIDE_HOST);
        }
        return out;
    }
    static uint8_t heads[BATCH][PEEK];
    struct mmsghdr messages[BATCH] = {0};
    struct iovec parts[BATCH];
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){heads[i], PEEK};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    int n = recvmmsg(w->fd, messages, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) out += is_answer(w, heads[i], slots, &ready[out]);
    return out;
}

/* One step of one worker: answer what came in; with `check` also send what was never answered for
 * `retry_ns` (the first round among it). Returns whether anything came in. */
static int step(load_worker *w, uint8_t *batch, uint32_t len, uint32_t slots, uint64_t retry_ns, int check,
                uint64_t *retries)
{
    uint32_t ready[BATCH];
    uint64_t now = now_ns();
    int received = receive(w, slots, ready), n = 0;
    if (received > 0) send_slots(w, batch, len, ready, received);
    for (uint32_t slot = 0; check && slot < slots; slot++) {
        if (!w->sent_at[slot] || now > w->sent_at[slot] + retry_ns) {
            *retries += w->sent_at[slot] != 0;
            ready[n++] = slot;
        }
        if (n == BATCH || (n && slot + 1 == slots)) {
            send_slots(w, batch, len, ready, n);
            n = 0;
        }
    }
    return received > 0;
}

/* What `load_sockets` and `load_rings` have in common; without file descriptors it never sleeps. */
static void run(load_worker *w, const uint8_t *frames, uint32_t len, uint32_t workers, uint32_t slots,
                uint32_t first_round, uint64_t duration_ns, uint64_t retry_ns, uint64_t counts[3])
{
    uint8_t *batch = malloc((size_t)workers * BATCH * len);
    struct pollfd *fds = calloc(workers, sizeof *fds);
    memset(counts, 0, 3 * sizeof *counts);
    for (uint32_t i = 0; i < workers; i++) {
        w[i].round = calloc(slots, sizeof *w[i].round);
        w[i].sent_at = calloc(slots, sizeof *w[i].sent_at);
        fds[i] = (struct pollfd){w[i].fd, POLLIN, 0};
        for (size_t k = 0; k < BATCH; k++)
            memcpy(batch + (i * BATCH + k) * len, frames + (size_t)i * len, len);
        for (uint32_t slot = 0; slot < slots; slot++) w[i].round[slot] = first_round;
    }
    uint64_t end = now_ns() + duration_ns, checked = 0;
    for (uint64_t now; (now = now_ns()) < end;) {
        int busy = 0, check = now - checked > retry_ns / 4;
        for (uint32_t i = 0; i < workers; i++)
            busy |= step(&w[i], batch + (size_t)i * BATCH * len, len, slots, retry_ns, check, &counts[2]);
        checked = check ? now : checked;
        if (!busy && w[0].port)
            sched_yield();
        else if (!busy)
            poll(fds, workers, 1);
    }
    for (uint32_t i = 0; i < workers; i++) {
        counts[0] += w[i].sent;
        counts[1] += w[i].received;
        free(w[i].round);
        free(w[i].sent_at);
    }
    free(batch);
    free(fds);
}

/* `sockets`: one per worker, from load_open; closed at the end. Runs rounds from `first_round` on for
 * `duration_ns`; writes packets sent, results received and retransmissions. */
void load_sockets(const int *sockets, const uint8_t *frames, uint32_t len, uint32_t workers, uint32_t slots,
                  uint32_t first_round, uint64_t duration_ns, uint64_t retry_ns, uint64_t counts[3])
{
    load_worker *w = calloc(workers, sizeof *w);
    for (uint32_t i = 0; i < workers; i++) w[i].fd = sockets[i];
    run(w, frames, len, workers, slots, first_round, duration_ns, retry_ns, counts);
    for (uint32_t i = 0; i < workers; i++) close(w[i].fd);
    free(w);
}

/* The same over the shared-memory ports 1 to `workers` of a directory. -1 with errno set when they cannot be opened. */
int load_rings(const char *directory, const uint8_t *frames, uint32_t len, uint32_t workers, uint32_t slots,
               uint32_t first_round, uint64_t duration_ns, uint64_t retry_ns, uint64_t counts[3])
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/bell", directory);
    sp4_bell *bell = sp4_bell_open(path, 0);
    load_worker *w = calloc(workers, sizeof *w);
    uint32_t opened = 0;
    for (; bell && opened < workers; opened++) {
        snprintf(path, sizeof path, "%s/port-%u", directory, opened + 1);
        w[opened].fd = -1;
        if ((w[opened].port = sp4_port_open(path, 0, bell)) == NULL) break;
    }
    if (opened == workers) run(w, frames, len, workers, slots, first_round, duration_ns, retry_ns, counts);
    int error = errno;
    for (uint32_t i = 0; i < opened; i++) sp4_port_close(w[i].port);
    sp4_bell_close(bell);
    free(w);
    errno = error;
    return opened == workers ? 0 : -1;
}
