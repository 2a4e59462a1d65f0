// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SECTION_HEADER = 0x0A0D0D0A,
    BYTE_ORDER_MAGIC = 0x1A2B3C4D,
    INTERFACE = 1,
    ENHANCED_PACKET = 6,
    LINKTYPE_ETHERNET = 1,
    OPT_END = 0,
    OPT_IF_NAME = 2,
    OPT_IF_TSRESOL = 9,
    OPT_SHB_USERAPPL = 4,
    OPT_EPB_FLAGS = 2,
    BUFFER = 1 << 20,
    MAX_BLOCK = 1 << 16,
};

static const uint32_t PCAP_HEADER[] = {0xA1B2C3D4, 2 | 4 << 16, 0, 0, 0xFFFF, LINKTYPE_ETHERNET};

struct capture {
    int fd, error, pcapng;
    uint32_t interfaces;
    size_t used;
    off_t written; // all of it whole frames
    uint8_t buffer[BUFFER + MAX_BLOCK];
};

void capture_flush(capture *c)
{
    size_t done = 0;
    while (done < c->used && !c->error) {
        ssize_t n = write(c->fd, c->buffer + done, c->used - done);
        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            c->error = errno; // disk full, file gone: the switch goes on, the capture ends here
    }
    if (!c->error)
        c->written += (off_t)done;
    else if (done && ftruncate(c->fd, c->written) < 0)
        (void)0; // a pipe, say: its reader sees where it ends
    c->used = 0;
}

int capture_error(const capture *c) { return c->error; }

static void put32(capture *c, uint32_t value)
{
    memcpy(c->buffer + c->used, &value, 4);
    c->used += 4;
}

static void put_padded(capture *c, const void *data, uint32_t len)
{
    if (len) memcpy(c->buffer + c->used, data, len);
    c->used += len;
    while (c->used & 3) c->buffer[c->used++] = 0;
}

static void put_option(capture *c, uint32_t code, const void *value, uint32_t len)
{
    put32(c, code | len << 16);
    put_padded(c, value, len);
}

// A block's length stands before and behind its body.
static size_t begin_block(capture *c, uint32_t type)
{
    size_t start = c->used;
    put32(c, type);
    put32(c, 0);
    return start;
}

static void end_block(capture *c, size_t start)
{
    uint32_t len = (uint32_t)(c->used - start) + 4;
    memcpy(c->buffer + start + 4, &len, 4);
    put32(c, len);
    if (c->used >= BUFFER) capture_flush(c);
}

static void begin_pcapng(capture *c)
{
    static const char application[] = "soft switch";
    const int64_t unknown_length = -1;
    size_t start = begin_block(c, SECTION_HEADER);
    put32(c, BYTE_ORDER_MAGIC);
    put32(c, 1); // version 1.0
    put_padded(c, &unknown_length, 8);
    put_option(c, OPT_SHB_USERAPPL, application, sizeof application - 1);
    put_option(c, OPT_END, NULL, 0);
    end_block(c, start);
}

capture *capture_open(const char *path, int pcapng)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    capture *c = fd < 0 ? NULL : malloc(sizeof *c);
    if (!c) {
        if (fd >= 0) close(fd);
        return NULL;
    }
    c->fd = fd;
    c->error = 0;
    c->interfaces = 0;
    c->used = 0;
    c->written = 0;
    c->pcapng = pcapng;
    if (pcapng)
        begin_pcapng(c);
    else
        put_padded(c, PCAP_HEADER, sizeof PCAP_HEADER);
    return c;
}

uint32_t capture_interface(capture *c, const char *name)
{
    if (!c->pcapng) return c->interfaces++;
    const uint8_t nanoseconds = 9;
    size_t start = begin_block(c, INTERFACE);
    put32(c, LINKTYPE_ETHERNET);
    put32(c, 0); // no limit on frame length
    put_option(c, OPT_IF_NAME, name, (uint32_t)strlen(name));
    put_option(c, OPT_IF_TSRESOL, &nanoseconds, 1);
    put_option(c, OPT_END, NULL, 0);
    end_block(c, start);
    return c->interfaces++;
}

static void pcap_frame(capture *c, uint64_t now_ns, const uint8_t *frame, uint32_t len)
{
    put32(c, (uint32_t)(now_ns / 1000000000));
    put32(c, (uint32_t)(now_ns % 1000000000 / 1000));
    put32(c, len);
    put32(c, len);
    memcpy(c->buffer + c->used, frame, len);
    c->used += len;
    if (c->used >= BUFFER) capture_flush(c);
}

void capture_frame(capture *c, uint32_t interface, uint64_t now_ns, const uint8_t *frame, uint32_t len,
                   uint32_t direction)
{
    if (!c->pcapng) {
        pcap_frame(c, now_ns, frame, len);
        return;
    }
    size_t start = begin_block(c, ENHANCED_PACKET);
    put32(c, interface);
    put32(c, (uint32_t)(now_ns >> 32));
    put32(c, (uint32_t)now_ns);
    put32(c, len);
    put32(c, len);
    put_padded(c, frame, len);
    put_option(c, OPT_EPB_FLAGS, &direction, 4);
    put_option(c, OPT_END, NULL, 0);
    end_block(c, start);
}

int capture_close(capture *c)
{
    if (!c) return 0;
    capture_flush(c);
    if (close(c->fd) < 0 && !c->error) c->error = errno; // file systems with quotas, or far away, say it now
    const int error = c->error;
    free(c);
    return error;
}
