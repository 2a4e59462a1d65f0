// SPDX-License-Identifier: Apache-2.0
//
// How what a cell holds, or lacks, leaves the switch.
//
//   ingress   Tree      who the parent is
//             Answer    the packet becomes       ── a result: multicast, one replica per child,
//                                                └─    or back to the one that repeated its packet
//                                                ── partial sums, or a result that a spine lacks: up
//                                                ── a question (REPEAT): back to the sender, or to the other racks
//   egress    Results   each replica gets its receiver's addresses; its lanes went in the parser if they are for others
//
// To all children it goes as replicas (port, replica id = child + 1), to one as it is (replica id 0).
#ifndef WEIR_TNA_RESULTS_P4
#define WEIR_TNA_RESULTS_P4

#include "headers.p4"

// The switch above this one, to which slots of this class go up. has_parent stays 0 at the root, which has no entry.
control Tree(inout headers_t hdr, inout metadata_t meta) {
    // number: this switch's among the parent's children.
    action climb(bit<9> port, bit<8> number) {
        meta.has_parent = 1;
        meta.up_port = port;
        meta.up_number = number;
    }

    table uplinks {
        key = {
            hdr.weir.job: exact @name("job");
            hdr.weir.slot[3:0]: exact @name("spine_class");
        }
        actions = { climb; @defaultonly NoAction; }
        const default_action = NoAction;
        size = UPLINKS;
    }

    apply {
        uplinks.apply();
    }
}

// Which of the receivers get the lanes of a result.
control Audience(inout headers_t hdr, inout metadata_t meta) {
    action everybody() {
        hdr.bridge.lanes_to = LANES_TO_ALL;
    }

    action nobody() {
        hdr.bridge.lanes_to = LANES_TO_NONE;
    }

    // At a leaf: the worker that the path names, who is in this rack; or all others. At a spine and at a core: the
    // child on the way to it.
    action child(bit<8> lanes_to) {
        hdr.bridge.lanes_to = lanes_to;
    }

    table audiences {
        key = {
            hdr.weir.job: ternary @name("job");
            hdr.weir.audience: ternary @name("audience");
        }
        actions = { everybody; nobody; child; }
        default_action = everybody;
        size = AUDIENCES;
    }

    apply {
        audiences.apply();
    }
}

