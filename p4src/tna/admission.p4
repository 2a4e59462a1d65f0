// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TNA_ADMISSION_P4
#define WEIR_TNA_ADMISSION_P4

#include "headers.p4"

// Who may touch which slots: only what the controller installed. All tables are looked up at once, in the first
// stage; what they say together is judged in the second.
//
//   table      who                                              may send
//   ───────────────────────────────────────────────────────────────────────────────────────
//   parents    a switch above this one                          results; questions (REPEAT)
//   workers    a worker; with `rack`, a switch below            contributions; a switch: results, too
//   ranges     (job and slot) where the job's slots lie, and how many lanes its results have
//
control Admission(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md) {
    DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) uplink;

    // worker_bit: 1 << worker; others: OR of the bits of all other children that this switch waits for, alone: 1 if
    // there is none; group: the multicast group of all of them. rack: 1 when the child is a switch, whose packets say
    // themselves how many workers' lanes are in their sums.
    action admit(bit<32> worker_bit, bit<32> others, bit<1> alone, bit<16> group, bit<1> rack) {
        uplink.count();
        meta.worker_bit = worker_bit;
        meta.others = others;
        meta.alone = alone;
        meta.from_rack = rack;
        meta.admitted = 1;
        meta.group = group;
    }

    table workers {
        key = {
            ig_intr_md.ingress_port: exact @name("port");
            hdr.weir.job: exact @name("job");
            hdr.weir.worker: exact @name("worker");
        }
        actions = { admit; @defaultonly NoAction; }
        const default_action = NoAction;
        counters = uplink;
        size = WORKERS;
    }

    // The same of this switch's own children, who get what the parent sends. own_bit: this switch's in the
    // parent's masks.
    action accept(bit<32> own_bit, bit<16> group) {
        meta.worker_bit = own_bit;
        meta.from_parent = 1;
        meta.admitted = 1;
        meta.group = group;
    }

    table parents {
        key = {
            ig_intr_md.ingress_port: exact @name("port");
            hdr.weir.job: exact @name("job");
            hdr.weir.kind: exact @name("kind"); // one row for results, one for questions
        }
        actions = { accept; @defaultonly NoAction; }
        const default_action = NoAction;
        size = PARENTS;
    }

    // A job has 2^n slots, at a multiple of 2^n. base: the first of them. groups: lane groups of a result that has
    // lanes, 1 or 3; packets with more are not the job's.
    action place(bit<16> base, bit<8> groups) {
        meta.base = base;
        meta.groups = groups;
        meta.in_range = 1;
    }

    table ranges {
        key = {
            hdr.weir.job: ternary @name("job");
            hdr.weir.slot: ternary @name("slot");
            hdr.weir.op: ternary @name("op");
            hdr.weir.groups[1:1]: ternary @name("upper");
        }
        actions = { place; @defaultonly NoAction; }
        const default_action = NoAction;
        size = RANGES;
    }

    apply {
        ranges.apply();
        switch (parents.apply().action_run) {
            NoAction: { workers.apply(); }
        }
    }
}

#endif
