/* SPDX-License-Identifier: Apache-2.0 */
/* Shared-memory ports: Ethernet frames between a switch and a host of one machine, without root.
 *
 * A switch owns a directory: `bell`, and one `port-N` per port. A port holds two rings, one a direction,
 * each with a single producer and a single consumer. A consumer that has nothing to do sleeps on a futex:
 * hosts on their port's, the switch on its bell, which any host rings. Frames are written in place and
 * published in batches by sp4_port_notify's wake-up, so the price of a sleep is paid once a batch.
 *
 * The other side's memory is never trusted: indexes and lengths read from it are clamped, so that a host
 * gone wrong cannot make the switch read or write outside the ring.
 */
#ifndef SP4_RING_H
#define SP4_RING_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a ring, a power of two: twice what a job has on its way, of wide packets or four times of others. Rings are
 * gone round, so more would only be more memory than caches hold. */
#define SP4_RING_BYTES (1u << 20)
#define SP4_MAX_FRAME 4216u
#define SP4_RING_MAGIC 0x57454953u
/* To be raised with any change of what both sides write into a port's or the bell's file, or of its meaning. */
#define SP4_RING_VERSION 1u

enum { SP4_SIDE_SWITCH = 0, SP4_SIDE_HOST = 1 };

/* Records lie one behind the other, each in cache lines of its own. None goes over the end of the ring: one of length
 * SP4_SKIP says that the next is at the start. */
typedef struct {
    uint32_t length, pad;
    uint8_t frame[];
} sp4_record;

#define SP4_SKIP UINT32_MAX
#define SP4_MAX_RECORD ((uint32_t)sizeof(sp4_record) + SP4_MAX_FRAME) /* a multiple of 64 */

/* Positions count bytes, modulo 2^32. */
typedef struct {
    _Alignas(64) _Atomic uint32_t tail;     /* written by the producer; also the futex hosts sleep on */
    _Alignas(64) _Atomic uint32_t head;     /* written by the consumer */
    _Alignas(64) _Atomic uint32_t sleeping; /* how many of the consumer's threads do */
    _Alignas(64) uint8_t records[SP4_RING_BYTES];
} sp4_ring;

typedef struct {
    uint32_t magic, version, bytes;
    sp4_ring ring[2]; /* indexed by the producer's side */
} sp4_port_memory;

typedef struct {
    _Alignas(64) _Atomic uint32_t value;
    _Alignas(64) _Atomic uint32_t sleeping;
} sp4_bell_memory;

typedef struct sp4_bell {
    sp4_bell_memory *memory;
} sp4_bell;

typedef struct sp4_port {
    sp4_port_memory *memory;
    sp4_bell *bell;
    struct {
        uint32_t tail, head; /* own positions: ours to know, not to read back */
        uint32_t skip;       /* bytes from the tail to the start of the ring, if the next record goes there */
        uint32_t at;         /* position behind the record that was looked at last */
    } side[2];
} sp4_port;

/* Nanoseconds to look for work before sleeping: SOFTP4_SPIN_US microseconds, by default 50 where this process may run on
 * SP4_MANY processors, and none where it may not. A sleeper is woken in 5 to 200 microseconds, most in virtual machines,
 * and a round trip has four of them; with few processors a spinner would take one from those it waits for. */
static inline int64_t sp4_spin_ns(void)
{
    enum { SP4_MANY = 8, SP4_SPIN_DEFAULT_NS = 50000 };
    static _Atomic int64_t known = -1;
    int64_t ns = atomic_load_explicit(&known, memory_order_relaxed);
    if (ns >= 0) return ns;
    const char *chosen = getenv("SOFTP4_SPIN_US");
    unsigned long own[16] = {0}; /* a bit for each processor */
    int processors = 0;
    if (syscall(SYS_sched_getaffinity, 0, sizeof own, own) > 0)
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) processors += __builtin_popcountl(own[i]);
    ns = chosen ? 1000 * strtoll(chosen, NULL, 10) : processors >= SP4_MANY ? SP4_SPIN_DEFAULT_NS : 0;
    if (ns < 0) ns = 0;
    atomic_store_explicit(&known, ns, memory_order_relaxed);
    return ns;
}

