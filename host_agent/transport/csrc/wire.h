/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from wire/definition.py by `python -m weir.wire.generate`. Do not edit. */
#ifndef WEIR_WIRE_H
#define WEIR_WIRE_H

#define WEIR_VERSION 3u
#define WEIR_UDP_PORT 9347u
#define WEIR_FLOW_PORT 9348u
#define WEIR_GROUP_LANES 32u
#define WEIR_GROUPS 8u
#define WEIR_SLOT_LANES 256u
#define WEIR_MAX_COLUMNS 8u
#define WEIR_MAX_CHILDREN 32u
#define WEIR_MAX_WORKERS 32768u
#define WEIR_MIN_BLOCK_LOG2 5u
#define WEIR_MAX_BLOCK_LOG2 8u
#define WEIR_NO_BLOCK 4294967295u
#define WEIR_WHOLE_PATH 32767u
#define WEIR_AUDIENCE_EXCEPT 32768u
#define WEIR_AUDIENCE_ALL 65535u
#define WEIR_LAYER_CLASSES 4u
#define WEIR_MAGNITUDE_CLASSES 3u
#define WEIR_RELIABLE_DSCP 56u
#define WEIR_BEST_EFFORT_DSCP 0u
#define WEIR_NOT_ECT 0u
#define WEIR_ECT 2u
#define WEIR_CE 3u
#define WEIR_SPINE_CLASSES 16u
#define WEIR_TYPE_CONTRIBUTION 1u
#define WEIR_TYPE_RESULT 2u
#define WEIR_TYPE_REPEAT 3u
#define WEIR_FLOW_CHUNK 1u
#define WEIR_FLOW_PROBE 2u
#define WEIR_FLOW_BITMAP 3u
#define WEIR_FLOW_STOP 4u
#define WEIR_FLAG_PROTECTED 1u
#define WEIR_FLAG_TRIMMED 2u
#define WEIR_FLAG_CONGESTED 4u
#define WEIR_FLAG_ANSWER 8u
#define WEIR_FLAG_DISAGREE 16u
#define WEIR_FLAG_ELSEWHERE 32u
#define WEIR_FLAGS 63u
#define WEIR_TREATMENT_QUEUED 0u
#define WEIR_TREATMENT_TRIMMED 1u
#define WEIR_TREATMENT_MARKED 2u
#define WEIR_TREATMENT_DROPPED 3u
#define WEIR_SPRAY_HASH 0u
#define WEIR_SPRAY_ROUND_ROBIN 1u
#define WEIR_SPRAY_RANDOM 2u
#define WEIR_SPRAY_LEAST_LOADED 3u
#define WEIR_OP_ADD 1u
#define WEIR_OP_MAX 2u
#define WEIR_OP_OR 3u
#define WEIR_EVENT_CONTRIBUTION 0u
#define WEIR_EVENT_ROUND_COMPLETE 1u
#define WEIR_EVENT_DUPLICATE_PENDING 2u
#define WEIR_EVENT_DUPLICATE_ANSWERED 3u
#define WEIR_EVENT_FORWARDED 4u
#define WEIR_EVENT_ARP_ANSWERED 5u
#define WEIR_EVENT_DROP_PARSER_ERROR 6u
#define WEIR_EVENT_DROP_MALFORMED 7u
#define WEIR_EVENT_DROP_NOT_A_CONTRIBUTION 8u
#define WEIR_EVENT_DROP_NOT_ADMITTED 9u
#define WEIR_EVENT_DROP_SLOT_RANGE 10u
#define WEIR_EVENT_DROP_STALE_ROUND 11u
#define WEIR_EVENT_DROP_NO_ROUTE 12u
#define WEIR_EVENT_DROP_TTL_EXPIRED 13u
#define WEIR_EVENT_DROP_NO_RECEIVER 14u
#define WEIR_EVENT_DROP_NO_ROOM 15u
#define WEIR_EVENT_PARTIAL_SENT 16u
#define WEIR_EVENT_PARTIAL_REPEATED 17u
#define WEIR_EVENT_RESULT_STORED 18u
#define WEIR_EVENT_RESULT_RELAYED 19u
#define WEIR_EVENT_RESULT_REPEATED 20u
#define WEIR_EVENT_REPEAT_ASKED 21u
#define WEIR_EVENT_DROP_SIMULATED 22u
#define WEIR_EVENT_DROP_CONGESTION 23u
#define WEIR_EVENT_DROP_NO_PATH 24u
#define WEIR_EVENT_DISAGREEMENT 25u
#define WEIR_EVENTS 26u
#define WEIR_WIDE_BLOCK_LOG2 10u
#define WEIR_WIDE_LANES 1024u
#define WEIR_KEY_BYTES 16u
#define WEIR_WEIGHTS_MOST_DATA 1088u
#define WEIR_WEIGHTS_TYPE_DATA 1u
#define WEIR_WEIGHTS_TYPE_STATE 2u
#define WEIR_WEIGHTS_TYPE_ASK 3u