// What the packet becomes.
control Answer(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t ig_intr_md,
               inout ingress_intrinsic_metadata_for_deparser_t ig_dprsr_md,
               inout ingress_intrinsic_metadata_for_tm_t ig_tm_md) {
    // What the cell's packets met, and whether there are sums: lanes of different operations stay here.
    action sums(bit<8> flags) {
        meta.marks = flags;
        meta.has_lanes = 1;
    }

    action no_sums(bit<8> flags) {
        meta.marks = flags;
    }

    table contents {
        key = {
            meta.tally[27:22]: ternary @name("disagree");
            meta.tally[21:16]: ternary @name("congested");
            meta.tally[15:0]: ternary @name("count");
        }
        actions = { sums; no_sums; }
        const entries = {
            (0, 0, 0): no_sums(FLAG_PROTECTED);
            (0, _, 0): no_sums(FLAG_PROTECTED | FLAG_CONGESTED);
            (0, 0, _): sums(FLAG_PROTECTED);
            (0, _, _): sums(FLAG_PROTECTED | FLAG_CONGESTED);
            (_, 0, _): no_sums(FLAG_PROTECTED | FLAG_DISAGREE);
            (_, _, _): no_sums(FLAG_PROTECTED | FLAG_DISAGREE | FLAG_CONGESTED);
        }
        size = 6;
    }

    action drop(bit<8> event) {
        ig_dprsr_md.drop_ctl = 1;
        meta.event = event;
    }

    action to_all(bit<4> kind, bit<8> event) {
        hdr.weir.kind = kind;
        hdr.bridge.role = ROLE_MADE;
        hdr.again.group = meta.group;
        meta.event = event;
    }

    action to_sender(bit<4> kind, bit<8> event) {
        hdr.weir.kind = kind;
        hdr.bridge.role = ROLE_MADE;
        hdr.again.group = 0;
        hdr.again.port = (bit<16>)ig_intr_md.ingress_port;
        meta.event = event;
    }

    action up(bit<4> kind, bit<8> event) {
        hdr.weir.kind = kind;
        hdr.weir.worker = meta.up_number;
        hdr.bridge.role = ROLE_UP;
        hdr.again.group = 0;
        hdr.again.port = (bit<16>)meta.up_port;
        meta.event = event;
    }

    table answers {
        key = {
            meta.act: ternary;
            meta.has_parent: ternary;
            meta.from_rack: ternary;
            hdr.weir.kind: ternary;
            hdr.weir.flags: ternary;
            meta.likeness: ternary;
            meta.tally[29:28]: ternary @name("final");
        }
        actions = { drop; to_all; to_sender; up; NoAction; }
        const entries = {
            // partial sums, whose lower lanes were taken before the parent's result took their place (a result whose
            // lanes are elsewhere does not)
            (ACT_SECOND, _, _, TYPE_CONTRIBUTION, _, _, 1): drop((bit<8>)EVENT_DROP_STALE_ROUND);
            (ACT_SECOND, _, _, _, _, _, _): NoAction();
            (ACT_NONE, _, _, _, _, UNLIKE, _): drop((bit<8>)EVENT_DISAGREEMENT);
            (ACT_NONE, _, _, _, FLAG_DISAGREE &&& FLAG_DISAGREE, _, _): drop((bit<8>)EVENT_DISAGREEMENT);
            (ACT_NONE, _, _, _, _, _, _): drop((bit<8>)EVENT_CONTRIBUTION);
            (ACT_IGNORED, _, _, _, _, _, _): drop((bit<8>)EVENT_DROP_STALE_ROUND);
            (ACT_REFUSED, _, _, _, _, _, _): drop((bit<8>)EVENT_DROP_NOT_A_CONTRIBUTION);
            (ACT_BOUNCES, _, _, _, _, _, _): to_sender(TYPE_REPEAT, (bit<8>)EVENT_REPEAT_ASKED);
            (ACT_RELAYS, _, _, _, _, _, _): to_all(TYPE_RESULT, (bit<8>)EVENT_RESULT_RELAYED);
            (ACT_PENDING, _, 1, _, 0 &&& FLAG_ANSWER, _, _): to_all(TYPE_REPEAT, (bit<8>)EVENT_REPEAT_ASKED);
            (ACT_PENDING, _, _, _, _, _, _): drop((bit<8>)EVENT_DUPLICATE_PENDING);
            (ACT_COMPLETES, 0, _, _, _, UNLIKE, _): to_all(TYPE_RESULT, (bit<8>)EVENT_DISAGREEMENT);
            (ACT_COMPLETES, 0, _, _, FLAG_DISAGREE &&& FLAG_DISAGREE, _, _): to_all(TYPE_RESULT, (bit<8>)EVENT_DISAGREEMENT);
            (ACT_COMPLETES, 0, _, _, _, _, _): to_all(TYPE_RESULT, (bit<8>)EVENT_ROUND_COMPLETE);
            (ACT_COMPLETES, 1, _, _, _, UNLIKE, _): up(TYPE_CONTRIBUTION, (bit<8>)EVENT_DISAGREEMENT);
            (ACT_COMPLETES, 1, _, _, FLAG_DISAGREE &&& FLAG_DISAGREE, _, _): up(TYPE_CONTRIBUTION, (bit<8>)EVENT_DISAGREEMENT);
            (ACT_COMPLETES, 1, _, _, _, _, _): up(TYPE_CONTRIBUTION, (bit<8>)EVENT_PARTIAL_SENT);
            (ACT_KEEPS, _, _, _, _, _, _): to_all(TYPE_RESULT, (bit<8>)EVENT_RESULT_STORED);
            (ACT_AGAIN, 0, _, _, _, _, _): to_sender(TYPE_RESULT, (bit<8>)EVENT_DUPLICATE_ANSWERED);
            (ACT_AGAIN, _, _, _, _, _, 1 &&& 1): to_sender(TYPE_RESULT, (bit<8>)EVENT_DUPLICATE_ANSWERED);
            (ACT_AGAIN, _, _, _, _, _, _): up(TYPE_CONTRIBUTION, (bit<8>)EVENT_PARTIAL_REPEATED);
            (ACT_ASKED, 1, _, _, _, _, 1): up(TYPE_RESULT, (bit<8>)EVENT_RESULT_REPEATED);
            (ACT_ASKED, 1, _, _, _, _, _): up(TYPE_CONTRIBUTION, (bit<8>)EVENT_PARTIAL_REPEATED);
            (ACT_ASKED, 0, _, _, _, _, _): drop((bit<8>)EVENT_DROP_STALE_ROUND);
        }
        const default_action = drop((bit<8>)EVENT_CONTRIBUTION);
        size = 24;
    }

    // The payload: the cell's, or none. All that is no question is protected.
    action with_lanes(bit<8> flags) {
        hdr.weir.groups = meta.groups;
        hdr.weir.flags = meta.marks | flags;
        hdr.weir.check = meta.check;
        hdr.weir.count = meta.tally[15:0];
        hdr.bridge.copies = 0xffffffff;
    }

    action without_lanes(bit<8> flags) {
        hdr.weir.groups = 0;
        hdr.weir.flags = meta.marks | flags;
        hdr.weir.check = meta.check;
        hdr.weir.count = meta.tally[15:0];
        hdr.bridge.copies = 0xffffffff;
    }

    action disagreement(bit<8> flags) {
        hdr.weir.groups = 0;
        hdr.weir.flags = meta.marks | flags;
        hdr.weir.check = meta.check;
        hdr.weir.included = 0;
        hdr.weir.count = 0;
        hdr.bridge.copies = 0xffffffff;
    }

    // The parent's result, for a parent that lacks it.
    action above_with_lanes() {
        hdr.weir.groups = meta.groups;
        hdr.weir.flags = meta.marks;
        hdr.weir.check = meta.check;
        hdr.weir.count = meta.tally[15:0];
        hdr.weir.included = meta.above;
    }

    action above_without_lanes() {
        hdr.weir.groups = 0;
        hdr.weir.flags = meta.marks;
        hdr.weir.check = meta.check;
        hdr.weir.count = meta.tally[15:0];
        hdr.weir.included = meta.above;
    }

    action question(bit<8> flags) {
        hdr.weir.groups = 0;
        hdr.weir.flags = flags;
        hdr.weir.included = 0;
        hdr.weir.count = 0;
        hdr.bridge.copies = meta.missing;
    }

    action relayed() {
        hdr.bridge.copies = meta.others;
    }

    table payload {
        key = {
            meta.act: ternary;
            meta.has_parent: ternary;
            meta.has_lanes: ternary;
            meta.marks: ternary;
            meta.tally[29:28]: ternary @name("final");
            hdr.weir.flags: ternary;
            hdr.weir.groups: ternary;
        }
        actions = {
            with_lanes; without_lanes; disagreement; above_with_lanes; above_without_lanes; question; relayed;
            NoAction;
        }
        const entries = {
            (ACT_NONE, _, _, _, _, _, _): NoAction();
            (ACT_IGNORED, _, _, _, _, _, _): NoAction();
            (ACT_REFUSED, _, _, _, _, _, _): NoAction();
            (ACT_SECOND, _, _, _, _, _, _): NoAction();
            (ACT_BOUNCES, _, _, _, _, _, _): question(0);
            (ACT_PENDING, _, _, _, _, _, _): question(0);
            (ACT_RELAYS, _, _, _, _, _, _): relayed();
            // a worker that does not know yet whether anything is lost, and sent no lanes: the parent is asked so, too
            (ACT_AGAIN, 1, _, _, 0 &&& 1, FLAG_ANSWER &&& FLAG_ANSWER, 0): question(FLAG_PROTECTED | FLAG_TRIMMED | FLAG_ANSWER);
            (ACT_ASKED, _, 1, _, 1, _, _): above_with_lanes();
            (ACT_ASKED, _, 0, _, 1, _, _): above_without_lanes();
            (ACT_ASKED, _, _, FLAG_DISAGREE &&& FLAG_DISAGREE, _, _, _): disagreement(FLAG_ANSWER);
            (ACT_ASKED, _, 1, _, _, _, _): with_lanes(FLAG_ANSWER);
            (ACT_ASKED, _, 0, _, _, _, _): without_lanes(FLAG_ANSWER);
            (_, _, _, FLAG_DISAGREE &&& FLAG_DISAGREE, 2 &&& 2, _, _): disagreement(FLAG_ELSEWHERE);
            (_, _, _, FLAG_DISAGREE &&& FLAG_DISAGREE, _, _, _): disagreement(0);
            (_, _, _, _, 2 &&& 2, _, _): without_lanes(FLAG_ELSEWHERE);
            (_, _, 1, _, _, _, _): with_lanes(0);
            (_, _, 0, _, _, _, _): without_lanes(0);
        }
        const default_action = NoAction;
        size = 18;
    }

    // AFxy as wire.definition.dscp has it, of what is protected; the top class of what has no lanes to lose.
    action grade(bit<6> dscp) {
        hdr.ipv4.dscp = dscp;
        hdr.ipv4.ecn = ECT;
    }

    table grades {
        key = {
            meta.act: ternary;
            meta.has_parent: ternary;
            meta.tally[28:28]: ternary @name("final");
            hdr.weir.flags: ternary;
            hdr.weir.groups: ternary;
            hdr.weir.layer: ternary;
        }
        actions = { grade; NoAction; }
        const entries = {
            (ACT_RELAYS, _, _, _, _, _): NoAction();
            (ACT_SECOND, _, _, _, _, _): NoAction();
            (ACT_BOUNCES, _, _, _, _, _): grade(RELIABLE_DSCP);
            (ACT_PENDING, _, _, _, _, _): grade(RELIABLE_DSCP);
            (ACT_AGAIN, 1, 0, FLAG_ANSWER &&& FLAG_ANSWER, 0, _): grade(RELIABLE_DSCP);
            (_, _, _, _, _, 0): grade(4 << 3 | 1 << 1);
            (_, _, _, _, _, 1): grade(3 << 3 | 1 << 1);
            (_, _, _, _, _, 2): grade(2 << 3 | 1 << 1);
            (_, _, _, _, _, 3): grade(1 << 3 | 1 << 1);
        }
        const default_action = NoAction;
        size = 9;
    }

    action bare() {
        hdr.lanes.setInvalid();
        hdr.upper.setInvalid();
    }

    action lower_alone() {
        hdr.upper.setInvalid();
    }

    table lane_groups {
        key = { hdr.weir.groups: ternary; }
        actions = { bare; lower_alone; NoAction; }
        const entries = {
            0: bare();
            1: lower_alone();
        }
        const default_action = NoAction;
        size = 2;
    }

    action leave_to_one() {
        ig_tm_md.ucast_egress_port = hdr.again.port[8:0];
        hdr.again.setInvalid();
    }

    action leave_to_all() {
        ig_tm_md.mcast_grp_a = hdr.again.group;
        hdr.again.setInvalid();
    }

    // By the port of the pipe that leads back to it.
    action pass_again() {
        ig_tm_md.ucast_egress_port = ig_intr_md.ingress_port[8:7] ++ (bit<7>)AGAIN_PORT;
        hdr.again.base = meta.base;
    }

    // What an ALU said has both lane groups only after a second pass.
    table ways {
        key = {
            meta.act: ternary;
            hdr.weir.groups: ternary;
            hdr.again.group: ternary;
        }
        actions = { leave_to_one; leave_to_all; pass_again; }
        const entries = {
            (ACT_COMPLETES, 3, _): pass_again();
            (ACT_AGAIN, 3, _): pass_again();
            (ACT_ASKED, 3, _): pass_again();
            (_, _, 0): leave_to_one();
        }
        const default_action = leave_to_all();
        size = 4;
    }

    apply {
        if (meta.second == 0) {
            hdr.again.setValid();
        }
        contents.apply();
        grades.apply();
        answers.apply();
        payload.apply();
        lane_groups.apply();
        ways.apply();
    }
}