static inline int64_t sp4_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

/* Look for a while whether a word has another value than `seen`. timeout_ns: at most, if not negative. */
static inline int sp4_spin(const _Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    enum { SP4_LOOKS = 64 }; /* from one look at the clock to the next */
    int64_t most = sp4_spin_ns(), end = 0;
    if (timeout_ns >= 0 && timeout_ns < most) most = timeout_ns;
    while (most > 0) {
        for (int i = 0; i < SP4_LOOKS; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != seen) return 1;
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
        }
        const int64_t now = sp4_clock_ns();
        if (!end) end = now + most;
        if (now >= end) break;
    }
    return atomic_load_explicit(word, memory_order_acquire) != seen;
}

static inline long sp4_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    return syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ns < 0 ? NULL : &t, NULL, 0);
}

static inline void sp4_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* 0, or why an open file must not be mapped. Who else may write to it can also cut it, and who maps it then dies of
 * SIGBUS. See ownership.py. */
static inline int sp4_file_problem(int fd, size_t size)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return errno;
    if ((st.st_uid != geteuid() && st.st_uid != 0) || st.st_mode & (S_IWGRP | S_IWOTH)) return EPERM;
    return S_ISREG(st.st_mode) && (size_t)st.st_size == size ? 0 : EPROTO; /* EPROTO: of another layout */
}

/* Map a file that is made here, or was by a switch of this user or of root. A new one gets all of its memory at once,
 * since a process that touches a page for which there is none left dies of SIGBUS. NULL with errno set; then a new file
 * is gone again. */
static inline void *sp4_map(const char *path, size_t size, int create)
{
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_EXCL : 0), 0600);
    if (fd < 0) return NULL;
    int problem = create ? posix_fallocate(fd, 0, (off_t)size) : sp4_file_problem(fd, size);
    void *memory = problem ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (!problem && memory == MAP_FAILED) problem = errno;
    close(fd);
    if (!problem) return memory;
    if (create) unlink(path);
    errno = problem;
    return NULL;
}

/* NULL with errno set when the file cannot be made (it must not exist) or opened. */
static inline sp4_bell *sp4_bell_open(const char *path, int create)
{
    sp4_bell_memory *memory = sp4_map(path, sizeof *memory, create);
    sp4_bell *bell = memory ? malloc(sizeof *bell) : NULL;
    if (bell)
        bell->memory = memory;
    else if (memory)
        munmap(memory, sizeof *memory);
    return bell;
}

static inline void sp4_bell_close(sp4_bell *bell)
{
    if (!bell) return;
    munmap(bell->memory, sizeof *bell->memory);
    free(bell);
}

static inline uint32_t sp4_bell_value(sp4_bell *bell)
{
    return atomic_load_explicit(&bell->memory->value, memory_order_acquire);
}

static inline void sp4_bell_ring(sp4_bell *bell)
{
    atomic_fetch_add_explicit(&bell->memory->value, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&bell->memory->sleeping, memory_order_seq_cst))
        sp4_futex_wake(&bell->memory->value);
}

/* Sleep until the bell's value differs from `seen` or the time is over. Read the value BEFORE looking at
 * the rings, so that a frame sent in between ends the sleep at once. Returns 1 when it rang. */
static inline int sp4_bell_wait(sp4_bell *bell, uint32_t seen, int64_t timeout_ns)
{
    if (sp4_spin(&bell->memory->value, seen, timeout_ns)) return 1;
    atomic_store_explicit(&bell->memory->sleeping, 1, memory_order_seq_cst);
    if (sp4_bell_value(bell) == seen) sp4_futex_wait(&bell->memory->value, seen, timeout_ns);
    atomic_store_explicit(&bell->memory->sleeping, 0, memory_order_seq_cst);
    return sp4_bell_value(bell) != seen;
}

/* Create (switch) or attach (host) a port. `bell` stays the caller's. NULL with errno set on failure; EPROTO: the file
 * is of another version or layout, see layout_problem in ring.py. */
