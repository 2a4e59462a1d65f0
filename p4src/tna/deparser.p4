// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_TNA_DEPARSER_P4
#define WEIR_TNA_DEPARSER_P4

#include "headers.p4"

control WeirIngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta) {
    apply {
        packet.emit(hdr.bridge);
        packet.emit(hdr.again);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.weir);
        packet.emit(hdr.column);
        packet.emit(hdr.lanes);
        packet.emit(hdr.upper);
    }
}

control WeirEgressDeparser(packet_out packet, inout headers_t hdr, in egress_metadata_t meta,
                           in egress_intrinsic_metadata_for_deparser_t eg_dprsr_md) {
    Checksum() ipv4_checksum;
    Mirror(MIRROR_CUT) mirror;

    apply {
        if (eg_dprsr_md.mirror_type == MIRROR_CUT) {
            mirror.emit<bridge_t>(meta.session, { hdr.bridge.role, hdr.bridge.lanes_to, hdr.bridge.in_port,
                                                   hdr.bridge.copies });
        }
        if (meta.checksum == 1) {
            hdr.ipv4.checksum = ipv4_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.id,
                hdr.ipv4.reserved, hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset,
                hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst });
        }
        packet.emit(hdr.kept);
        packet.emit(hdr.kept_again);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.rest);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.weir);
        packet.emit(hdr.column);
    }
}

#endif
