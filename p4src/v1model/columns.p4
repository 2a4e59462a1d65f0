// SPDX-License-Identifier: Apache-2.0
#ifndef WEIR_COLUMNS_P4
#define WEIR_COLUMNS_P4

#include "headers.p4"

// One fused column: keeps the minimum of the workers' next pointers, which is the block that the next round
// requests. NO_BLOCK is the greatest number, so "nobody has more" needs no case of its own.
// The block index itself passes through: all workers of a round ask for the same one.
control Column(inout column_t column, in metadata_t meta)(register<bit<32>> nexts, bit<32> number) {
    bit<32> at = meta.cell * MAX_COLUMNS + number;
    bit<32> other;

    action put() {
        nexts.write(at, column.next);
    }

    action merge() {
        nexts.read(other, at);
        column.next = column.next - (column.next |-| other); // |-| stops at 0: this is the lesser of the two
        nexts.write(at, column.next);
    }

    action fetch() {
        nexts.read(column.next, at);
    }

    apply {
        if (column.isValid()) {
            if (meta.adds && meta.first) {
                put();
            } else if (meta.adds) {
                merge();
            } else if (meta.complete) {
                fetch();
            }
        }
    }
}

#endif