static inline sp4_port *sp4_port_open(const char *path, int create, sp4_bell *bell)
{
    sp4_port_memory *memory = sp4_map(path, sizeof *memory, create);
    if (!memory) return NULL;
    if (create) {
        memory->version = SP4_RING_VERSION;
        memory->bytes = SP4_RING_BYTES;
        memory->magic = SP4_RING_MAGIC;
    } else if (memory->magic != SP4_RING_MAGIC || memory->version != SP4_RING_VERSION ||
               memory->bytes != SP4_RING_BYTES) {
        munmap(memory, sizeof *memory);
        errno = EPROTO;
        return NULL;
    }
    sp4_port *port = calloc(1, sizeof *port);
    if (!port) {
        munmap(memory, sizeof *memory);
        return NULL;
    }
    port->memory = memory;
    port->bell = bell;
    if (!create)
        atomic_store(&memory->ring[SP4_SIDE_SWITCH].sleeping, 0); /* the last host may have died asleep */
    for (int side = 0; side < 2; side++) { /* a host that starts again goes on where the last one stopped */
        port->side[side].tail = atomic_load(&memory->ring[side].tail);
        port->side[side].head = atomic_load(&memory->ring[!side].head);
    }
    return port;
}

static inline void sp4_port_close(sp4_port *port)
{
    if (!port) return;
    munmap(port->memory, sizeof *port->memory);
    free(port);
}

static inline uint32_t sp4_record_bytes(uint32_t length)
{
    return (uint32_t)(sizeof(sp4_record) + length + 63) & ~63u;
}

static inline sp4_record *sp4_record_at(sp4_ring *ring, uint32_t position)
{
    return (sp4_record *)(ring->records + (position & (SP4_RING_BYTES - 1)));
}

/* Bytes from a position to where the ring starts again. */
static inline uint32_t sp4_ring_rest(uint32_t position)
{
    return SP4_RING_BYTES - (position & (SP4_RING_BYTES - 1));
}

/* Room for a frame of up to SP4_MAX_FRAME bytes, or NULL while the ring is full. */
static inline void *sp4_port_reserve(sp4_port *port, int side)
{
    sp4_ring *ring = &port->memory->ring[side];
    uint32_t tail = port->side[side].tail;
    uint32_t used = tail - atomic_load_explicit(&ring->head, memory_order_acquire),
             rest = sp4_ring_rest(tail);
    uint32_t skip = rest < SP4_MAX_RECORD ? rest : 0;
    if (used > SP4_RING_BYTES || SP4_RING_BYTES - used < skip + SP4_MAX_RECORD) return NULL;
    port->side[side].skip = skip;
    return sp4_record_at(ring, tail + skip)->frame;
}

/* Fetches a record before somebody waits for it, as far as the ring goes. The one that is written next the other side's
 * processor had last, and the next frame is about as long as this one (measured: an all-reduce of dense gradients then
 * takes 10 to 15 % less). */
static inline void sp4_record_fetch(sp4_ring *ring, uint32_t position, uint32_t bytes, int to_write)
{
    const char *at = (const char *)sp4_record_at(ring, position);
    if (bytes > sp4_ring_rest(position)) bytes = sp4_ring_rest(position);
    for (uint32_t i = 0; i < bytes; i += 64)
        if (to_write)
            __builtin_prefetch(at + i, 1);
        else
            __builtin_prefetch(at + i, 0);
}

static inline void sp4_port_commit(sp4_port *port, int side, uint32_t length)
{
    sp4_ring *ring = &port->memory->ring[side];
    uint32_t tail = port->side[side].tail, skip = port->side[side].skip, bytes = sp4_record_bytes(length);
    if (skip) sp4_record_at(ring, tail)->length = SP4_SKIP;
    sp4_record_at(ring, tail + skip)->length = length;
    port->side[side].tail = tail += skip + bytes;
    atomic_store_explicit(&ring->tail, tail, memory_order_release);
    sp4_record_fetch(ring, tail, bytes, 1);
}

/* 0, or -1 when the ring is full or the frame too long. */
static inline int sp4_port_send(sp4_port *port, int side, const void *frame, uint32_t length)
{
    void *room = length <= SP4_MAX_FRAME ? sp4_port_reserve(port, side) : NULL;
    if (!room) return -1;
    memcpy(room, frame, length);
    sp4_port_commit(port, side, length);
    return 0;
}

