// SPDX-License-Identifier: Apache-2.0
// Generated from wire/definition.py by `python -m weir.wire.generate`. Do not edit.
#ifndef WEIR_WIRE_P4
#define WEIR_WIRE_P4

@noWarn("unused") const bit<4> VERSION = 0x3;
@noWarn("unused") const bit<16> UDP_PORT = 0x2483;
@noWarn("unused") const bit<16> FLOW_PORT = 0x2484;
@noWarn("unused") const bit<32> GROUP_LANES = 0x20;
@noWarn("unused") const bit<32> GROUPS = 0x8;
@noWarn("unused") const bit<32> SLOT_LANES = 0x100;
@noWarn("unused") const bit<32> MAX_COLUMNS = 0x8;
@noWarn("unused") const bit<8> MAX_CHILDREN = 0x20;
@noWarn("unused") const bit<32> MAX_WORKERS = 0x8000;
@noWarn("unused") const bit<4> MIN_BLOCK_LOG2 = 0x5;
@noWarn("unused") const bit<4> MAX_BLOCK_LOG2 = 0x8;
@noWarn("unused") const bit<32> NO_BLOCK = 0xffffffff;
@noWarn("unused") const bit<16> WHOLE_PATH = 0x7fff;
@noWarn("unused") const bit<16> AUDIENCE_EXCEPT = 0x8000;
@noWarn("unused") const bit<16> AUDIENCE_ALL = 0xffff;
@noWarn("unused") const bit<4> LAYER_CLASSES = 0x4;
@noWarn("unused") const bit<4> MAGNITUDE_CLASSES = 0x3;
@noWarn("unused") const bit<6> RELIABLE_DSCP = 0x38;
@noWarn("unused") const bit<6> BEST_EFFORT_DSCP = 0x0;
@noWarn("unused") const bit<2> NOT_ECT = 0x0;
@noWarn("unused") const bit<2> ECT = 0x2;
@noWarn("unused") const bit<2> CE = 0x3;
@noWarn("unused") const bit<32> SPINE_CLASSES = 0x10;
@noWarn("unused") const bit<4> TYPE_CONTRIBUTION = 0x1;
@noWarn("unused") const bit<4> TYPE_RESULT = 0x2;
@noWarn("unused") const bit<4> TYPE_REPEAT = 0x3;
@noWarn("unused") const bit<4> FLOW_CHUNK = 0x1;
@noWarn("unused") const bit<4> FLOW_PROBE = 0x2;
@noWarn("unused") const bit<4> FLOW_BITMAP = 0x3;
@noWarn("unused") const bit<4> FLOW_STOP = 0x4;
@noWarn("unused") const bit<8> FLAG_PROTECTED = 0x1;
@noWarn("unused") const bit<8> FLAG_TRIMMED = 0x2;
@noWarn("unused") const bit<8> FLAG_CONGESTED = 0x4;
@noWarn("unused") const bit<8> FLAG_ANSWER = 0x8;
@noWarn("unused") const bit<8> FLAG_DISAGREE = 0x10;
@noWarn("unused") const bit<8> FLAG_ELSEWHERE = 0x20;
@noWarn("unused") const bit<8> FLAGS = 0x3f;
@noWarn("unused") const bit<32> TREATMENT_QUEUED = 0x0;
@noWarn("unused") const bit<32> TREATMENT_TRIMMED = 0x1;
@noWarn("unused") const bit<32> TREATMENT_MARKED = 0x2;
@noWarn("unused") const bit<32> TREATMENT_DROPPED = 0x3;
@noWarn("unused") const bit<2> SPRAY_HASH = 0x0;
@noWarn("unused") const bit<2> SPRAY_ROUND_ROBIN = 0x1;
@noWarn("unused") const bit<2> SPRAY_RANDOM = 0x2;
@noWarn("unused") const bit<2> SPRAY_LEAST_LOADED = 0x3;
@noWarn("unused") const bit<4> OP_ADD = 0x1;
@noWarn("unused") const bit<4> OP_MAX = 0x2;
@noWarn("unused") const bit<4> OP_OR = 0x3;
@noWarn("unused") const bit<32> EVENT_CONTRIBUTION = 0x0;
@noWarn("unused") const bit<32> EVENT_ROUND_COMPLETE = 0x1;
@noWarn("unused") const bit<32> EVENT_DUPLICATE_PENDING = 0x2;
@noWarn("unused") const bit<32> EVENT_DUPLICATE_ANSWERED = 0x3;
@noWarn("unused") const bit<32> EVENT_FORWARDED = 0x4;
@noWarn("unused") const bit<32> EVENT_ARP_ANSWERED = 0x5;
@noWarn("unused") const bit<32> EVENT_DROP_PARSER_ERROR = 0x6;
@noWarn("unused") const bit<32> EVENT_DROP_MALFORMED = 0x7;
@noWarn("unused") const bit<32> EVENT_DROP_NOT_A_CONTRIBUTION = 0x8;
@noWarn("unused") const bit<32> EVENT_DROP_NOT_ADMITTED = 0x9;
@noWarn("unused") const bit<32> EVENT_DROP_SLOT_RANGE = 0xa;
@noWarn("unused") const bit<32> EVENT_DROP_STALE_ROUND = 0xb;
@noWarn("unused") const bit<32> EVENT_DROP_NO_ROUTE = 0xc;
@noWarn("unused") const bit<32> EVENT_DROP_TTL_EXPIRED = 0xd;
@noWarn("unused") const bit<32> EVENT_DROP_NO_RECEIVER = 0xe;
@noWarn("unused") const bit<32> EVENT_DROP_NO_ROOM = 0xf;
@noWarn("unused") const bit<32> EVENT_PARTIAL_SENT = 0x10;
@noWarn("unused") const bit<32> EVENT_PARTIAL_REPEATED = 0x11;
@noWarn("unused") const bit<32> EVENT_RESULT_STORED = 0x12;
@noWarn("unused") const bit<32> EVENT_RESULT_RELAYED = 0x13;
@noWarn("unused") const bit<32> EVENT_RESULT_REPEATED = 0x14;
@noWarn("unused") const bit<32> EVENT_REPEAT_ASKED = 0x15;
@noWarn("unused") const bit<32> EVENT_DROP_SIMULATED = 0x16;
@noWarn("unused") const bit<32> EVENT_DROP_CONGESTION = 0x17;
@noWarn("unused") const bit<32> EVENT_DROP_NO_PATH = 0x18;
@noWarn("unused") const bit<32> EVENT_DISAGREEMENT = 0x19;
@noWarn("unused") const bit<32> EVENTS = 0x1a;

