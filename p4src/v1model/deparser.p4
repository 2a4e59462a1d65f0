// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_DEPARSER_P4
#define WEIR_DEPARSER_P4

#include "headers.p4"

// What the switch made or cut gets a new checksum; routing and marking mend theirs themselves.
control WeirComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(
            meta.made || meta.trimmed,
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.id,
              hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
              hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control WeirDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.tcp);
        packet.emit(hdr.udp);
        packet.emit(hdr.flow);
        packet.emit(hdr.weir);
        packet.emit(hdr.columns);
        packet.emit(hdr.lanes0);
        packet.emit(hdr.lanes1);
        packet.emit(hdr.lanes2);
        packet.emit(hdr.lanes3);
        packet.emit(hdr.lanes4);
        packet.emit(hdr.lanes5);
        packet.emit(hdr.lanes6);
        packet.emit(hdr.lanes7);
#ifdef WIDE
        packet.emit(hdr.wide);
#endif
    }
}

#endif
