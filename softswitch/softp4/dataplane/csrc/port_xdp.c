// SPDX-License-Identifier: Apache-2.0
// Ports on network interfaces by AF_XDP: an XDP program hands frames over before the network stack sees
// them. They are processed where the kernel put them; a frame that leaves is copied once. The kernel copies
// besides, unless the driver does zero copy.
//
// The socket and the kernel share UMEM, which is cut into chunks, and four rings of chunk addresses: `fill`
// (free chunks to receive into), `rx`, `tx` and `completion` (chunks that were sent). Of the first half of
// the chunks every one is in `fill`, in `rx` or in the loop's hands; of the second half in `unused`, `tx`,
// the kernel's hands or `completion`.
#define _GNU_SOURCE
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "batch.h"
#include "xdp_redirect.h"

enum {
    RING = 1024, // entries of each ring, as many as a shared-memory port has; a power of two
    CHUNK = 4096,
    HEADROOM = 256, // of a chunk, for XDP programs (XDP_PACKET_HEADROOM of linux/bpf.h)
    CHUNKS = 2 * RING,
    PUBLISH = 16, // received frames after which the kernel is told
    KICKS = 16,   // without progress, until what is left waits for the next flush
    BIND_TRIES = 100,
    BIND_PAUSE_NS = 10000000,
};

enum { XDP_MAX_FRAME = CHUNK - HEADROOM < SW_MAX_FRAME ? CHUNK - HEADROOM : SW_MAX_FRAME };

typedef struct {
    uint32_t *producer, *consumer, *flags;
    void *entries; // struct xdp_desc in rx and tx, uint64_t addresses in fill and completion
    void *memory;
    size_t size;
    uint32_t position; // of this end: ahead of what the other end has been told
} ring;

typedef struct {
    port base;
    int fd, promiscuous, zero_copy;
    xdp_redirect redirect;
    uint8_t *umem;
    ring fill, rx, tx, completion;
    uint32_t filled;  // what the kernel has put into rx, as far as we have looked
    uint32_t offered; // of tx: what the kernel may have seen
    uint32_t taken;   // of tx: what the kernel is done with, which it says late
    uint32_t room;    // entries of unused
    uint64_t unused[RING];
    uint64_t kernel_drops;
} xdp_port;

static uint32_t load(const uint32_t *index) { return __atomic_load_n(index, __ATOMIC_ACQUIRE); }
static void publish(uint32_t *index, uint32_t value) { __atomic_store_n(index, value, __ATOMIC_RELEASE); }

static struct xdp_desc *descriptor(const ring *r, uint32_t at)
{
    return (struct xdp_desc *)r->entries + at % RING;
}

static uint64_t *address(const ring *r, uint32_t at) { return (uint64_t *)r->entries + at % RING; }

static int wants_wakeup(const ring *r)
{
    return (__atomic_load_n(r->flags, __ATOMIC_RELAXED) & XDP_RING_NEED_WAKEUP) != 0;
}

// -- receiving -------------------------------------------------------------------------------------

static void tell_received(xdp_port *p)
{
    publish(p->rx.consumer, p->rx.position);
    publish(p->fill.producer, p->fill.position);
    if (wants_wakeup(&p->fill))
        recvfrom(p->fd, NULL, 0, MSG_DONTWAIT, NULL, NULL); // a driver that ran out of chunks
}

static void xdp_release(port *base)
{
    xdp_port *p = (xdp_port *)base;
    const uint64_t taken = descriptor(&p->rx, p->rx.position++)->addr;
    *address(&p->fill, p->fill.position++) = taken & ~(uint64_t)(CHUNK - 1);
    if (p->rx.position == p->filled || p->rx.position % PUBLISH == 0) tell_received(p);
}

static const uint8_t *xdp_peek(port *base, uint32_t *len)
{
    xdp_port *p = (xdp_port *)base;
    for (;;) {
        if (p->rx.position == p->filled) {
            p->filled = load(p->rx.producer);
            if (p->rx.position == p->filled) return NULL;
        }
        const struct xdp_desc *frame = descriptor(&p->rx, p->rx.position);
        *len = frame->len;
        if (*len <= XDP_MAX_FRAME) return p->umem + frame->addr;
        base->stats.rx_oversize++;
        xdp_release(base);
    }
}

static int xdp_fd(port *base) { return ((xdp_port *)base)->fd; }

// -- sending ---------------------------------------------------------------------------------------

static void collect_sent(xdp_port *p)
{
    const uint32_t sent = load(p->completion.producer);
    while (p->completion.position != sent)
        p->unused[p->room++] = *address(&p->completion, p->completion.position++);
    publish(p->completion.consumer, p->completion.position);
}

static void count_dropped(xdp_port *p, uint32_t at)
{
    p->base.stats.tx_packets--;
    p->base.stats.tx_bytes -= descriptor(&p->tx, at)->len;
    p->base.stats.tx_drops++;
}