// Egress: addresses what the switch made. The direct counter is the child's downlink.
control Results(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t eg_intr_md,
                inout egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    DirectCounter<bit<64>>(CounterType_t.PACKETS_AND_BYTES) downlink;

    action drop() {
        eg_dprsr_md.drop_ctl = 1;
    }

    action copy(bit<8> worker) {
        hdr.weir.worker = worker;
    }

// To child N goes the replica N + 1.
#define EACH_CHILD(DO) \
    DO(0, 1) DO(1, 2) DO(2, 3) DO(3, 4) DO(4, 5) DO(5, 6) DO(6, 7) DO(7, 8) \
    DO(8, 9) DO(9, 10) DO(10, 11) DO(11, 12) DO(12, 13) DO(13, 14) DO(14, 15) DO(15, 16) \
    DO(16, 17) DO(17, 18) DO(18, 19) DO(19, 20) DO(20, 21) DO(21, 22) DO(22, 23) DO(23, 24) \
    DO(24, 25) DO(25, 26) DO(26, 27) DO(27, 28) DO(28, 29) DO(29, 30) DO(30, 31) DO(31, 32)

#define COPY(CHILD, RID) (RID, 1 << CHILD &&& 1 << CHILD): copy(CHILD);

    // Which children get a copy. (Replica 0 is no copy: it goes to one only.)
    table copies {
        key = {
            eg_intr_md.egress_rid: ternary;
            hdr.bridge.copies: ternary;
        }
        actions = { copy; drop; NoAction; }
        const entries = {
            (0, _): NoAction();
            EACH_CHILD(COPY)
        }
        const default_action = drop;
        size = 33;
    }

    // src_*: the aggregation address that the job uses; dst_*: the worker's, or the rack's.
    action deliver(bit<48> src_mac, bit<32> src_ip, bit<48> dst_mac, bit<32> dst_ip, bit<16> dst_port) {
        downlink.count();
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.src_port = UDP_PORT;
        hdr.udp.dst_port = dst_port;
    }

    @stage(2)
    table receivers {
        key = {
            hdr.weir.job: exact @name("job");
            hdr.weir.worker: exact @name("worker");
            eg_intr_md.egress_port: exact @name("port"); // a core has several to one pod
        }
        actions = { deliver; @defaultonly drop; }
        const default_action = drop;
        counters = downlink;
        size = WORKERS;
    }

    action address(bit<48> src_mac, bit<32> src_ip, bit<48> dst_mac, bit<32> dst_ip) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.src_port = UDP_PORT;
        hdr.udp.dst_port = UDP_PORT;
    }

    table uplink_addresses {
        key = {
            hdr.weir.job: exact @name("job");
            hdr.weir.slot[3:0]: exact @name("spine_class");
        }
        actions = { address; @defaultonly drop; }
        const default_action = drop;
        size = UPLINKS;
    }

    // The others get the header, which advances their slot. Lanes are payload here, and only a mirrored copy can be
    // cut short: so the packet is finished as it is to be sent, and dropped, and a mirror of the port sends it.
    action pass_by() {
        hdr.weir.groups = 0;
        hdr.weir.flags = hdr.weir.flags | FLAG_ELSEWHERE;
        hdr.ipv4.total_len = 64;
        hdr.udp.length = 44;
        hdr.bridge.role = ROLE_CUT;
        meta.session = 1w1 ++ eg_intr_md.egress_port;
        eg_dprsr_md.mirror_type = MIRROR_CUT;
        eg_dprsr_md.drop_ctl = 1;
    }

