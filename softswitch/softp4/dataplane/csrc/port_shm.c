// SPDX-License-Identifier: Apache-2.0
// Ports in shared memory: files DIR/port-N and the switch's bell DIR/bell (native/ring.h).
#define _GNU_SOURCE
#include <stdio.h>

#include "loop_state.h"

typedef struct {
    port base;
    loop *owner;
    sp4_port *rings;
} shm_port;

static const uint8_t *shm_peek(port *p, uint32_t *len)
{
    return sp4_port_peek(((shm_port *)p)->rings, SP4_SIDE_SWITCH, len);
}

static const uint8_t *shm_peek_ahead(port *p, uint32_t ahead, uint32_t *len)
{
    return sp4_port_peek_ahead(((shm_port *)p)->rings, SP4_SIDE_SWITCH, ahead, len);
}

static void shm_release(port *p) { sp4_port_release(((shm_port *)p)->rings, SP4_SIDE_SWITCH); }

static int shm_send(port *p, const uint8_t *frame, uint32_t len)
{
    if (sp4_port_send(((shm_port *)p)->rings, SP4_SIDE_SWITCH, frame, len) != 0) return -1;
    p->stats.tx_packets++;
    p->stats.tx_bytes += len;
    return 0;
}

static void shm_flush(port *p) { sp4_port_notify(((shm_port *)p)->rings, SP4_SIDE_SWITCH); }

static void port_path(char *path, size_t size, const char *directory, uint32_t number)
{
    snprintf(path, size, "%s/port-%u", directory, number);
}

static void shm_close(port *p)
{
    shm_port *s = (shm_port *)p;
    char path[PATH_MAX];
    port_path(path, sizeof path, s->owner->shm_dir, p->number);
    unlink(path);
    sp4_port_close(s->rings);
    s->owner->shm_ports--;
    free(s);
}

static const port_ops SHM_OPS = {.peek = shm_peek,
                                 .peek_ahead = shm_peek_ahead,
                                 .release = shm_release,
                                 .send = shm_send,
                                 .flush = shm_flush,
                                 .close = shm_close};

// Made with the first port, kept until the loop ends: hosts hold it mapped.
static int need_bell(loop *l, const char *directory)
{
    if (l->bell) return strcmp(l->shm_dir, directory) == 0 ? 0 : -EXDEV;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/bell", directory);
    sp4_bell *bell = sp4_bell_open(path, 1);
    if (!bell) return -errno;
    l->shm_dir = strdup(directory);
    if (!l->shm_dir) {
        unlink(path);
        sp4_bell_close(bell);
        return -ENOMEM;
    }
    l->bell = bell;
    return 0;
}

void loop_close_bell(loop *l)
{
    if (!l->bell) return;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/bell", l->shm_dir);
    unlink(path);
    sp4_bell_close(l->bell);
    free(l->shm_dir);
}

int loop_add_shm(loop *l, uint32_t number, const char *directory)
{
    shm_port *s = calloc(1, sizeof *s);
    if (!s) return -ENOMEM;
    s->base.ops = &SHM_OPS;
    s->base.number = number;
    s->owner = l;
    snprintf(s->base.name, sizeof s->base.name, "port %u (shm)", number);
    loop_enter(l);
    int result = loop_free_number(l, number);
    if (result == 0) result = need_bell(l, directory);
    if (result == 0) {
        char path[PATH_MAX];
        port_path(path, sizeof path, directory, number);
        s->rings = sp4_port_open(path, 1, l->bell);
        result = s->rings ? 0 : -errno;
    }
    if (result == 0) {
        l->shm_ports++;
        loop_attach(l, &s->base);
    }
    loop_leave(l);
    if (result) free(s);
    return result;
}