// what every Weir packet starts with
header weir_t {
    bit<4> version; // VERSION
    bit<4> kind; // PacketType
    bit<8> flags; // Flag
    bit<4> op; // Op
    bit<4> block_log2; // log2 of the block size in lanes, 5 to 8
    bit<8> groups; // bit g set: lanes 32g to 32g+31 of the slot are in this packet
    bit<32> job; // job, chosen by the controller; a new membership is a new job
    bit<8> worker; // contribution: number of the child that sends it; result: of that which gets it
    bit<4> layer; // layer class, below LAYER_CLASSES
    bit<4> magnitude; // magnitude class, below MAGNITUDE_CLASSES: its blocks' greatest
    bit<16> slot; // slot within the job's range
    bit<32> round; // round of this slot, from 1, serial arithmetic (RFC 1982); its parity picks the version
    bit<32> included; // in a switch's: bit c set when lanes of its child c are in the sums; else zero
    bit<16> audience; // who gets the lanes of the result: a worker's path, AUDIENCE_EXCEPT and a path, or AUDIENCE_ALL
    bit<16> count; // workers whose lanes are in this packet's: 0 or 1 in a worker's
    bit<32> check; // fingerprint of the operation: all packets of a round must have the same
}

// one fused column: the block this round is about, and the look-ahead (OmniReduce)
header column_t {
    bit<32> block; // index of the block requested in this round, NO_BLOCK when the column is done
    bit<32> next; // contribution: sender's next non-zero block; result: the minimum, requested next
}

// what every flow packet starts with: bounded-loss transfer of tensors (docs/internals/flows.md)
header flow_t {
    bit<4> version; // VERSION
    bit<4> kind; // FlowType
    bit<8> flags; // Flag
    bit<4> layer; // layer class, below LAYER_CLASSES
    bit<4> magnitude; // magnitude class, below MAGNITUDE_CLASSES
    bit<8> worker; // the worker this flow is of, whoever sends
    bit<32> flow; // flow id, chosen by who opens it
    bit<32> tensor; // number of the tensor within the flow, from 1
    bit<32> index; // chunk: its index; probe: its number, from 1; bitmap, stop: the probe answered, or zero
    bit<32> count; // chunks of the tensor
    bit<32> first; // chunk: its account; probe: first chunk asked about; bitmap, stop: chunk of the first bit
}

// one group of lanes
header lanes_t {
    bit<32> l0;
    bit<32> l1;
    bit<32> l2;
    bit<32> l3;
    bit<32> l4;
    bit<32> l5;
    bit<32> l6;
    bit<32> l7;
    bit<32> l8;
    bit<32> l9;
    bit<32> l10;
    bit<32> l11;
    bit<32> l12;
    bit<32> l13;
    bit<32> l14;
    bit<32> l15;
    bit<32> l16;
    bit<32> l17;
    bit<32> l18;
    bit<32> l19;
    bit<32> l20;
    bit<32> l21;
    bit<32> l22;
    bit<32> l23;
    bit<32> l24;
    bit<32> l25;
    bit<32> l26;
    bit<32> l27;
    bit<32> l28;
    bit<32> l29;
    bit<32> l30;
    bit<32> l31;
}

#endif
