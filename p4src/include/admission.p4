// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_ADMISSION_P4
#define WEIR_ADMISSION_P4

#include "headers.p4"

// Who may touch which slots: only what the controller installed, so a job cannot reach another's slots, nor
// one worker pass for another. The direct counter is the worker's uplink.
control Admission(in headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) uplink;

    action refuse() {
        meta.event = EVENT_DROP_NOT_ADMITTED;
    }

    // slot_base, slot_count: the job's slots; worker_bit: 1 << worker; all_workers: OR of the job's worker
    // bits; group: the multicast group of their ports, never 0.
    action admit(bit<32> slot_base, bit<16> slot_count, bit<32> worker_bit, bit<32> all_workers, bit<16> group) {
        meta.slot_base = slot_base;
        meta.slot_count = slot_count;
        meta.worker_bit = worker_bit;
        meta.all_workers = all_workers;
        meta.group = group;
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
        if (workers.apply().hit) {
            // The second test keeps registers safe from an entry that promises slots which do not exist.
            if (hdr.weir.slot >= meta.slot_count || meta.slot_base + (bit<32>)hdr.weir.slot >= SLOTS) {
                meta.event = EVENT_DROP_SLOT_RANGE;
            }
        }
    }
}

#endif
