// SPDX-License-Identifier: Apache-2.0
// Forwarding by exact five-tuple.
#include "ipv4.p4"

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action drop() {
        mark_to_drop(sm);
    }
    action forward(bit<9> port) {
        sm.egress_spec = port;
    }
    table flows {
        key = {
            hdr.ipv4.src: exact;
            hdr.ipv4.dst: exact;
            hdr.ipv4.protocol: exact;
            hdr.ports.src: exact;
            hdr.ports.dst: exact;
        }
        actions = { forward; drop; }
        default_action = drop();
        size = 1000000;
    }
    apply {
        if (hdr.ports.isValid()) {
            flows.apply();
        } else {
            drop();
        }
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
