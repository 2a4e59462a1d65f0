// SPDX-License-Identifier: Apache-2.0
//
// The slot protocol: docs/internals/protocol.md. What a contribution does to the cell of its slot and round:
//
//   its round is          its worker missing       its worker seen, round    its worker seen, round
//                                                  not complete              complete
//   ──────────────────────────────────────────────────────────────────────────────────────────────
//   older than the cell's                          drop, nothing touched
//   the cell's            add; the last completes  drop; of a switch: ask    answer
//   newer                 forget the cell, add
//
// A stateful ALU reads, compares and writes one entry of one register, and says one word. So the stamp is not read
// first and judged later: every register that depends on it holds a copy beside its own word, compares it with
// the packet's by itself, and starts anew with a newer round. `seen` keeps who is *missing*: a new round sets all
// others, every further packet takes its sender out by an AND with the others, and "complete" is zero. What
// comes out is matched at once, in one ternary table, which is the table above.
//
// Rounds are compared as unsigned numbers: an ALU's comparison does not wrap. A job must not live longer than 2^32
// rounds of one slot. Registers are cleared by the controller when slots get a new job.
#ifndef WEIR_TNA_SLOTS_P4
#define WEIR_TNA_SLOTS_P4

#include "headers.p4"

struct seen_t {
    bit<32> round;
    bit<32> missing;
}

struct check_t {
    bit<32> round;
    bit<32> check;
}

// What a predicate says: one bit for each outcome of two comparisons.
const bit<8> NEWER = 2;
const bit<8> EQUAL = 4; // neither: stale
const bit<8> UNLIKE = 4; // not newer, and of another operation

#define EACH_WORKER(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15) \
    DO(16) DO(17) DO(18) DO(19) DO(20) DO(21) DO(22) DO(23) DO(24) DO(25) DO(26) DO(27) DO(28) DO(29) DO(30) \
    DO(31)

