// SPDX-License-Identifier: Apache-2.0
// Sizes that a deployment may change.
#ifndef WEIR_TNA_CONFIG_P4
#define WEIR_TNA_CONFIG_P4

// Slots of one pipe, shared by all jobs whose children are at its ports. Each has two versions, used in turn by
// round parity; a cell is one version of one slot.
#define SLOTS 8192
#define CELLS (SLOTS * 2)

#define AGGREGATION_ADDRESSES 16
#define WORKERS 1024
#define PARENTS 256 // (port, job) by which results come down
#define UPLINKS 2048 // (job, class of slots) that go up to a spine
#define RANGES 256 // of slots, by job
#define AUDIENCES 256
#define TRAFFIC_CLASSES 64 // DSCPs
#define L2_ENTRIES 4096
#define ROUTES 1024

#endif
