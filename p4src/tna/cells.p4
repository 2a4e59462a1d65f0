// SPDX-License-Identifier: Apache-2.0
//
// The data of a cell, beside its stamp. Each register is a stateful ALU with at most four programs; which of them
// runs was decided before, by Slots. All is read and written in the same pass.
#ifndef WEIR_TNA_CELLS_P4
#define WEIR_TNA_CELLS_P4

#include "headers.p4"

// A cell's tally is one word with four fields, all of them sums, so that one addition does for all: workers whose
// lanes are in the cell; packets that met congestion (six bits: at most 32 children); packets of another operation;
// and, from the parent's result on, FINAL and ELSEWHERE.
const bit<16> ADDS_CONGESTED = 1 << 0;
const bit<16> ADDS_DISAGREE = 1 << 6;
const bit<16> ADDS_FINAL = 1 << 12;
const bit<16> ADDS_ELSEWHERE = 1 << 13;
const bit<32> TALLY_FINAL = 1 << 28;

// What a packet adds to the tally, and to the mask of those who are included.
const bit<8> NO_FLAG = 0;

control Weighing(inout headers_t hdr, inout metadata_t meta) {
    action count_lanes(bit<16> count) {
        meta.adds_count = count;
        meta.included = meta.worker_bit;
    }

    action count_rack() {
        meta.adds_count = hdr.weir.count;
        meta.included = meta.worker_bit;
    }

    action count_parent() {
        meta.adds_count = hdr.weir.count;
        meta.included = meta.worker_bit & hdr.weir.included;
    }

    table counts {
        key = {
            hdr.weir.groups: ternary;
            meta.from_rack: ternary;
            meta.from_parent: ternary;
        }
        actions = { count_lanes; count_rack; count_parent; NoAction; }
        const entries = {
            (1 &&& 1, 0, 0): count_lanes(1);
            (1 &&& 1, 1, 0): count_rack();
            (1 &&& 1, _, 1): count_parent();
        }
        const default_action = NoAction;
        size = 3;
    }

    action mark(bit<16> marks) {
        meta.adds_marks = marks;
    }

#define CONGESTION(FLAG, PARENT, LIKE, MARKS) \
    (CE, (FLAG) &&& (FLAG), PARENT, LIKE): mark((MARKS) | ADDS_CONGESTED); \
    (_, ((FLAG) | FLAG_CONGESTED) &&& ((FLAG) | FLAG_CONGESTED), PARENT, LIKE): mark((MARKS) | ADDS_CONGESTED); \
    (_, (FLAG) &&& (FLAG), PARENT, LIKE): mark(MARKS);

    table marks {
        key = {
            hdr.ipv4.ecn: ternary;
            hdr.weir.flags: ternary;
            meta.from_parent: ternary;
            meta.likeness: ternary;
        }
        actions = { mark; }
        const entries = {
            CONGESTION(FLAG_DISAGREE, 0, _, ADDS_DISAGREE)
            CONGESTION(NO_FLAG, 0, UNLIKE, ADDS_DISAGREE)
            CONGESTION(NO_FLAG, 0, _, 0)
            CONGESTION(FLAG_DISAGREE | FLAG_ELSEWHERE, 1, _, ADDS_FINAL | ADDS_ELSEWHERE | ADDS_DISAGREE)
            CONGESTION(FLAG_DISAGREE, 1, _, ADDS_FINAL | ADDS_DISAGREE)
            CONGESTION(FLAG_ELSEWHERE, 1, UNLIKE, ADDS_FINAL | ADDS_ELSEWHERE | ADDS_DISAGREE)
            CONGESTION(FLAG_ELSEWHERE, 1, _, ADDS_FINAL | ADDS_ELSEWHERE)
            CONGESTION(NO_FLAG, 1, UNLIKE, ADDS_FINAL | ADDS_DISAGREE)
            CONGESTION(NO_FLAG, 1, _, ADDS_FINAL)
        }
        size = 27;
    }

    apply {
        counts.apply();
        marks.apply();
    }
}

