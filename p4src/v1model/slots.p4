// SPDX-License-Identifier: Apache-2.0
//
// The slot protocol: what a packet means to the cell (slot, version) it is for.
//
//   contribution
//   cell holds            sender seen?   not complete after it    complete after it
//   ──────────────────────────────────────────────────────────────────────────────────────────
//   another job, or an                   add, first of the round  add, first of the round;
//   older round                                                   pass it on
//   this round            no             add                      add; pass it on
//   this round            yes            drop; of a switch: ask   pass it on once more
//                                        those that are missing
//   a newer round                        drop, nothing touched
//
// A round comes to its cell after the one but one before it. A packet of a later one changes nothing, or it could make all
// others of its slot stale for good. Should it be the cell that is behind, as that of a switch that has started anew and
// taken an old packet in, then other children are, or were, in that round: it begins when a second one sends a packet
// of it. Switches below are asked, for one that has its result sends nothing by itself.
//
// "Pass it on": at the root of the tree the sums are the result and go to all children, or once more to the one that
// repeated. Elsewhere they go up to the parent until its result has come, and is what goes to the children.
//
// All packets of a round must be of the same operation, so each that is added has its fingerprint compared with
// the first one's. A difference changes nothing in this table: it sets a mark (DISAGREE) that the cell keeps, that
// sums take up to the parent and results down again, and that costs them their lanes, which mean nothing. So
// every worker hears of it when all have been seen.
//
//   from the parent       cell holds this round, complete            anything else
//   ──────────────────────────────────────────────────────────────────────────────
//   result                keep it (once), pass it on to the children drop
//   result, its lanes     keep the own sums, pass it on            drop
//   elsewhere
//   question (REPEAT)     answer: the result, else the partial sums  drop
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
const bit<32> VERSIONS = 2;

#ifdef WIDE
#define IS_WIDE (hdr.weir.block_log2 == WIDE_BLOCK_LOG2 ? 8w1 : 8w0)
#endif

