// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_ADMISSION_P4
#define WEIR_ADMISSION_P4

#include "headers.p4"

// Who may touch which slots: only what the controller installed, so a job cannot reach another's slots, nor
// one worker pass for another, nor anybody for the spine. The direct counter of `workers` is the worker's uplink.
//
//   table      who                                              may send
//   ───────────────────────────────────────────────────────────────────────────────────────
//   parents    a spine, to a rack's switch                      results; questions (REPEAT)
//   workers    a worker; with `rack`, a rack's switch           contributions; a rack: results, too
//
control Admission(in headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) uplink;

    action refuse() {
        meta.event = EVENT_DROP_NOT_ADMITTED;
    }

    // slot_base, slot_count: the job's slots; worker_bit: 1 << worker; all_workers: OR of the bits of all that
    // this switch waits for; group: the multicast group of their ports, never 0. rack: 1 when the worker is a
    // rack of workers, numbered among the racks; its packets say themselves whose lanes are in their sums.
    action admit(bit<32> slot_base, bit<16> slot_count, bit<32> worker_bit, bit<32> all_workers, bit<16> group,
                 bit<1> rack) {
        meta.slot_base = slot_base;
        meta.slot_count = slot_count;
        meta.worker_bit = worker_bit;
        meta.all_workers = all_workers;
        meta.group = group;
        meta.from_rack = rack == 1;
    }

    // The same of this rack's own workers, who get what the spine sends.
    action accept(bit<32> slot_base, bit<16> slot_count, bit<32> all_workers, bit<16> group) {
        meta.slot_base = slot_base;
        meta.slot_count = slot_count;
        meta.all_workers = all_workers;
        meta.group = group;
        meta.from_parent = true;
    }

    table parents {
        key = {
            standard_metadata.ingress_port: exact @name("port");
            hdr.weir.job: exact @name("job");
        }
        actions = { accept; @defaultonly NoAction; }
        const default_action = NoAction;
        size = PARENTS;
    }

    table workers {
        key = {
            standard_metadata.ingress_port: exact @name("port");
            hdr.weir.job: exact @name("job");
            hdr.weir.worker: exact @name("worker");
        }
        actions = { admit; @defaultonly refuse; }
        const default_action = refuse;
        counters = uplink;
        size = WORKERS;
    }

    apply {
        if (hdr.weir.kind != TYPE_CONTRIBUTION) {
            parents.apply();
        }
        if (!meta.from_parent) {
            workers.apply();
        }
        if (meta.event == EVENT_CONTRIBUTION) {
            // The second test keeps registers safe from an entry that promises slots which do not exist.
            if (hdr.weir.slot >= meta.slot_count || meta.slot_base + (bit<32>)hdr.weir.slot >= SLOTS) {
                meta.event = EVENT_DROP_SLOT_RANGE;
            } else if (!meta.from_parent && hdr.weir.kind != TYPE_CONTRIBUTION
                    && !(meta.from_rack && hdr.weir.kind == TYPE_RESULT)) {
                meta.event = EVENT_DROP_NOT_A_CONTRIBUTION;
            }
        }
    }
}

#endif