// The interface is down or gone: what the kernel has not seen of tx is taken back.
static void drop_unseen(xdp_port *p)
{
    while (p->tx.position != p->offered) {
        count_dropped(p, --p->tx.position);
        p->unused[p->room++] = descriptor(&p->tx, p->tx.position)->addr;
    }
    publish(p->tx.producer, p->tx.position);
}

// Has the kernel send some of tx. Returns whether it did, or may do so now.
static int kick(xdp_port *p)
{
    const int error = sendto(p->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 ? errno : 0;
    if (error == ENETDOWN || error == ENXIO) {
        drop_unseen(p);
        return 0;
    }
    p->offered = p->tx.position;
    const uint32_t before = p->taken, told = load(p->tx.consumer);
    if ((int32_t)(told - p->taken) > 0) p->taken = told;
    if (error == EBUSY && !p->zero_copy) { // it stopped at a frame that the interface refused
        if (p->taken == before && p->taken != p->tx.position) p->taken++;
        if (p->taken != before) count_dropped(p, p->taken - 1);
    }
    return p->taken != before;
}

static void xdp_flush(port *base)
{
    xdp_port *p = (xdp_port *)base;
    publish(p->tx.producer, p->tx.position);
    if (p->zero_copy) p->offered = p->tx.position;
    for (int idle = 0; load(p->tx.consumer) != p->tx.position && wants_wakeup(&p->tx) && idle < KICKS; idle++)
        if (kick(p)) idle = 0;
    base->unsent = load(p->tx.consumer) != p->tx.position && wants_wakeup(&p->tx);
    collect_sent(p);
}

static int xdp_send(port *base, const uint8_t *frame, uint32_t len)
{
    xdp_port *p = (xdp_port *)base;
    if (len > XDP_MAX_FRAME || len < ETH_HLEN) return -1;
    if (p->room == 0) xdp_flush(base);
    if (p->room == 0) return -1;
    const uint64_t at = p->unused[--p->room];
    memcpy(p->umem + at, frame, len);
    *descriptor(&p->tx, p->tx.position++) = (struct xdp_desc){.addr = at, .len = len};
    base->stats.tx_packets++;
    base->stats.tx_bytes += len;
    return 0;
}

// -- life ------------------------------------------------------------------------------------------

static void xdp_refresh(port *base)
{
    xdp_port *p = (xdp_port *)base;
    struct xdp_statistics seen;
    socklen_t size = sizeof seen;
    memset(&seen, 0, sizeof seen);
    if (getsockopt(p->fd, SOL_XDP, XDP_STATISTICS, &seen, &size) != 0) return;
    const uint64_t drops = seen.rx_dropped + seen.rx_ring_full;
    base->stats.rx_drops += drops - p->kernel_drops;
    p->kernel_drops = drops;
}

static void xdp_close(port *base)
{
    xdp_port *p = (xdp_port *)base;
    xdp_redirect_close(&p->redirect);
    ring *const rings[] = {&p->fill, &p->rx, &p->tx, &p->completion};
    for (int i = 0; i < 4; i++)
        if (rings[i]->memory) munmap(rings[i]->memory, rings[i]->size);
    if (p->fd >= 0) close(p->fd);
    if (p->promiscuous >= 0) close(p->promiscuous);
    if (p->umem) munmap(p->umem, (size_t)CHUNKS * CHUNK);
    free(p);
}

static const port_ops XDP_OPS = {.peek = xdp_peek,
                                 .release = xdp_release,
                                 .send = xdp_send,
                                 .flush = xdp_flush,
                                 .fd = xdp_fd,
                                 .refresh = xdp_refresh,
                                 .close = xdp_close};

static int map_ring(int fd, ring *r, const struct xdp_ring_offset *at, uint64_t page, size_t entry)
{
    r->size = at->desc + RING * entry;
    uint8_t *memory = mmap(NULL, r->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, (off_t)page);
    if (memory == MAP_FAILED) return -errno;
    r->memory = memory;
    r->producer = (uint32_t *)(memory + at->producer);
    r->consumer = (uint32_t *)(memory + at->consumer);
    r->flags = (uint32_t *)(memory + at->flags);
    r->entries = memory + at->desc;
    return 0;
}

static int make_umem(xdp_port *p)
{
    const size_t size = (size_t)CHUNKS * CHUNK;
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (memory == MAP_FAILED) return -errno;
    p->umem = memory;
    const struct xdp_umem_reg region = {.addr = (uintptr_t)memory, .len = size, .chunk_size = CHUNK};
    return setsockopt(p->fd, SOL_XDP, XDP_UMEM_REG, &region, sizeof region) == 0 ? 0 : -errno;
}

static int make_rings(xdp_port *p)
{
    const int sizes[] = {XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING};
    const int entries = RING;
    for (int i = 0; i < 4; i++)
        if (setsockopt(p->fd, SOL_XDP, sizes[i], &entries, sizeof entries) != 0) return -errno;
    struct xdp_mmap_offsets at;
    socklen_t size = sizeof at;
    if (getsockopt(p->fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &size) != 0) return -errno;
    if (size != sizeof at) return -EOPNOTSUPP; // before Linux 5.4, which cannot say when it wants to be woken
    int result = map_ring(p->fd, &p->fill, &at.fr, XDP_UMEM_PGOFF_FILL_RING, sizeof(uint64_t));
    if (result == 0)
        result = map_ring(p->fd, &p->completion, &at.cr, XDP_UMEM_PGOFF_COMPLETION_RING, sizeof(uint64_t));
    if (result == 0) result = map_ring(p->fd, &p->rx, &at.rx, XDP_PGOFF_RX_RING, sizeof(struct xdp_desc));
    if (result == 0) result = map_ring(p->fd, &p->tx, &at.tx, XDP_PGOFF_TX_RING, sizeof(struct xdp_desc));
    return result;
}

static void share_out_chunks(xdp_port *p)
{
    for (uint64_t i = 0; i < RING; i++) {
        *address(&p->fill, p->fill.position++) = i * CHUNK;
        p->unused[p->room++] = (RING + i) * CHUNK;
    }
    publish(p->fill.producer, p->fill.position);
}

// A socket serves one receive queue; frames of others would pass the switch by.
static int check_queues(int fd, const char *interface)
{
    struct ethtool_channels queues = {.cmd = ETHTOOL_GCHANNELS};
    struct ifreq request = {.ifr_data = (void *)&queues};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    if (ioctl(fd, SIOCETHTOOL, &request) != 0) return 0; // a device that has no channels to speak of
    return queues.combined_count + queues.rx_count > 1 ? -E2BIG : 0;
}

// Until the descriptor is closed. It also answers for what interfaces can be asked.
static int open_promiscuous(xdp_port *p, unsigned index)
{
    p->promiscuous = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    const struct packet_mreq all = {.mr_ifindex = (int)index, .mr_type = PACKET_MR_PROMISC};
    if (p->promiscuous < 0 ||
        setsockopt(p->promiscuous, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all) != 0)
        return -errno;
    return 0;
}

// The kernel takes a closed socket off its queue a moment later: a port that was just removed may come back.
static int bind_to_queue(int fd, unsigned index)
{
    const struct sockaddr_xdp address = {
        .sxdp_family = AF_XDP, .sxdp_ifindex = index, .sxdp_flags = XDP_USE_NEED_WAKEUP};
    int result = 0;
    for (int tries = 0; tries < BIND_TRIES; tries++) {
        result = bind(fd, (const struct sockaddr *)&address, sizeof address) == 0 ? 0 : -errno;
        if (result != -EBUSY) break;
        nanosleep(&(struct timespec){.tv_nsec = BIND_PAUSE_NS}, NULL);
    }
    return result;
}

static int open_socket(xdp_port *p, unsigned index)
{
    p->fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (p->fd < 0) return -errno;
    grow_buffer(p->fd, SO_SNDBUFFORCE, SO_SNDBUF);
    int result = make_umem(p);
    if (result == 0) result = make_rings(p);
    if (result != 0) return result;
    share_out_chunks(p);
    if ((result = xdp_redirect_open(&p->redirect, index)) != 0) return result;
    if ((result = bind_to_queue(p->fd, index)) != 0) return result;
    struct xdp_options options = {0};
    socklen_t size = sizeof options;
    if (getsockopt(p->fd, SOL_XDP, XDP_OPTIONS, &options, &size) == 0)
        p->zero_copy = (options.flags & XDP_OPTIONS_ZEROCOPY) != 0;
    return xdp_redirect_to(&p->redirect, p->fd);
}

// Returns LOOP_XDP_... flags, or a negative errno; -E2BIG: the interface has several receive queues.
int loop_add_xdp(loop *l, uint32_t number, const char *interface)
{
    const unsigned index = if_nametoindex(interface);
    if (index == 0) return -errno;
    xdp_port *p = calloc(1, sizeof *p);
    if (!p) return -ENOMEM;
    p->base.ops = &XDP_OPS;
    p->base.number = number;
    p->fd = p->promiscuous = -1;
    p->redirect = (xdp_redirect){.map = -1, .program = -1, .link = -1};
    snprintf(p->base.name, sizeof p->base.name, "port %u (%s)", number, interface);
    int result = open_promiscuous(p, index);
    if (result == 0) result = check_queues(p->promiscuous, interface);
    if (result == 0) result = open_socket(p, index);
    loop_enter(l);
    if (result == 0) result = loop_free_number(l, number);
    if (result == 0) loop_attach(l, &p->base);
    loop_leave(l);
    if (result == 0)
        return (p->redirect.native ? LOOP_XDP_NATIVE : 0) | (p->zero_copy ? LOOP_XDP_ZERO_COPY : 0);
    xdp_close(&p->base);
    return result;
}
