// SPDX-License-Identifier: Apache-2.0
//
// Results that nobody needs to get whole. Where all workers gave up their lanes of a round, the root of the tree may
// cut the sums before it replicates them: all replicas are the same, and no worker's lanes count. It does so when
//
//   a child's queue of results is so deep that it marks    (`deep_children`, which egress keeps), or
//   a rack's sums came without their lanes                 for a like reason, or because their way was crowded.
//
// The cell keeps its sums; `sheds` says that its result goes without them, to those who ask once more as well.
#ifndef WEIR_SHEDDING_P4
#define WEIR_SHEDDING_P4

#include "headers.p4"
#include "lanes.p4"

// By multicast group: mask of the children whose queue marked the last result that left. A job's groups are as
// many as its slots, and begin after that which floods.
register<bit<32>>(SLOTS + 2) deep_children;

// Ingress, after Tree.
control Shedding(inout headers_t hdr, inout metadata_t meta) {
    register<bit<1>>(CELLS) sheds;

    apply {
        if (meta.complete) {
            bit<1> shed = 0;
            if (meta.adds && !meta.from_parent) {
                bit<32> deep = 0;
                deep_children.read(deep, (bit<32>)meta.group);
                if (!meta.up && meta.written != 0 && meta.magnitudes == 0
                        && meta.flags & (FLAG_PROTECTED | FLAG_DISAGREE) == 0
                        && (deep != 0 || meta.flags & FLAG_TRIMMED != 0)) {
                    shed = 1;
                }
                sheds.write(meta.cell, shed);
            } else {
                sheds.read(shed, meta.cell);
            }
            if (shed == 1) {
                CUT_OFF
                meta.written = 0;
                meta.included = 0;
                meta.count = 0;
                meta.shed = true;
            }
        }
    }
}

#endif
