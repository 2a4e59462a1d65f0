// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_AGGREGATOR_P4
#define WEIR_AGGREGATOR_P4

#include "headers.p4"

// Is this packet for the aggregation function of this switch? Sets meta.aggregate and meta.headroom.
//
// Weir's packets to any other address are ordinary traffic: another switch aggregates them. So is whatever
// else is sent to the aggregation address. UDP whose port cannot be seen (fragments, IPv4 options) is claimed
// here, to be refused and counted by Validation rather than to vanish.
control Aggregator(inout headers_t hdr, inout metadata_t meta) {
    // headroom: by how many bytes this target can make a packet longer. A result is longer than the packet it
    // is made of by the lanes that only others sent. BMv2 can add 512 bytes, and writes outside its buffer
    // beyond that; where there is such a limit, workers are to send lanes of zeros for requested blocks that
    // they lack, so that results never grow, and a packet without lanes is not taken as a round's last one.
    action aggregate(bit<16> headroom) {
        meta.aggregate = true;
        meta.headroom = headroom;
    }

    table addresses {
        key = { hdr.ipv4.dst: exact @name("address"); }
        actions = { aggregate; @defaultonly NoAction; }
        const default_action = NoAction;
        size = AGGREGATION_ADDRESSES;
    }

    apply {
        if (hdr.ipv4.isValid() && hdr.ipv4.protocol == PROTOCOL_UDP) {
            if (!hdr.udp.isValid() || hdr.udp.dst_port == UDP_PORT) {
                addresses.apply();
            }
        }
    }
}

// Refuses what is no well-formed slot packet. After it, every header that hdr.weir speaks of is valid, and
// the IPv4 and UDP lengths are those of exactly these headers.
//
// The UDP checksum is not looked at: it would cost a pass over all lanes, and the link's own checksum covers
// the same bytes. Senders may leave it 0.
control Validation(in headers_t hdr, inout metadata_t meta, in standard_metadata_t standard_metadata) {
    apply {
        meta.received = meta.length;
        if (standard_metadata.parser_error != error.NoError) {
            meta.event = EVENT_DROP_PARSER_ERROR;
        } else if (!hdr.weir.isValid() || !hdr.columns[0].isValid()) { // unreadable, other version or block size
            meta.event = EVENT_DROP_MALFORMED;
        } else if (standard_metadata.checksum_error != 0
                || hdr.ipv4.total_len != meta.length + 28
                || hdr.udp.length != meta.length + 8
                || hdr.weir.flags & ~FLAGS != 0
                || (hdr.weir.flags & FLAG_TRIMMED != 0 && hdr.weir.groups != 0)
                || hdr.weir.layer >= LAYER_CLASSES || hdr.weir.magnitude >= MAGNITUDE_CLASSES
                || hdr.weir.kind < TYPE_CONTRIBUTION || hdr.weir.kind > TYPE_REPEAT
                || hdr.weir.op < OP_ADD || hdr.weir.op > OP_OR
                || hdr.weir.worker >= MAX_CHILDREN) {
            meta.event = EVENT_DROP_MALFORMED;
        }
#ifdef WIDE
        else if (hdr.weir.block_log2 == WIDE_BLOCK_LOG2
                && (hdr.weir.op != OP_ADD || (hdr.weir.groups != 0 && hdr.weir.groups != 0xff))) {
            meta.event = EVENT_DROP_MALFORMED;
        }
#endif
    }
}

#endif