#define KEEP_WORKER(CHILD, RID) (1 &&& 1, LANES_TO_WORKER, CHILD, CHILD &&& 0x1f): NoAction();
#define CUT_WORKER(CHILD, RID) (1 &&& 1, LANES_TO_OTHERS, CHILD, CHILD &&& 0x1f): pass_by();
#define KEEP_RACK(CHILD, RID) (1 &&& 1, LANES_TO_RACK, CHILD, CHILD << 5 &&& 0x3e0): NoAction();
#define KEEP_POD(CHILD, RID) (1 &&& 1, LANES_TO_POD, CHILD, CHILD << 10 &&& 0x7c00): NoAction();

    table audience {
        key = {
            hdr.weir.groups: ternary;
            hdr.bridge.lanes_to: ternary;
            hdr.weir.worker: ternary;
            hdr.weir.audience: ternary;
        }
        actions = { pass_by; NoAction; }
        const entries = {
            EACH_CHILD(KEEP_WORKER)
            EACH_CHILD(CUT_WORKER)
            EACH_CHILD(KEEP_RACK)
            EACH_CHILD(KEEP_POD)
            (1 &&& 1, LANES_TO_NONE, _, _): pass_by();
            (1 &&& 1, LANES_TO_WORKER, _, _): pass_by();
            (1 &&& 1, LANES_TO_RACK, _, _): pass_by();
            (1 &&& 1, LANES_TO_POD, _, _): pass_by();
        }
        const default_action = NoAction;
        size = 160;
    }

    action finish() {
        hdr.ipv4.id = 0; // allowed because it is never fragmented (RFC 6864)
        hdr.ipv4.reserved = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.ttl = 64;
        hdr.udp.checksum = 0; // none: legal over IPv4 (RFC 768)
        meta.checksum = 1;
    }

    action lengths(bit<16> ip, bit<16> udp) {
        hdr.ipv4.total_len = ip;
        hdr.udp.length = udp;
    }

    apply {
        if (hdr.weir.groups == 0) {
            lengths(64, 44);
        } else if (hdr.weir.groups == 3) {
            lengths(320, 300);
        } else {
            lengths(192, 172);
        }
        finish();
        if (hdr.bridge.role == ROLE_UP) {
            uplink_addresses.apply();
        } else {
            if (copies.apply().hit) {
                if (receivers.apply().hit) {
                    audience.apply();
                }
            }
        }
    }
}

#endif