/* what every Weir packet starts with */
#define WEIR_WEIR_SIZE 28u
#define WEIR_WEIR_VERSION_OFFSET 0u /* VERSION */
#define WEIR_WEIR_VERSION_SHIFT 4u
#define WEIR_WEIR_TYPE_OFFSET 0u /* PacketType */
#define WEIR_WEIR_TYPE_SHIFT 0u
#define WEIR_WEIR_FLAGS_OFFSET 1u /* Flag */
#define WEIR_WEIR_OP_OFFSET 2u /* Op */
#define WEIR_WEIR_OP_SHIFT 4u
#define WEIR_WEIR_BLOCK_LOG2_OFFSET 2u /* log2 of the block size in lanes, 5 to 8 */
#define WEIR_WEIR_BLOCK_LOG2_SHIFT 0u
#define WEIR_WEIR_GROUPS_OFFSET 3u /* bit g set: lanes 32g to 32g+31 of the slot are in this packet */
#define WEIR_WEIR_JOB_OFFSET 4u /* job, chosen by the controller; a new membership is a new job */
#define WEIR_WEIR_WORKER_OFFSET 8u /* contribution: number of the child that sends it; result: of that which gets it */
#define WEIR_WEIR_LAYER_OFFSET 9u /* layer class, below LAYER_CLASSES */
#define WEIR_WEIR_LAYER_SHIFT 4u
#define WEIR_WEIR_MAGNITUDE_OFFSET 9u /* magnitude class, below MAGNITUDE_CLASSES: its blocks' greatest */
#define WEIR_WEIR_MAGNITUDE_SHIFT 0u
#define WEIR_WEIR_SLOT_OFFSET 10u /* slot within the job's range */
#define WEIR_WEIR_ROUND_OFFSET 12u /* round of this slot, from 1, serial arithmetic (RFC 1982); its parity picks the version */
#define WEIR_WEIR_INCLUDED_OFFSET 16u /* in a switch's: bit c set when lanes of its child c are in the sums; else zero */
#define WEIR_WEIR_AUDIENCE_OFFSET 20u /* who gets the lanes of the result: a worker's path, AUDIENCE_EXCEPT and a path, or AUDIENCE_ALL */
#define WEIR_WEIR_COUNT_OFFSET 22u /* workers whose lanes are in this packet's: 0 or 1 in a worker's */
#define WEIR_WEIR_CHECK_OFFSET 24u /* fingerprint of the operation: all packets of a round must have the same */

/* one fused column: the block this round is about, and the look-ahead (OmniReduce) */
#define WEIR_COLUMN_SIZE 8u
#define WEIR_COLUMN_BLOCK_OFFSET 0u /* index of the block requested in this round, NO_BLOCK when the column is done */
#define WEIR_COLUMN_NEXT_OFFSET 4u /* contribution: sender's next non-zero block; result: the minimum, requested next */

/* what every flow packet starts with: bounded-loss transfer of tensors (docs/internals/flows.md) */
#define WEIR_FLOW_SIZE 24u
#define WEIR_FLOW_VERSION_OFFSET 0u /* VERSION */
#define WEIR_FLOW_VERSION_SHIFT 4u
#define WEIR_FLOW_TYPE_OFFSET 0u /* FlowType */
#define WEIR_FLOW_TYPE_SHIFT 0u
#define WEIR_FLOW_FLAGS_OFFSET 1u /* Flag */
#define WEIR_FLOW_LAYER_OFFSET 2u /* layer class, below LAYER_CLASSES */
#define WEIR_FLOW_LAYER_SHIFT 4u
#define WEIR_FLOW_MAGNITUDE_OFFSET 2u /* magnitude class, below MAGNITUDE_CLASSES */
#define WEIR_FLOW_MAGNITUDE_SHIFT 0u
#define WEIR_FLOW_WORKER_OFFSET 3u /* the worker this flow is of, whoever sends */
#define WEIR_FLOW_FLOW_OFFSET 4u /* flow id, chosen by who opens it */
#define WEIR_FLOW_TENSOR_OFFSET 8u /* number of the tensor within the flow, from 1 */
#define WEIR_FLOW_INDEX_OFFSET 12u /* chunk: its index; probe: its number, from 1; bitmap, stop: the probe answered, or zero */
#define WEIR_FLOW_COUNT_OFFSET 16u /* chunks of the tensor */
#define WEIR_FLOW_FIRST_OFFSET 20u /* chunk: its account; probe: first chunk asked about; bitmap, stop: chunk of the first bit */

/* what every packet of published weights starts with (docs/guides/weights.md) */
#define WEIR_WEIGHTS_SIZE 28u
#define WEIR_WEIGHTS_VERSION_OFFSET 0u /* VERSION */
#define WEIR_WEIGHTS_VERSION_SHIFT 4u
#define WEIR_WEIGHTS_TYPE_OFFSET 0u /* WeightsType */
#define WEIR_WEIGHTS_TYPE_SHIFT 0u
#define WEIR_WEIGHTS_SNAPSHOT_OFFSET 1u /* 1: of the whole weights of a version; 0: of the update that makes the version */
#define WEIR_WEIGHTS_SIZE_OFFSET 2u /* bytes of data that follow */
#define WEIR_WEIGHTS_JOB_OFFSET 4u /* job of the publisher */
#define WEIR_WEIGHTS_NUMBER_OFFSET 8u /* version of the weights; state: the newest; question: 0 asks for the state */
#define WEIR_WEIGHTS_INDEX_OFFSET 12u /* data: the packet's; state: oldest update kept; question: packet of the first bit */
#define WEIR_WEIGHTS_COUNT_OFFSET 16u /* data, state: packets of the message; question: the version that the asker has */
#define WEIR_WEIGHTS_CHECK_OFFSET 20u /* SipHash-2-4, by the job's key, of the fields before, four zeros and the data */

#endif