// Keeps the cell's stamp and masks, and tells Columns and Lanes what to do with its data.
control Slots(in headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(CELLS) owners; // job
    register<bit<32>>(CELLS) rounds;
    register<bit<32>>(CELLS) seens; // mask of children that took part in the round
    register<bit<32>>(CELLS) includeds; // mask of those whose lanes are in the sums
    register<bit<32>>(CELLS) aboves; // the parent's mask of its children, beside the parent's result
    register<bit<16>>(CELLS) counts; // of workers whose lanes were added
    // What only grows within a round: lane groups that hold data of it; magnitudes of what was added; PROTECTED,
    // CONGESTED, DISAGREE of it, TRIMMED of racks' sums, and FINAL. The highest byte is 1 in a round of wide packets.
    register<bit<32>>(CELLS) marks;
    register<bit<32>>(CELLS) checks; // fingerprint of the operation, as the round's first packet had it
    register<bit<32>>(CELLS) far_rounds; // the round of the last packet that was too far ahead
    register<bit<32>>(CELLS) far_senders; // mask of the children that packets of that round came from

    const bit<8> FINAL = 0x80; // the cell holds the parent's result

    bit<32> owner;
    bit<32> round;
    bit<32> seen;
    bool far = false; // the packet is of a round that no other child is known to be in
    bit<8> disagree; // DISAGREE when the packet is not of the cell's operation

    action load() {
        owners.read(owner, meta.cell);
        rounds.read(round, meta.cell);
        seens.read(seen, meta.cell);
        includeds.read(meta.included, meta.cell);
        counts.read(meta.count, meta.cell);
        bit<32> mark;
        marks.read(mark, meta.cell);
        meta.written = mark[23:16];
        meta.magnitudes = mark[15:8];
        meta.flags = mark[7:0];
#ifdef WIDE
        meta.wide = mark[31:24];
#endif
        checks.read(meta.check, meta.cell);
    }

    action forget() {
        seen = 0;
        meta.included = 0;
        meta.count = 0;
        meta.written = 0;
        meta.flags = 0;
        meta.magnitudes = 0;
        meta.check = hdr.weir.check;
#ifdef WIDE
        meta.wide = IS_WIDE;
#endif
        meta.first = true;
    }

    // Too far ahead: is another child in that round? A child that is alone needs none.
    action look_far() {
        bit<32> far_round;
        bit<32> senders;
        far_rounds.read(far_round, meta.cell);
        far_senders.read(senders, meta.cell);
        senders = meta.worker_bit | (far_round == hdr.weir.round ? senders : 0);
        far_rounds.write(meta.cell, hdr.weir.round);
        far_senders.write(meta.cell, senders);
        far = senders == meta.worker_bit && meta.all_workers != meta.worker_bit;
    }

    // Is the packet of the cell's operation, as far as this switch and those below it can tell?
    action compare() {
        disagree = (hdr.weir.flags & FLAG_DISAGREE) | (hdr.weir.check == meta.check ? 0 : FLAG_DISAGREE);
#ifdef WIDE
        disagree = disagree | (IS_WIDE == meta.wide ? 0 : FLAG_DISAGREE);
#endif
    }

    // Data of the cell. Congestion that the packet met is everybody's. Magnitude classes are kept in unary, so
    // that OR finds the greatest.
    action store() {
        meta.flags = meta.flags | disagree | (hdr.ipv4.ecn == CE ? FLAG_CONGESTED : 0)
            | (hdr.weir.flags & (hdr.weir.groups != 0 ? FLAG_PROTECTED | FLAG_CONGESTED
                : (meta.from_rack ? FLAG_TRIMMED | FLAG_CONGESTED : FLAG_CONGESTED)));
        meta.magnitudes = meta.magnitudes | (hdr.weir.groups != 0 ? (8w1 << (bit<8>)hdr.weir.magnitude) - 1 : 0);
        meta.adds = true;
        meta.written = hdr.weir.groups | meta.written;
        includeds.write(meta.cell, meta.included);
        counts.write(meta.cell, meta.count);
#ifdef WIDE
        marks.write(meta.cell, meta.wide ++ meta.written ++ meta.magnitudes ++ meta.flags);
#else
        marks.write(meta.cell, 8w0 ++ meta.written ++ meta.magnitudes ++ meta.flags);
#endif
    }

    // A packet without lanes is seen, but not included: there was nothing to add, or it was given up.
    action add() {
        meta.put = hdr.weir.groups & ~meta.written;
        meta.merge = hdr.weir.groups & meta.written;
        meta.included = meta.included
            | (hdr.weir.groups == 0 ? 0 : meta.worker_bit);
        meta.count = meta.count + (hdr.weir.groups == 0 ? 0 : (meta.from_rack ? hdr.weir.count : 1));
        seen = seen | meta.worker_bit;
        seens.write(meta.cell, seen);
        store();
    }

    // What another job left there tells nothing of this one's.
    action take_over() {
        far_senders.write(meta.cell, 0);
    }

    // The cell is this round's from now on.
    action begin() {
        owners.write(meta.cell, hdr.weir.job);
        rounds.write(meta.cell, hdr.weir.round);
        checks.write(meta.cell, meta.check);
    }

    // The parent's result takes the place of the own sums. Whose lanes are in it? If this switch's are, those of
    // the children whose were in its sums.
    action keep() {
        meta.first = true;
        meta.written = 0;
        meta.put = hdr.weir.groups;
        meta.included = hdr.weir.included & meta.own_bit == 0 ? 0 : meta.included;
        aboves.write(meta.cell, hdr.weir.included);
        meta.count = hdr.weir.count;
        meta.flags = FINAL | (meta.flags & FLAG_DISAGREE);
        meta.magnitudes = 0;
        store();
    }

    // Its lanes went to the rack of their audience. This one keeps its sums: a new spine, that has to sum once more
    // for the audience, may ask for them. (`count` stays theirs, too: who is not of the audience has no use for it.)
    action keep_sums() {
        meta.first = true;
        meta.flags = meta.flags | FINAL | FLAG_ELSEWHERE;
        store();
    }

    // The packet turns into what the cell holds: lanes that only others sent are added to it, and those that a
    // repeated packet carries but the round never took are cut off.
    action complete() {
        meta.complete = true;
        meta.fetch = meta.written;
        meta.discard = hdr.weir.groups & ~meta.written;
        meta.final = meta.flags & FINAL != 0;
    }

    // What the rack's own workers get of a result whose lanes are elsewhere.
    action withhold() {
        meta.written = 0;
        meta.fetch = 0;
        meta.discard = hdr.weir.groups;
    }

    // Bytes of the lanes that a result of this cell would hold.
    action measure(out bit<16> bytes) {
        bytes = ((bit<16>)meta.written[0:0] + (bit<16>)meta.written[1:1] + (bit<16>)meta.written[2:2]
            + (bit<16>)meta.written[3:3] + (bit<16>)meta.written[4:4] + (bit<16>)meta.written[5:5]
            + (bit<16>)meta.written[6:6] + (bit<16>)meta.written[7:7]) << 7;
#ifdef WIDE
        bytes = bytes << (meta.wide == 1 ? 8w2 : 8w0);
#endif
    }

    apply {
        meta.cell = ((meta.slot_base + (bit<32>)hdr.weir.slot) << 1) | (hdr.weir.round & 1);
        load();
        bit<32> ahead = hdr.weir.round - round;
        if (owner == hdr.weir.job && ahead > VERSIONS && ahead < HALF_OF_ROUNDS && !meta.from_parent
                && hdr.weir.kind == TYPE_CONTRIBUTION) {
            look_far();
        }
        if (hdr.weir.kind == TYPE_RESULT && meta.from_rack) {
            meta.relay = true;
            meta.skip = meta.worker_bit;
            meta.event = EVENT_RESULT_RELAYED;
        } else if (owner == hdr.weir.job && ahead >= HALF_OF_ROUNDS) {
            meta.event = EVENT_DROP_STALE_ROUND;
        } else if (far) {
            meta.event = EVENT_DROP_FAR_ROUND;
            meta.ask = meta.from_rack && hdr.weir.flags & FLAG_ANSWER == 0;
            meta.skip = meta.worker_bit;
        } else {
            if (owner != hdr.weir.job || ahead != 0) {
                forget();
            }
            if (meta.from_parent) {
                if (seen != meta.all_workers) {
                    meta.event = EVENT_DROP_STALE_ROUND;
                } else if (hdr.weir.kind == TYPE_RESULT && meta.flags & FINAL != 0) {
                    meta.event = EVENT_DROP_STALE_ROUND; // once more
                } else if (hdr.weir.kind == TYPE_RESULT && hdr.weir.flags & FLAG_TRIMMED == 0) {
                    compare();
                    if (hdr.weir.flags & FLAG_ELSEWHERE != 0) {
                        keep_sums();
                    } else {
                        keep();
                    }
                    meta.event = EVENT_RESULT_STORED;
                    complete();
                } else {
                    // a question, or a result without its lanes, which is asked for by repeating the sums
                    complete();
                    aboves.read(meta.above, meta.cell);
                    meta.final = meta.final && meta.flags & FLAG_ELSEWHERE == 0;
                    meta.event = meta.final ? EVENT_RESULT_REPEATED : EVENT_PARTIAL_REPEATED;
                }
            } else if (seen & meta.worker_bit == 0) {
                // Without lanes that nobody gave up the packet does not count. Nor may one without lanes be the
                // last where it could not grow into the result: nobody would get that.
                compare();
                bit<16> bytes = 0;
                if (hdr.weir.groups == 0 && (meta.flags | disagree) & FLAG_DISAGREE == 0
                        && seen | meta.worker_bit == meta.all_workers) {
                    measure(bytes);
                }
                if (hdr.weir.flags & (FLAG_TRIMMED | FLAG_PROTECTED) == FLAG_TRIMMED | FLAG_PROTECTED
                        || bytes > meta.headroom) {
                    meta.bounce = true;
                } else {
                    if (meta.first) {
                        if (owner != hdr.weir.job) {
                            take_over();
                        }
                        begin();
                    }
                    if (disagree & ~meta.flags != 0) {
                        meta.event = EVENT_DISAGREEMENT;
                    }
                    add();
                    if (seen == meta.all_workers) {
                        complete();
                    }
                }
            } else if (seen == meta.all_workers) {
                complete();
            } else {
                meta.event = EVENT_DUPLICATE_PENDING;
                meta.ask = meta.from_rack && hdr.weir.flags & FLAG_ANSWER == 0;
                meta.skip = seen;
            }
            if (meta.final && meta.flags & FLAG_ELSEWHERE != 0) {
                withhold();
            }
        }
    }
}

#endif
