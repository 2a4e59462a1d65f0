// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic: 32 lanes of one group, in the packet and in the cell. All lanes of the switch lie in one
// register, a cell's 256 in a row. Lanes are unsigned and 0 is the identity of every operator, so a group that
// a worker left out needs no arithmetic at all.
//
// The 32 steps of an action are the same but for the lane's name, and the place of the lane advances by one
// after each. Keep them so: a target that compiles this program to vector code recognises the run. (A place
// written as an expression would cost a temporary per use: p4c copies expressions into calls, then out again.)
#ifndef WEIR_LANES_P4
#define WEIR_LANES_P4

#include "headers.p4"

#define EACH_LANE(DO) \
    DO(l0) DO(l1) DO(l2) DO(l3) DO(l4) DO(l5) DO(l6) DO(l7) \
    DO(l8) DO(l9) DO(l10) DO(l11) DO(l12) DO(l13) DO(l14) DO(l15) \
    DO(l16) DO(l17) DO(l18) DO(l19) DO(l20) DO(l21) DO(l22) DO(l23) \
    DO(l24) DO(l25) DO(l26) DO(l27) DO(l28) DO(l29) DO(l30) DO(l31)

#define PUT(L) store.write(at, lanes.L); at = at + 1;
#define FETCH(L) store.read(lanes.L, at); at = at + 1;
#define ADD(L) store.read(old, at); lanes.L = old + lanes.L; store.write(at, lanes.L); at = at + 1;
#define OR(L) store.read(old, at); lanes.L = old | lanes.L; store.write(at, lanes.L); at = at + 1;
// |-| stops at 0, so a + (b |-| a) is the greater of the two.
#define MAX(L) \
    store.read(old, at); lanes.L = lanes.L + (old |-| lanes.L); store.write(at, lanes.L); at = at + 1;

#ifdef WIDE
#define WIDE_BYTES ((bit<16>)(WIDE_LANES * 4))
#define CUT_OFF_WIDE hdr.wide.setInvalid();
#else
#define CUT_OFF_WIDE
#endif

// Cuts all lanes off the packet. No function: p4c would copy all headers into it, and out again.
#define CUT_OFF \
    hdr.lanes0.setInvalid(); \
    hdr.lanes1.setInvalid(); \
    hdr.lanes2.setInvalid(); \
    hdr.lanes3.setInvalid(); \
    hdr.lanes4.setInvalid(); \
    hdr.lanes5.setInvalid(); \
    hdr.lanes6.setInvalid(); \
    hdr.lanes7.setInvalid(); \
    CUT_OFF_WIDE \
    hdr.weir.groups = 0; \
    meta.length = meta.without_lanes;

// One lane group, `number` of 0..7. After it, the packet holds the group's sums as far as they go, or nothing
// of the group when a result must not have it; meta.length keeps step.
control Lanes(inout lanes_t lanes, in bit<4> op, inout metadata_t meta)(register<bit<32>> store, bit<32> number, bit<8> flag) {
    bit<32> at = meta.cell * SLOT_LANES + number * GROUP_LANES;
    bit<32> old;

    action put() { EACH_LANE(PUT) }
    action add() { EACH_LANE(ADD) }
    action max() { EACH_LANE(MAX) }
    action or() { EACH_LANE(OR) }

    // Into the packet: anew, or over what a repeated packet brought along.
    action fetch() {
        meta.length = meta.length + (lanes.isValid() ? 16w0 : 16w128);
        lanes.setValid();
        EACH_LANE(FETCH)
    }

    action discard() {
        meta.length = meta.length - 128;
        lanes.setInvalid();
    }

    apply {
        if (meta.put & flag != 0) {
            put();
        } else if (meta.merge & flag != 0) {
            if (op == OP_ADD) {
                add();
            } else if (op == OP_MAX) {
                max();
            } else {
                or();
            }
        } else if (meta.fetch & flag != 0) {
            fetch();
        } else if (meta.discard & flag != 0) {
            discard();
        }
    }
}

#ifdef WIDE
// All lanes of a wide packet, in a register of their own, a cell's in a row: what a round costs but for its lanes is
// paid once for four times as many. ADD only. The masks of lane groups name all groups or none.
control WideLanes(inout wide_lanes_t lanes, inout metadata_t meta)(register<bit<32>> store) {
    bit<32> at = meta.cell * WIDE_LANES;
    bit<32> old;

    action put() { EACH_WIDE_LANE(PUT) }
    action add() { EACH_WIDE_LANE(ADD) }

    action fetch() {
        meta.length = meta.length + (lanes.isValid() ? 16w0 : WIDE_BYTES);
        lanes.setValid();
        EACH_WIDE_LANE(FETCH)
    }

    action discard() {
        meta.length = meta.length - WIDE_BYTES;
        lanes.setInvalid();
    }

    apply {
        if (meta.put != 0) {
            put();
        } else if (meta.merge != 0) {
            add();
        } else if (meta.fetch != 0) {
            fetch();
        } else if (meta.discard != 0) {
            discard();
        }
    }
}
#endif

#endif
