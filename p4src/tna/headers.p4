// SPDX-License-Identifier: Apache-2.0
// Headers, and the metadata that the controls hand to one another.
#ifndef WEIR_TNA_HEADERS_P4
#define WEIR_TNA_HEADERS_P4

#include "../shared/network.p4"
#include "../shared/wire.p4"

// What egress is to do with a packet.
const bit<8> ROLE_FORWARDED = 0;
const bit<8> ROLE_FLOODED = 1; // sent to all ports: egress takes out the one it came from
const bit<8> ROLE_MADE = 2; // this switch's own, for its children: egress addresses it
const bit<8> ROLE_UP = 3; // this switch's own, for its parent
const bit<8> ROLE_CUT = 4; // finished, and mirrored without its lanes: to be sent as it is

// Who of the receivers gets lanes, by the path in `audience`: all; none; only the worker that it names; all but
// that; the rack, the pod that it is in.
const bit<8> LANES_TO_ALL = 0;
const bit<8> LANES_TO_NONE = 1;
const bit<8> LANES_TO_WORKER = 2;
const bit<8> LANES_TO_OTHERS = 3;
const bit<8> LANES_TO_RACK = 4;
const bit<8> LANES_TO_POD = 5;

const MirrorType_t MIRROR_CUT = 1;

// From ingress to egress, in front of the packet.
header bridge_t {
    bit<8> role;
    bit<8> lanes_to;
    bit<16> in_port; // where it came from
    bit<32> copies; // mask of children that get a copy of what is multicast
}

// What a packet means to its cell: the outcome of Slots.
const bit<4> ACT_NONE = 0; // it counts, and others are missing: nothing more
const bit<4> ACT_COMPLETES = 1; // it was the last
const bit<4> ACT_AGAIN = 2; // its round is complete, and its sender seen: it asks once more
const bit<4> ACT_PENDING = 3; // its sender was seen, others are missing
const bit<4> ACT_BOUNCES = 4; // its sender is to send its lanes
const bit<4> ACT_RELAYS = 5; // one child's result for the others, which may lack it
const bit<4> ACT_KEEPS = 6; // the parent's result
const bit<4> ACT_ASKED = 7; // the parent's question, or its result without the lanes
const bit<4> ACT_IGNORED = 8; // of an old round, or nothing that the cell waits for
const bit<4> ACT_REFUSED = 9; // nothing that its sender may send
const bit<4> ACT_SECOND = 10; // made of the cell in a first pass: it comes for the upper lanes

// What is done in the registers that hold a cell's data.
const bit<3> STEP_NONE = 0;
const bit<3> STEP_PUT = 1; // first of the round: overwrite
const bit<3> STEP_ADD = 2; // lanes: add
const bit<3> STEP_MAX_OR = 3; // lanes: greater of both, or the bits of both
const bit<3> STEP_READ = 4;
const bit<3> STEP_UPPER = 5; // the upper lanes only

// In the place of an upper lane, in a packet of OR; in one of MAX it is 0.
const bit<32> CHOOSES_OR = 1;

// The last 7 bits of the port for recirculation, of which each pipe has its own, as it has its own registers.
#define AGAIN_PORT 68

const bit<8> UNCOUNTED = 0xff; // an event that has no counter: the packet was counted in its first pass

// Behind the bridge of what passes once more: where its slot is, and where it goes then.
header again_t {
    bit<16> base;
    bit<16> group; // of multicast; 0: to the port
    bit<16> port;
}

header rest_t {
    bit<128> bytes;
}

#define EACH_LANE(DO) \
    DO(l0) DO(l1) DO(l2) DO(l3) DO(l4) DO(l5) DO(l6) DO(l7) \
    DO(l8) DO(l9) DO(l10) DO(l11) DO(l12) DO(l13) DO(l14) DO(l15) \
    DO(l16) DO(l17) DO(l18) DO(l19) DO(l20) DO(l21) DO(l22) DO(l23) \
    DO(l24) DO(l25) DO(l26) DO(l27) DO(l28) DO(l29) DO(l30) DO(l31)

#define BLANK(L) hdr.lanes.L = 0; hdr.upper.L = 0;

struct headers_t {
    bridge_t bridge;
    again_t again;
    bridge_t kept; // both in egress, of what passes once more
    again_t kept_again;
    ethernet_t ethernet;
    rest_t rest; // in egress, of a frame that is not IPv4
    arp_t arp;
    ipv4_t ipv4;
    udp_t udp;
    weir_t weir;
    column_t column;
    lanes_t lanes;
    lanes_t upper;
}

struct metadata_t {
    bit<8> event; // what was decided about the packet: the index of its one counter
    bit<1> aggregate; // UDP that this switch is to aggregate, not to forward
    bit<1> bad_checksum;
    bit<1> format_known; // its operator and lengths are those of a slot packet
    bit<1> fields_known; // and so is the rest of its header

    // Written by Admission.
    bit<1> admitted;
    bit<1> from_rack;
    bit<1> from_parent;
    bit<1> alone; // the sender is the only child
    bit<32> worker_bit;
    bit<32> others; // mask of the children that this switch waits for but the sender
    bit<16> group; // multicast group of the children
    bit<1> in_range;
    bit<8> groups; // of a result that has lanes
    bit<16> base; // first slot of the job's range; its length, a power of two, divides it

    // Written by Slots.
    bit<1> second; // a second pass
    bit<16> cell;
    bit<1> probe; // the packet may not count: its lanes were lost and nobody gave them up; or it is a question
    bit<8> relation; // of the packet's round to the cell's
    bit<8> likeness; // of its operation to the cell's
    bit<32> check; // fingerprint of the cell's operation
    bit<32> missing; // children that were missing when the packet came
    bit<4> act;
    bit<3> merge_step; // STEP_ADD or STEP_MAX_OR, by the operator
    bit<3> step;
    bit<32> included; // what the packet adds to the cell's mask; in the parent's result: own lanes are in it, if not 0
    bit<16> adds_marks; // what it adds to the cell's tally: marks, and
    bit<16> adds_count; // workers
    bit<32> tally; // the cell's, after it
    bit<32> above; // the parent's mask of its children, beside the parent's result
    bit<1> has_lanes; // the cell's lanes are sums of somebody's
    bit<8> marks; // flags that the cell's packets leave in what is made of them

    // Written by Tree.
    bit<1> has_parent;
    bit<9> up_port;
    bit<8> up_number; // this switch's among the parent's children
}

struct egress_metadata_t {
    bit<10> session; // of the mirror by which a copy without lanes leaves
    bit<1> checksum; // of IPv4, to be computed
    bit<19> depth; // of the queue that it left
    bit<19> room; // up to the depth from which on packets are marked
}

#endif