control Tally(inout headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, bit<16>>(CELLS) tallies;

    RegisterAction<bit<32>, bit<16>, bit<32>>(tallies) put_tally = {
        void apply(inout bit<32> tally, out bit<32> now) {
            tally = (meta.adds_marks ++ meta.adds_count);
            now = tally;
        }
    };

    // What the parent said last, it may say again: nothing is added to what is final.
    RegisterAction<bit<32>, bit<16>, bit<32>>(tallies) add_tally = {
        void apply(inout bit<32> tally, out bit<32> now) {
            if (tally < TALLY_FINAL) {
                tally = tally + (meta.adds_marks ++ meta.adds_count);
            }
            now = tally;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(tallies) read_tally = {
        void apply(inout bit<32> tally, out bit<32> now) {
            now = tally;
        }
    };

    action put() {
        meta.tally = put_tally.execute(meta.cell);
    }

    action add() {
        meta.tally = add_tally.execute(meta.cell);
    }

    action read() {
        meta.tally = read_tally.execute(meta.cell);
    }

    table tally {
        key = {
            meta.step: ternary;
            meta.act: ternary;
        }
        actions = { put; add; read; NoAction; }
        const entries = {
            (STEP_PUT, _): put();
            (STEP_ADD, _): add();
            (STEP_MAX_OR, _): add();
            (STEP_NONE, ACT_KEEPS): add(); // its lanes are elsewhere: the cell keeps its own
            (STEP_READ, _): read();
            (STEP_UPPER, _): read();
        }
        const default_action = NoAction;
        size = 6;
    }

    apply {
        tally.apply();
    }
}

// Whose lanes are in the sums. Once the parent's result is there: those of the children whose were in this switch's
// sums, if these are in the parent's.
control Included(inout headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, bit<16>>(CELLS) includeds;

    RegisterAction<bit<32>, bit<16>, bit<32>>(includeds) put_included = {
        void apply(inout bit<32> mask, out bit<32> now) {
            mask = meta.included;
            now = mask;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(includeds) merge_included = {
        void apply(inout bit<32> mask, out bit<32> now) {
            mask = mask | meta.included;
            now = mask;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(includeds) keep_included = {
        void apply(inout bit<32> mask, out bit<32> now) {
            if (meta.included == 0) {
                mask = 0;
            }
            now = mask;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(includeds) read_included = {
        void apply(inout bit<32> mask, out bit<32> now) {
            now = mask;
        }
    };

    action put() {
        hdr.weir.included = put_included.execute(meta.cell);
    }

    action merge() {
        hdr.weir.included = merge_included.execute(meta.cell);
    }

    action keep() {
        hdr.weir.included = keep_included.execute(meta.cell);
    }

    action read() {
        hdr.weir.included = read_included.execute(meta.cell);
    }

    table included {
        key = {
            meta.step: ternary;
            meta.act: ternary;
        }
        actions = { put; merge; keep; read; NoAction; }
        const entries = {
            (STEP_PUT, ACT_KEEPS): keep();
            (STEP_PUT, _): put();
            (STEP_ADD, _): merge();
            (STEP_MAX_OR, _): merge();
            (STEP_READ, _): read();
            (STEP_NONE, ACT_KEEPS): read();
        }
        const default_action = NoAction;
        size = 6;
    }

    apply {
        included.apply();
    }
}

// The parent's mask of its children, beside its result: a new spine may ask for both.
control Above(inout headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, bit<16>>(CELLS) aboves;

    RegisterAction<bit<32>, bit<16>, bit<32>>(aboves) put_above = {
        void apply(inout bit<32> mask) {
            mask = hdr.weir.included;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(aboves) read_above = {
        void apply(inout bit<32> mask, out bit<32> now) {
            now = mask;
        }
    };

    action put() {
        put_above.execute(meta.cell);
    }

    action read() {
        meta.above = read_above.execute(meta.cell);
    }

    table above {
        key = { meta.act: ternary; }
        actions = { put; read; NoAction; }
        const entries = {
            ACT_KEEPS: put();
            ACT_ASKED: read();
        }
        const default_action = NoAction;
        size = 2;
    }

    apply {
        above.apply();
    }
}

// The minimum of the children's next pointers, which is the block that the next round requests. NO_BLOCK is the
// greatest number, so "nobody has more" needs no case of its own.
control Column(inout headers_t hdr, inout metadata_t meta) {
    Register<bit<32>, bit<16>>(CELLS) nexts;

    RegisterAction<bit<32>, bit<16>, bit<32>>(nexts) put_next = {
        void apply(inout bit<32> next, out bit<32> now) {
            next = hdr.column.next;
            now = next;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(nexts) merge_next = {
        void apply(inout bit<32> next, out bit<32> now) {
            next = min(next, hdr.column.next);
            now = next;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<32>>(nexts) read_next = {
        void apply(inout bit<32> next, out bit<32> now) {
            now = next;
        }
    };

    action put() {
        hdr.column.next = put_next.execute(meta.cell);
    }

    action merge() {
        hdr.column.next = merge_next.execute(meta.cell);
    }

    action read() {
        hdr.column.next = read_next.execute(meta.cell);
    }

    table column {
        key = {
            meta.step: ternary;
            meta.act: ternary;
        }
        actions = { put; merge; read; NoAction; }
        const entries = {
            (_, ACT_KEEPS): put();
            (STEP_PUT, _): put();
            (STEP_ADD, _): merge();
            (STEP_MAX_OR, _): merge();
            (STEP_READ, _): read();
        }
        const default_action = NoAction;
        size = 5;
    }

    apply {
        column.apply();
    }
}

struct pair_t {
    bit<32> lower;
    bit<32> upper;
}

// Two lanes, of both lane groups of a packet. Lanes are unsigned and 0 is the identity of every operator: a packet
// without lanes is one with zeros. An ALU takes two words of a packet, has four programs and says one word: so the
// upper lanes of a sum leave in a second pass, and MAX and OR, which have no upper lanes, share a program that
// finds there which of the two it is (CHOOSES_OR). With zeros in both that program changes nothing, and so reads.
control Lane(inout bit<32> lane, inout bit<32> upper, in metadata_t meta) {
    Register<pair_t, bit<16>>(CELLS) lanes;

    RegisterAction<pair_t, bit<16>, bit<32>>(lanes) put_lane = {
        void apply(inout pair_t stored, out bit<32> now) {
            stored.lower = lane;
            stored.upper = upper;
            now = stored.lower;
        }
    };

    RegisterAction<pair_t, bit<16>, bit<32>>(lanes) add_lane = {
        void apply(inout pair_t stored, out bit<32> now) {
            stored.lower = stored.lower + lane;
            stored.upper = stored.upper + upper;
            now = stored.lower;
        }
    };

    RegisterAction<pair_t, bit<16>, bit<32>>(lanes) max_or_lane = {
        void apply(inout pair_t stored, out bit<32> now) {
            if (upper == CHOOSES_OR) {
                stored.lower = stored.lower | lane;
            } else {
                stored.lower = max(stored.lower, lane);
            }
            now = stored.lower;
        }
    };

    RegisterAction<pair_t, bit<16>, bit<32>>(lanes) read_upper = {
        void apply(inout pair_t stored, out bit<32> now) {
            now = stored.upper;
        }
    };

    action put() {
        lane = put_lane.execute(meta.cell);
    }

    action add() {
        lane = add_lane.execute(meta.cell);
    }

    action max_or() {
        lane = max_or_lane.execute(meta.cell);
    }

    action take_upper() {
        upper = read_upper.execute(meta.cell);
    }

    table lane_of_cell {
        key = { meta.step: ternary; }
        actions = { put; add; max_or; take_upper; NoAction; }
        const entries = {
            STEP_PUT: put();
            STEP_ADD: add();
            STEP_MAX_OR: max_or();
            STEP_READ: max_or();
            STEP_UPPER: take_upper();
        }
        const default_action = NoAction;
        size = 5;
    }

    apply {
        lane_of_cell.apply();
    }
}

#endif
