// SPDX-License-Identifier: Apache-2.0
// Captures of a running switch: each is one file, of all ports or of chosen ones, of what comes in, goes out
// or both.
#define _GNU_SOURCE
#include "loop_state.h"

enum { NOT_YET = UINT32_MAX };

struct tap {
    tap *next;
    capture *file;
    char *path;
    uint32_t directions; // CAPTURE_IN, CAPTURE_OUT or both
    int everywhere;      // also of ports that come later
    uint8_t chosen[LOOP_PORTS];
    uint32_t interface[LOOP_PORTS]; // of each port in the file, from its first frame on
};

static int taken(const tap *t, const port *p) { return t->everywhere || t->chosen[p->number]; }

void loop_tap_port(loop *l, port *p)
{
    p->tapped = 0;
    for (tap *t = l->taps; t; t = t->next)
        if (taken(t, p)) {
            p->tapped |= t->directions;
            t->interface[p->number] = NOT_YET;
        }
}

static void tap_ports(loop *l)
{
    for (uint32_t i = 0; i < l->count; i++) {
        l->ports[i]->tapped = 0;
        for (const tap *t = l->taps; t; t = t->next)
            if (taken(t, l->ports[i])) l->ports[i]->tapped |= t->directions;
    }
}

void loop_record(loop *l, port *p, const uint8_t *frame, uint32_t len, uint32_t direction)
{
    for (tap *t = l->taps; t; t = t->next) {
        if (!(t->directions & direction) || !taken(t, p)) continue;
        uint32_t *interface = &t->interface[p->number];
        if (*interface == NOT_YET) *interface = capture_interface(t->file, p->name);
        capture_frame(t->file, *interface, l->tap_time, frame, len, direction);
    }
}

void loop_flush_taps(loop *l)
{
    for (tap *t = l->taps; t; t = t->next) capture_flush(t->file);
}

static tap **find(loop *l, const char *path)
{
    tap **at = &l->taps;
    while (*at && strcmp((*at)->path, path) != 0) at = &(*at)->next;
    return at;
}

static int free_tap(tap *t)
{
    const int error = capture_close(t->file);
    free(t->path);
    free(t);
    return error;
}

static int open_tap(tap *t, const char *path, int pcapng)
{
    t->path = strdup(path);
    t->file = t->path ? capture_open(path, pcapng) : NULL;
    return t->file ? 0 : t->path ? -errno : -ENOMEM;
}

// Of `count` ports, or with 0 of all, also of those that come later. -EEXIST: this file is being written.
int loop_start_capture(loop *l, const char *path, int pcapng, uint32_t count, const uint32_t *ports,
                       uint32_t directions)
{
    tap *t = calloc(1, sizeof *t);
    if (!t) return -ENOMEM;
    t->directions = directions;
    t->everywhere = count == 0;
    memset(t->interface, 0xFF, sizeof t->interface);
    for (uint32_t i = 0; i < count; i++)
        if (ports[i] < LOOP_PORTS) t->chosen[ports[i]] = 1;
    loop_enter(l);
    tap **end = find(l, path);
    int result = *end ? -EEXIST : open_tap(t, path, pcapng);
    if (result == 0) {
        *end = t;
        tap_ports(l);
    }
    loop_leave(l);
    if (result != 0) {
        free(t->path);
        free(t);
    }
    return result;
}

// Closes the file. -ENOENT: none such is being written; other errors ended the capture before its time.
int loop_stop_capture(loop *l, const char *path)
{
    loop_enter(l);
    tap **at = find(l, path), *t = *at;
    if (t) {
        *at = t->next;
        tap_ports(l);
    }
    loop_leave(l);
    return t ? -free_tap(t) : -ENOENT;
}

// The errno that ended the capture into this file before its time, or 0; -ENOENT.
int loop_capture_error(loop *l, const char *path)
{
    loop_enter(l);
    const tap *t = *find(l, path);
    const int error = t ? capture_error(t->file) : -ENOENT;
    loop_leave(l);
    return error;
}

void loop_close_taps(loop *l)
{
    while (l->taps) {
        tap *t = l->taps;
        l->taps = t->next;
        free_tap(t);
    }
}
