// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "batch.h"

void batch_init(send_batch *b, const send_kind *kind, int segments)
{
    b->kind = kind;
    b->segments = segments;
    for (uint32_t i = 0; i < SEND_BATCH; i++) {
        b->vectors[i][0] = (struct iovec){b->notes[i], kind->prefix};
        b->messages[i].msg_hdr = (struct msghdr){.msg_iov = b->vectors[i], .msg_iovlen = 2};
    }
}

// -- filling ---------------------------------------------------------------------------------------

static void append(send_batch *b, const uint8_t *bytes, uint32_t len)
{
    memcpy(b->bytes + b->written, bytes, len);
    b->vectors[b->queued - 1][1].iov_len += len;
    b->written += len;
}

int batch_add(send_batch *b, port *p, int fd, const uint8_t *frame, uint32_t len)
{
    if (len > SW_MAX_FRAME) return -1;
    if (b->queued == SEND_BATCH || b->written + len > SEND_BYTES) batch_flush(b, p, fd);
    b->batches[b->queued] = (gso_batch){.frames = 1, .size = len};
    b->vectors[b->queued++][1] = (struct iovec){b->bytes + b->written, 0};
    append(b, frame, len);
    return 0;
}

const uint8_t *batch_last(const send_batch *b)
{
    return b->queued ? b->vectors[b->queued - 1][1].iov_base : NULL;
}

int batch_join(send_batch *b, const uint8_t *frame, uint32_t len, uint32_t headers)
{
    if (!b->segments || b->queued == 0) return 0;
    gso_batch *t = &b->batches[b->queued - 1];
    const size_t bytes = b->vectors[b->queued - 1][1].iov_len;
    if (len > t->size || len <= headers || bytes != headers + (size_t)t->frames * (t->size - headers) ||
        t->frames == BATCH_FRAMES || bytes + len - headers > BATCH_BYTES || b->written + len > SEND_BYTES)
        return 0;
    t->headers = headers;
    t->frames++;
    append(b, frame + headers, len - headers);
    return 1;
}

// -- sending ---------------------------------------------------------------------------------------

static void count_sent(port *p, const gso_batch *t, size_t bytes)
{
    p->stats.tx_packets += t->frames;
    p->stats.tx_bytes += bytes + (uint64_t)(t->frames - 1) * t->headers;
    p->stats.tx_batches += t->frames > 1;
}

// Sends the frames of a batch one by one, as they were.
static void send_apart(const send_batch *b, port *p, int fd, uint32_t message)
{
    static uint8_t no_note[NOTE_BYTES];
    const gso_batch *t = &b->batches[message];
    const struct iovec *batch = &b->vectors[message][1];
    const uint8_t *body = (uint8_t *)batch->iov_base + t->headers;
    size_t left = batch->iov_len - t->headers;
    uint8_t frame[SW_MAX_FRAME];
    memcpy(frame, batch->iov_base, t->headers);
    while (left) {
        const size_t here = left < t->size - t->headers ? left : t->size - t->headers;
        memcpy(frame + t->headers, body, here);
        body += here;
        left -= here;
        if (b->kind->restore) b->kind->restore(frame, (uint32_t)(t->headers + here));
        struct iovec vectors[] = {{no_note, b->kind->prefix}, {frame, t->headers + here}};
        const struct msghdr *whole = &b->messages[message].msg_hdr;
        const struct msghdr single = {.msg_name = whole->msg_name,
                                      .msg_namelen = whole->msg_namelen,
                                      .msg_iov = vectors,
                                      .msg_iovlen = 2};
        if (sendmsg(fd, &single, 0) < 0)
            p->stats.tx_drops++;
        else
            count_sent(p, &(gso_batch){.frames = 1}, t->headers + here);
    }
}

static void coalesce(send_batch *b)
{
    for (uint32_t i = 0; i < b->queued; i++) {
        memset(b->notes[i], 0, NOTE_BYTES);
        b->messages[i].msg_hdr.msg_controllen = 0;
        if (b->batches[i].frames > 1) b->kind->coalesce(&b->messages[i].msg_hdr, &b->batches[i], b->notes[i]);
    }
}

// Whether the kernel, or the interface, does not take batches, rather than having no room now.
static int is_refusal(int error)
{
    return error == EINVAL || error == EIO || error == EMSGSIZE || error == EOPNOTSUPP;
}

// What could not be sent: queue full, interface down, longer than the MTU; or a batch, and nothing takes batches here.
static void give_up(send_batch *b, port *p, int fd, uint32_t message, int error)
{
    if (b->batches[message].frames > 1 && is_refusal(error)) {
        b->segments = 0;
        send_apart(b, p, fd, message);
    } else
        p->stats.tx_drops += b->batches[message].frames;
}

void batch_flush(send_batch *b, port *p, int fd)
{
    uint32_t done = 0, refused = 0;
    coalesce(b);
    while (done < b->queued) {
        int n = sendmmsg(fd, b->messages + done, b->queued - done, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == ECONNREFUSED && !refused++)
            continue; // said of an earlier datagram, which found nobody; this one has not been tried
        if (n <= 0) give_up(b, p, fd, done++, errno);
        for (; n > 0; n--, done++) count_sent(p, &b->batches[done], b->vectors[done][1].iov_len);
        refused = 0;
    }
    b->queued = b->written = 0;
}

void grow_buffer(int fd, int forced_option, int option)
{
    const int size = SOCKET_BUFFER;
    if (setsockopt(fd, SOL_SOCKET, forced_option, &size, sizeof size) != 0)
        setsockopt(fd, SOL_SOCKET, option, &size, sizeof size); // without CAP_NET_ADMIN: what one may have
}
