// SPDX-License-Identifier: Apache-2.0
// What leads an interface's frames into an AF_XDP socket: an XDP program of five instructions and its map.
#ifndef SOFTP4_XDP_REDIRECT_H
#define SOFTP4_XDP_REDIRECT_H

typedef struct {
    int map, program, link; // -1: not open. Closing them, or the end of the process, detaches the program.
    int native;             // the driver runs the program, and not the network stack on the driver's behalf
} xdp_redirect;

// Attaches the program; frames go on to the kernel until there is a socket. 0 or a negative errno.
int xdp_redirect_open(xdp_redirect *r, unsigned interface);
int xdp_redirect_to(xdp_redirect *r, int socket); // frames of receive queue 0
void xdp_redirect_close(xdp_redirect *r);

#endif
