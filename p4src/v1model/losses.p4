// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_LOSSES_P4
#define WEIR_LOSSES_P4

#include "headers.p4"

// The drop simulator: loses packets on purpose, by port and traffic class, so that loss can be tested on every
// target alike. Once at ingress, for what comes in by a port, and once at egress, for what leaves by it.
control Losses(in headers_t hdr, in bit<9> port, out bool lost) {
    // probability: of 2^32.
    action lose(bit<32> probability) {
        bit<32> draw;
        random(draw, 32w0, 32w0xFFFFFFFF);
        lost = draw < probability;
    }

    table faults {
        key = {
            port: exact @name("port");
            hdr.ipv4.dscp: ternary @name("dscp"); // 0 of what is not IPv4
        }
        actions = { lose; @defaultonly NoAction; }
        const default_action = NoAction;
        size = FAULTS;
    }

    apply {
        lost = false;
        faults.apply();
    }
}

#endif