/* The record at `*position` or, if it is skipped from there, at the start of the ring; NULL when none is there up to
 * `tail`. Its frame has `*length` bytes, and it ends at `*end`. What the other side wrote is believed only as far as it
 * stays inside the ring. */
static inline sp4_record *sp4_record_read(sp4_ring *ring, uint32_t tail, uint32_t *position, uint32_t *length,
                                          uint32_t *end)
{
    for (int skipped = 0; skipped < 2; skipped++) {
        uint32_t waiting = tail - *position, rest = sp4_ring_rest(*position);
        if (waiting == 0 || waiting > SP4_RING_BYTES) return NULL;
        sp4_record *record = sp4_record_at(ring, *position);
        uint32_t n = *(volatile uint32_t *)&record->length;
        if (n == SP4_SKIP && !skipped && rest < waiting) {
            *position += rest;
            continue;
        }
        uint32_t most = rest - (uint32_t)sizeof *record;
        if (most > SP4_MAX_FRAME) most = SP4_MAX_FRAME;
        *length = n < most ? n : most;
        uint32_t bytes = sp4_record_bytes(*length);
        *end = *position + (bytes < waiting ? bytes : waiting);
        return record;
    }
    return NULL;
}

/* The frame that the other side sent after `ahead` others that wait, in place, or NULL: to be asked for one after the
 * other, from 0 on. Valid until it is released. */
static inline const void *sp4_port_peek_ahead(sp4_port *port, int side, uint32_t ahead, uint32_t *length)
{
    sp4_ring *ring = &port->memory->ring[!side];
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire), end;
    uint32_t at = ahead ? port->side[side].at : port->side[side].head;
    sp4_record *record = sp4_record_read(ring, tail, &at, length, &end);
    if (!record) return NULL;
    port->side[side].at = end;
    if (end != tail) sp4_record_fetch(ring, end, end - at, 0);
    return record->frame;
}

/* The oldest one. */
static inline const void *sp4_port_peek(sp4_port *port, int side, uint32_t *length)
{
    return sp4_port_peek_ahead(port, side, 0, length);
}

static inline void sp4_port_release(sp4_port *port, int side)
{
    sp4_ring *ring = &port->memory->ring[!side];
    uint32_t at = port->side[side].head, length, end;
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (sp4_record_read(ring, tail, &at, &length, &end)) port->side[side].head = end;
    atomic_store_explicit(&ring->head, port->side[side].head, memory_order_release);
}

/* After a batch of frames: wake the other side if it sleeps. */
static inline void sp4_port_notify(sp4_port *port, int side)
{
    if (side == SP4_SIDE_HOST) {
        sp4_bell_ring(port->bell);
        return;
    }
    sp4_ring *ring = &port->memory->ring[SP4_SIDE_SWITCH];
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&ring->sleeping, memory_order_relaxed)) sp4_futex_wake(&ring->tail);
}

/* Host: sleep until a frame is there behind the position `head` (1), or the time is over or a signal came (0). */
static inline int sp4_port_wait_behind(sp4_port *port, int side, uint32_t head, int64_t timeout_ns)
{
    sp4_ring *ring = &port->memory->ring[!side];
    if (sp4_spin(&ring->tail, head, timeout_ns)) return 1;
    const int64_t start = sp4_clock_ns();
    int64_t left = timeout_ns;
    atomic_fetch_add_explicit(&ring->sleeping, 1, memory_order_seq_cst);
    while (atomic_load_explicit(&ring->tail, memory_order_seq_cst) == head && (timeout_ns < 0 || left > 0)) {
        if (sp4_futex_wait(&ring->tail, head, left) != 0 && errno != EAGAIN) break;
        /* The wake-up may have been for frames that were taken before this sleep began. */
        if (timeout_ns >= 0) left = timeout_ns - (sp4_clock_ns() - start);
    }
    atomic_fetch_sub_explicit(&ring->sleeping, 1, memory_order_relaxed);
    return atomic_load_explicit(&ring->tail, memory_order_acquire) != head;
}

/* The same, behind all that was released. */
static inline int sp4_port_wait(sp4_port *port, int side, int64_t timeout_ns)
{
    return sp4_port_wait_behind(port, side, port->side[side].head, timeout_ns);
}

#endif
