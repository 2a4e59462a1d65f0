// SPDX-License-Identifier: Apache-2.0
// A filter on the five-tuple: prefixes, a protocol, ranges of ports.
#include "ipv4.p4"

control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {
    action drop() {
        mark_to_drop(sm);
    }
    action forward(bit<9> port) {
        sm.egress_spec = port;
    }
    table acl {
        key = {
            hdr.ipv4.src: ternary;
            hdr.ipv4.dst: ternary;
            hdr.ipv4.protocol: ternary;
            hdr.ports.src: range;
            hdr.ports.dst: range;
        }
        actions = { forward; drop; }
        default_action = drop();
        size = 1000000;
    }
    apply {
        if (hdr.ports.isValid()) {
            acl.apply();
        } else {
            drop();
        }
    }
}

V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