control Slots(inout headers_t hdr, inout metadata_t meta) {
    Hash<bit<16>>(HashAlgorithm_t.XOR16) place_of_stamp;
    Hash<bit<16>>(HashAlgorithm_t.XOR16) place;
    Register<seen_t, bit<16>>(CELLS) seen;
    Register<bit<32>, bit<16>>(CELLS) rounds;
    Register<check_t, bit<16>>(CELLS) checks; // fingerprint of the operation, as the round's first packet had it
    Register<check_t, bit<16>>(CELLS) names; // the same

    // The job's range is a power of two at a multiple of it, so that base and slot share no bit, and the index is
    // a matter of the hash unit: no stage for an addition. The version is the uppermost bit.
#define CELL { meta.base, hdr.weir.slot, 2w0 ++ hdr.weir.round[0:0] ++ 13w0 }

    RegisterAction<seen_t, bit<16>, bit<32>>(seen) arrive_seen = {
        void apply(inout seen_t cell, out bit<32> missing) {
            missing = cell.missing;
            if (hdr.weir.round > cell.round) {
                cell.round = hdr.weir.round;
                cell.missing = meta.others;
            } else if (hdr.weir.round == cell.round) {
                cell.missing = cell.missing & meta.others;
            }
        }
    };

    RegisterAction<seen_t, bit<16>, bit<32>>(seen) look_seen = {
        void apply(inout seen_t cell, out bit<32> missing) {
            missing = cell.missing;
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<8>>(rounds) arrive_round = {
        void apply(inout bit<32> round, out bit<8> relation) {
            relation = this.predicate(hdr.weir.round > round, hdr.weir.round == round);
            if (hdr.weir.round > round) {
                round = hdr.weir.round;
            }
        }
    };

    RegisterAction<bit<32>, bit<16>, bit<8>>(rounds) look_round = {
        void apply(inout bit<32> round, out bit<8> relation) {
            relation = this.predicate(hdr.weir.round > round, hdr.weir.round == round);
        }
    };

    RegisterAction<check_t, bit<16>, bit<8>>(checks) arrive_check = {
        void apply(inout check_t cell, out bit<8> likeness) {
            likeness = this.predicate(hdr.weir.round > cell.round, hdr.weir.check != cell.check);
            if (hdr.weir.round > cell.round) {
                cell.round = hdr.weir.round;
                cell.check = hdr.weir.check;
            }
        }
    };

    RegisterAction<check_t, bit<16>, bit<8>>(checks) look_check = {
        void apply(inout check_t cell, out bit<8> likeness) {
            likeness = this.predicate(hdr.weir.round > cell.round, hdr.weir.check != cell.check);
        }
    };

    // One register says whether they are alike, another what the cell's is: an ALU has one word to say.
    RegisterAction<check_t, bit<16>, bit<32>>(names) arrive_name = {
        void apply(inout check_t cell, out bit<32> check) {
            if (hdr.weir.round > cell.round) {
                cell.round = hdr.weir.round;
                cell.check = hdr.weir.check;
            }
            check = cell.check;
        }
    };

    RegisterAction<check_t, bit<16>, bit<32>>(names) look_name = {
        void apply(inout check_t cell, out bit<32> check) {
            check = cell.check;
        }
    };

    action arrive_at_seen() {
        meta.missing = arrive_seen.execute(place_of_stamp.get(CELL));
    }

    action look_at_seen() {
        meta.missing = look_seen.execute(place_of_stamp.get(CELL));
    }

    action arrive_at_round() {
        meta.relation = arrive_round.execute(place_of_stamp.get(CELL));
    }

    action look_at_round() {
        meta.relation = look_round.execute(place_of_stamp.get(CELL));
    }

    action arrive_at_check() {
        meta.likeness = arrive_check.execute(place_of_stamp.get(CELL));
    }

    action look_at_check() {
        meta.likeness = look_check.execute(place_of_stamp.get(CELL));
    }

    action arrive_at_name() {
        meta.check = arrive_name.execute(place_of_stamp.get(CELL));
    }

    action look_at_name() {
        meta.check = look_name.execute(place_of_stamp.get(CELL));
    }

    action locate() {
        meta.cell = place.get(CELL);
    }

    action put(bit<4> act) {
        meta.step = STEP_PUT;
        meta.act = act;
    }

    action merge(bit<4> act) {
        meta.step = meta.merge_step;
        meta.act = act;
    }

    // Its own lanes are nothing to the cell: zeros change none.
    action read(bit<4> act) {
        meta.step = STEP_READ;
        meta.act = act;
        EACH_LANE(BLANK)
    }

    // A second pass takes the upper lanes of that whose lower lanes the first took. The round was complete, so
    // nothing is added to it any more, and meanwhile the cell can change in two ways only. A newer round takes it:
    // then all workers have this one's result, and the packet is stale. Or the parent's result takes the place of
    // the sums: then Answer drops these. So both halves are always of the same sums, however long it waited.
    action read_upper() {
        meta.step = STEP_UPPER;
        meta.act = ACT_SECOND;
    }

    action answer(bit<4> act) {
        meta.act = act;
    }

#define BOUNCE(W) (0, _, 0, _, TYPE_CONTRIBUTION, 1, _, EQUAL, W, 1 << W &&& 1 << W): answer(ACT_BOUNCES);
#define LAST(W) (0, _, 0, _, TYPE_CONTRIBUTION, 0, _, EQUAL, W, 1 << W): merge(ACT_COMPLETES);
#define MISSING(W) (0, _, 0, _, TYPE_CONTRIBUTION, 0, _, EQUAL, W, 1 << W &&& 1 << W): merge(ACT_NONE);

    table rounds_of_cell {
        key = {
            meta.second: ternary;
            hdr.weir.flags: ternary;
            meta.from_parent: ternary;
            meta.from_rack: ternary;
            hdr.weir.kind: ternary;
            meta.probe: ternary;
            meta.alone: ternary;
            meta.relation: ternary;
            hdr.weir.worker: ternary;
            meta.missing: ternary;
        }
        actions = { put; merge; read; read_upper; answer; }
        const default_action = answer(ACT_IGNORED);
        const entries = {
            (1, _, _, _, _, _, _, EQUAL, _, _): read_upper();
            (0, _, 0, 1, TYPE_RESULT, _, _, _, _, _): answer(ACT_RELAYS);
            (0, _, 0, _, TYPE_RESULT, _, _, _, _, _): answer(ACT_REFUSED);
            (0, _, 0, _, TYPE_REPEAT, _, _, _, _, _): answer(ACT_REFUSED);
            (0, _, 0, _, TYPE_CONTRIBUTION, 1, _, NEWER, _, _): answer(ACT_BOUNCES);
            EACH_WORKER(BOUNCE)
            (0, _, 0, _, TYPE_CONTRIBUTION, 0, 1, NEWER, _, _): put(ACT_COMPLETES);
            (0, _, 0, _, TYPE_CONTRIBUTION, 0, 0, NEWER, _, _): put(ACT_NONE);
            EACH_WORKER(LAST)
            EACH_WORKER(MISSING)
            (0, _, 0, _, TYPE_CONTRIBUTION, _, _, EQUAL, _, 0): read(ACT_AGAIN);
            (0, _, 0, _, TYPE_CONTRIBUTION, _, _, EQUAL, _, _): answer(ACT_PENDING);
            (0, FLAG_ELSEWHERE &&& FLAG_ELSEWHERE, 1, _, TYPE_RESULT, 0, _, EQUAL, _, 0): answer(ACT_KEEPS);
            (0, _, 1, _, TYPE_RESULT, 0, _, EQUAL, _, 0): put(ACT_KEEPS);
            (0, _, 1, _, _, 1, _, EQUAL, _, 0): read(ACT_ASKED);
        }
        size = 108;
    }

    // Contributions that count arrive; all else looks only.
#define ARRIVAL(TABLE, ARRIVE, LOOK) \
    table TABLE { \
        key = { hdr.weir.kind: ternary; meta.probe: ternary; } \
        actions = { ARRIVE; LOOK; @defaultonly NoAction; } \
        const default_action = NoAction; \
        const entries = { (TYPE_CONTRIBUTION, 0): ARRIVE(); (_, _): LOOK(); } \
        size = 2; \
    }

    ARRIVAL(seen_of_cell, arrive_at_seen, look_at_seen)
    ARRIVAL(round_of_cell, arrive_at_round, look_at_round)
    ARRIVAL(check_of_cell, arrive_at_check, look_at_check)
    ARRIVAL(name_of_cell, arrive_at_name, look_at_name)

    apply {
        locate();
        seen_of_cell.apply();
        round_of_cell.apply();
        check_of_cell.apply();
        name_of_cell.apply();
        rounds_of_cell.apply();
    }
}

#endif
