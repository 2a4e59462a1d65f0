// SPDX-License-Identifier: Apache-2.0
// Generated from wire/definition.py by `python -m weir.wire.generate`. Do not edit.
#ifndef WEIR_EVENTS_P4
#define WEIR_EVENTS_P4

const bit<32> EVENT_DROP_FORGED_SOURCE = 0x1a;
const bit<32> EVENT_DROP_WRONG_SENDER = 0x1b;
const bit<32> EVENT_DROP_FAR_ROUND = 0x1c;
const bit<32> EVENT_ROUND_SHED = 0x1d;
const bit<32> EVENT_DROP_NOT_PUBLISHER = 0x1e;
const bit<32> V1MODEL_EVENTS = 0x1f;

#endif
