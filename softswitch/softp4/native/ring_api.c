/* SPDX-License-Identifier: Apache-2.0 */
/* The shared-memory port as plain functions, for Python tools and tests (see ring.py). */
#include "ring.h"

sp4_bell *ring_bell_open(const char *path, int create) { return sp4_bell_open(path, create); }
void ring_bell_close(sp4_bell *bell) { sp4_bell_close(bell); }
sp4_port *ring_port_open(const char *path, int create, sp4_bell *bell)
{
    return sp4_port_open(path, create, bell);
}
void ring_port_close(sp4_port *port) { sp4_port_close(port); }

int ring_port_send(sp4_port *port, int side, const void *frame, uint32_t length)
{
    int failed = sp4_port_send(port, side, frame, length);
    sp4_port_notify(port, side);
    return failed;
}

/* Length of the frame copied into `out` (SP4_MAX_FRAME bytes), or -1 when none came in time. */
int ring_port_receive(sp4_port *port, int side, void *out, int64_t timeout_ns)
{
    uint32_t length, seen = sp4_bell_value(port->bell);
    const void *frame = sp4_port_peek(port, side, &length);
    if (!frame) {
        if (side == SP4_SIDE_HOST)
            sp4_port_wait(port, side, timeout_ns);
        else
            sp4_bell_wait(port->bell, seen, timeout_ns);
        if (!(frame = sp4_port_peek(port, side, &length))) return -1;
    }
    memcpy(out, frame, length);
    sp4_port_release(port, side);
    return (int)length;
}
