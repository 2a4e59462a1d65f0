// SPDX-License-Identifier: Apache-2.0
// Headers, and the metadata that the controls hand to one another.
#ifndef WEIR_HEADERS_P4
#define WEIR_HEADERS_P4

#include "../shared/network.p4"
#include "../shared/wire.p4"
#include "events.p4"
#ifdef WIDE
#include "wide.p4"
#endif

const bit<16> ETHERTYPE_VLAN = 0x8100;
const bit<16> ETHERTYPE_SERVICE_VLAN = 0x88A8;

// From the controller: send the rest of this packet, as it is, out of egress_port.
@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> pad;
}

// To the controller: the rest of this packet came in on ingress_port.
@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> pad;
}

struct headers_t {
    packet_in_t packet_in;
    packet_out_t packet_out;
    ethernet_t ethernet;
    arp_t arp;
    ipv4_t ipv4;
    tcp_ports_t tcp;
    udp_t udp;
    flow_t flow;
    weir_t weir;
    column_t[MAX_COLUMNS] columns; // valid ones come first
    lanes_t lanes0; // lane groups; those that hdr.weir.groups names are valid
    lanes_t lanes1;
    lanes_t lanes2;
    lanes_t lanes3;
    lanes_t lanes4;
    lanes_t lanes5;
    lanes_t lanes6;
    lanes_t lanes7;
#ifdef WIDE
    wide_lanes_t wide; // all groups of a wide packet, instead of these
#endif
}

struct metadata_t {
    // What was decided about the packet: the index of its one counter. A control that refuses the packet
    // sets a DROP event here; until then a Weir packet is EVENT_CONTRIBUTION.
    bit<32> event;
    // Bytes of the Weir header, the columns and the lanes that the packet holds at this moment.
    bit<16> length;
    bit<16> without_lanes; // the same without the lanes
    bit<16> received; // the same when the packet came in
    bool priority_tagged; // a frame with a tag of VLAN 0
    bool aggregate; // UDP that this switch is to aggregate, not to forward
    bit<16> headroom; // bytes by which a packet may leave longer than it came
    bool made; // the packet has become one of this switch's own: egress gives it lengths and addresses
    bool up; // of those: it goes to the parent, and ingress has addressed it
    bool whole; // of those: it must not be trimmed on its way
    bit<32> skip; // mask of children that get no copy of what is multicast
    bool flooded; // sent to all ports: egress takes out the one it came from

    // Written by Forwarding for Spraying: the group of paths to choose from, 0 for none.
    bit<16> spray_group;

    // Written by Queueing.
    bit<3> queue;
    bit<16> mark_at; // depth of the queue from which on the packet is CE-marked
    bool trimmed; // lanes or data were cut off here
    bit<32> keep; // bytes to truncate the packet to, 0 for all

    // Written by Admission: the sender's address and UDP port, and its job.
    bit<32> sender_ip;
    bit<16> sender_port;
    bit<32> slot_base; // first slot of the job
    bit<16> slot_count; // slots of the job
    bit<32> worker_bit; // the sender, as a mask
    bit<32> own_bit; // this switch, as a mask of its parent's
    bit<32> all_workers; // mask of the children that this switch waits for
    bit<16> group; // multicast group that reaches all of them
    bool from_rack; // the sender is a switch below, which sends the sums of its children
    bool from_parent; // the sender is the switch above

    // Written by Slots: what is to be done with columns and lanes.
    bit<32> cell; // index of (slot, version)
    bool first; // nothing of this round is in the cell yet
    bool adds; // the packet is the sender's first of this round, or the parent's result
    bool complete; // every child was seen, so the packet turns into what the cell holds
    bool final; // the cell holds the parent's result
    bool bounce; // the sender is to send its lanes again
    bool ask; // the children that are missing are to repeat what they hold
    bool shed; // the result goes to all without the sums: nobody needs them
    bool relay; // one child's result for the others, which may lack it
    // Lane groups, one bit each; for a group that several masks name, the first of them counts.
    bit<8> put; // to write to the cell: first of the round
    bit<8> merge; // to combine with those in the cell
    bit<8> fetch; // to read from the cell: what the result holds
    bit<8> discard; // to cut off the packet: what the result does not hold
    bit<8> written; // lane groups that somebody has written in this round
    bit<32> included; // mask of the children whose lanes are in the sums
    bit<32> above; // the same in the parent's result: mask of its children
    bit<16> count; // how many workers' they are
    bit<8> flags; // PROTECTED, CONGESTED and DISAGREE of the packets that the cell is made of
    bit<8> magnitudes; // the greatest of their magnitude classes, in unary
    bit<32> check; // fingerprint of the operation that the cell is about: the round's first packet's
#ifdef WIDE
    bit<8> wide; // 1 when the packets that the cell is made of are wide
#endif
}

#endif
