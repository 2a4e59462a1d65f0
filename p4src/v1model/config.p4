// SPDX-License-Identifier: Apache-2.0
// Sizes and numbers that a deployment may change: p4c-bm2-ss -DSLOTS=4096 ...
#ifndef WEIR_CONFIG_P4
#define WEIR_CONFIG_P4

// Slots of the switch, shared by all jobs. The controller hands out ranges of them.
#ifndef SLOTS
#define SLOTS 1024
#endif

// Each slot has two versions, used in turn by round parity; a cell is one version of one slot.
#define CELLS (SLOTS * 2)

// -DWIDE: wide packets are taken, too, those of one block of WIDE_LANES lanes, for which a cell then has room.

// Where packet-in and packet-out appear: simple_switch_grpc and the soft switch take it as --cpu-port.
#ifndef CPU_PORT
#define CPU_PORT 510
#endif

// By how many packets a path's queue must be longer than another's before LEAST_LOADED passes it over. With
// fewer it follows chance more than load, and what is behind the next switch gets uneven shares.
#ifndef SPRAY_MARGIN
#define SPRAY_MARGIN 4
#endif

// Table sizes.
#define AGGREGATION_ADDRESSES 16
#define STATIONS 4096 // (port, MAC) of hosts and neighbouring switches
#define WORKERS 4096
#define L2_ENTRIES 4096
#define ROUTES 4096
#define PARENTS 1024 // (port, job) by which results come down
#define UPLINKS 4096 // (job, class of slots) that go up to a spine
#define TRAFFIC_CLASSES 64 // DSCPs
#define FAULTS 512
#define SPRAY_GROUPS 64
#define PATHS 1024

// Ports have nine bits, queues of a port three.
#define QUEUES (512 * 8)

#endif
