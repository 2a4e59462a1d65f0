// SPDX-License-Identifier: Apache-2.0
//
// The slot protocol: what a contribution means to the cell (slot, version) it is for.
//
//   cell holds            sender seen?   not complete after it    complete after it
//   ─────────────────────────────────────────────────────────────────────────────────
//   another job, or an                   add, first of the round  add, first of the round;
//   older round                                                   multicast the result
//   this round            no             add                      add; multicast the result
//   this round            yes            drop                     send the stored result back
//   a newer round                        drop, nothing touched
//
// Rounds compare by serial arithmetic (RFC 1982). A round that is newer forgets what the cell held, so
// nothing is ever zeroed: the first writer of a lane group or a column overwrites.
// A job whose id is not the owner's counts as newer, so that finished jobs never haunt their slots.
// That takes a register of its own here; where the driver can clear registers (Tofino's can), the controller
// does so when it hands slots to a new job, and round and seen share one paired register that resets and
// accumulates in a single step.
#ifndef WEIR_SLOTS_P4
#define WEIR_SLOTS_P4

#include "headers.p4"

const bit<32> HALF_OF_ROUNDS = 0x80000000;

// Keeps the cell's stamp and masks, and tells Columns and Lanes what to do with its data.
control Slots(in headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(CELLS) owners; // job
    register<bit<32>>(CELLS) rounds;
    register<bit<32>>(CELLS) seens; // mask of workers that took part in the round
    register<bit<32>>(CELLS) includeds; // mask of those whose lanes were added
    register<bit<8>>(CELLS) writtens; // lane groups that hold data of this round

    bit<32> owner;
    bit<32> round;
    bit<32> seen;

    action load() {
        owners.read(owner, meta.cell);
        rounds.read(round, meta.cell);
        seens.read(seen, meta.cell);
        includeds.read(meta.included, meta.cell);
        writtens.read(meta.written, meta.cell);
    }

    action forget() {
        seen = 0;
        meta.included = 0;
        meta.written = 0;
        meta.first = true;
    }

    // A header-only packet is seen, but not included: there was nothing to add.
    action add() {
        meta.adds = true;
        meta.put = hdr.weir.groups & ~meta.written;
        meta.merge = hdr.weir.groups & meta.written;
        meta.written = hdr.weir.groups | meta.written;
        meta.included = meta.included | (hdr.weir.groups != 0 ? meta.worker_bit : 0);
        seen = seen | meta.worker_bit;
        owners.write(meta.cell, hdr.weir.job);
        rounds.write(meta.cell, hdr.weir.round);
        seens.write(meta.cell, seen);
        includeds.write(meta.cell, meta.included);
        writtens.write(meta.cell, meta.written);
    }

    // The packet turns into the result: lanes that only others sent are added to it, and those that a
    // repeated packet carries but the round never took are cut off.
    action complete() {
        meta.complete = true;
        meta.fetch = meta.written;
        meta.discard = hdr.weir.groups & ~meta.written;
    }

    apply {
        meta.cell = ((meta.slot_base + (bit<32>)hdr.weir.slot) << 1) | (hdr.weir.round & 1);
        load();
        bit<32> ahead = hdr.weir.round - round;
        if (owner == hdr.weir.job && ahead >= HALF_OF_ROUNDS) {
            meta.event = EVENT_DROP_STALE_ROUND;
        } else {
            if (owner != hdr.weir.job || ahead != 0) {
                forget();
            }
            if (seen & meta.worker_bit == 0) {
                add();
                meta.event = EVENT_CONTRIBUTION;
            } else {
                meta.event = EVENT_DUPLICATE_PENDING;
            }
            if (seen == meta.all_workers) {
                complete();
            }
        }
    }
}

#endif
