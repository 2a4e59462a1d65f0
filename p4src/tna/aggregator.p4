// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TNA_AGGREGATOR_P4
#define WEIR_TNA_AGGREGATOR_P4

#include "headers.p4"

// Is this packet for the aggregation function of this switch? Sets meta.aggregate. Weir's packets to any other
// address are ordinary traffic: another switch aggregates them.
control Aggregator(inout headers_t hdr, inout metadata_t meta) {
    action aggregate() {
        meta.aggregate = 1;
    }

    table addresses {
        key = { hdr.ipv4.dst: exact @name("address"); }
        actions = { aggregate; @defaultonly NoAction; }
        const default_action = NoAction;
        size = AGGREGATION_ADDRESSES;
    }

    apply {
        addresses.apply();
    }
}

// Refuses what is no well-formed slot packet of one column and at most two lane groups. Every field is matched at
// once: a row for each kind of packet that there is, and all else is malformed.
control Validation(inout headers_t hdr, inout metadata_t meta) {
    action add() {
        meta.merge_step = STEP_ADD;
        meta.format_known = 1;
    }

    action greatest_or_either() {
        meta.merge_step = STEP_MAX_OR;
        meta.format_known = 1;
    }

    // Lengths: IPv4 20, UDP 8, Weir 28, column 8, lanes 128 or 256.
#define WITH_BOTH 3, 320, 300
#define WITH_LANES 1, 192, 172
#define WITHOUT 0, 64, 44

    table formats {
        key = {
            hdr.column.isValid(): ternary;
            hdr.weir.op: ternary;
            hdr.weir.groups: ternary;
            hdr.ipv4.total_len: ternary;
            hdr.udp.length: ternary;
        }
        actions = { add; greatest_or_either; NoAction; }
        const entries = {
            (true, OP_ADD, WITH_BOTH): add();
            (true, OP_ADD, WITH_LANES): add();
            (true, OP_ADD, WITHOUT): add();
            (true, OP_MAX, WITH_LANES): greatest_or_either();
            (true, OP_MAX, WITHOUT): greatest_or_either();
            (true, OP_OR, WITH_LANES): greatest_or_either();
            (true, OP_OR, WITHOUT): greatest_or_either();
        }
        const default_action = NoAction;
        size = 7;
    }

    action malformed() {
        meta.fields_known = 0;
    }

    action known() {
        meta.fields_known = 1;
    }

    action probe() {
        meta.probe = 1;
        meta.fields_known = 1;
    }

    // The rest of the header: flags, classes, kind, number of the worker.
    table fields {
        key = {
            hdr.weir.flags: ternary;
            hdr.weir.groups: ternary;
            hdr.weir.layer: ternary;
            hdr.weir.magnitude: ternary;
            hdr.weir.kind: ternary;
            hdr.weir.worker: ternary;
            meta.bad_checksum: ternary;
        }
        actions = { known; probe; malformed; }
        const entries = {
            (_, _, _, _, _, _, 1): malformed();
            (0x40 &&& 0x40, _, _, _, _, _, _): malformed(); // no such flag
            (0x80 &&& 0x80, _, _, _, _, _, _): malformed();
            (FLAG_TRIMMED &&& FLAG_TRIMMED, 1 &&& 1, _, _, _, _, _): malformed();
            (_, _, 4 &&& 4, _, _, _, _): malformed(); // no such layer class
            (_, _, 8 &&& 8, _, _, _, _): malformed();
            (_, _, _, 3 &&& 3, _, _, _): malformed(); // no such magnitude class
            (_, _, _, 4 &&& 4, _, _, _): malformed();
            (_, _, _, 8 &&& 8, _, _, _): malformed();
            (_, _, _, _, _, 0x20 &&& 0x20, _): malformed(); // no such child
            (_, _, _, _, _, 0x40 &&& 0x40, _): malformed();
            (_, _, _, _, _, 0x80 &&& 0x80, _): malformed();
            ((FLAG_TRIMMED | FLAG_PROTECTED) &&& (FLAG_TRIMMED | FLAG_PROTECTED), _, _, _, TYPE_CONTRIBUTION, _, _): probe();
            (_, _, _, _, TYPE_CONTRIBUTION, _, _): known();
            (FLAG_TRIMMED &&& FLAG_TRIMMED, _, _, _, TYPE_RESULT, _, _): probe();
            (_, _, _, _, TYPE_RESULT, _, _): known();
            (_, _, _, _, TYPE_REPEAT, _, _): probe();
        }
        const default_action = malformed;
        size = 17;
    }

    apply {
        formats.apply();
        fields.apply();
    }
}

#endif
