/* SPDX-License-Identifier: Apache-2.0 */
/* The shared-memory port as plain functions, for Python tools and tests (see ring.py). */
#include "ring.h"

weir_bell *ring_bell_open(const char *path, int create) { return weir_bell_open(path, create); }
void ring_bell_close(weir_bell *bell) { weir_bell_close(bell); }
weir_port *ring_port_open(const char *path, int create, weir_bell *bell)
{
    return weir_port_open(path, create, bell);
}
void ring_port_close(weir_port *port) { weir_port_close(port); }

int ring_port_send(weir_port *port, int side, const void *frame, uint32_t length)
{
    int failed = weir_port_send(port, side, frame, length);
    weir_port_notify(port, side);
    return failed;
}

/* Length of the frame copied into `out` (WEIR_MAX_FRAME bytes), or -1 when none came in time. */
int ring_port_receive(weir_port *port, int side, void *out, int64_t timeout_ns)
{
    uint32_t length, seen = weir_bell_value(port->bell);
    const void *frame = weir_port_peek(port, side, &length);
    if (!frame) {
        if (side == WEIR_SIDE_HOST)
            weir_port_wait(port, side, timeout_ns);
        else
            weir_bell_wait(port->bell, seen, timeout_ns);
        if (!(frame = weir_port_peek(port, side, &length))) return -1;
    }
    memcpy(out, frame, length);
    weir_port_release(port, side);
    return (int)length;
}
