/* SPDX-License-Identifier: Apache-2.0 */
#include "packet.h"

/* Flags that a packet of this type may have; 0: there is no such type. */
static uint8_t allowed_flags(uint32_t kind)
{
    switch (kind) {
    case WEIR_FLOW_CHUNK:
    case WEIR_FLOW_PROBE:
        return WEIR_FLAG_PROTECTED | WEIR_FLAG_TRIMMED;
    case WEIR_FLOW_BITMAP:
    case WEIR_FLOW_STOP:
        return WEIR_FLAG_PROTECTED | WEIR_FLAG_TRIMMED | WEIR_FLAG_CONGESTED;
    default:
        return 0;
    }
}

static enum weir_flow_verdict check_chunk(const flow_packet *p)
{
    if (p->index >= p->count) return FLOW_BAD_INDEX;
    if (p->first >= FLOW_MAX_ACCOUNTS) return FLOW_BAD_FIRST;
    const int trimmed = (p->flags & WEIR_FLAG_TRIMMED) != 0;
    if (p->length > FLOW_MAX_DATA || p->length % 4 || (p->length != 0) == trimmed) return FLOW_BAD_LENGTH;
    return FLOW_ACCEPTED;
}

static enum weir_flow_verdict check_probe(flow_packet *p)
{
    if (!p->index) return FLOW_BAD_INDEX;
    const int trimmed = (p->flags & WEIR_FLAG_TRIMMED) != 0;
    if (trimmed && !p->length) return FLOW_ACCEPTED;
    if (trimmed || p->length < FLOW_RANGE + FLOW_TERM ||
        p->length > FLOW_RANGE + FLOW_TERM * FLOW_MAX_ACCOUNTS || (p->length - FLOW_RANGE) % FLOW_TERM)
        return FLOW_BAD_LENGTH;
    p->end = weir_get32(p->data);
    p->final = weir_get32(p->data + 4);
    if (p->first > p->end || p->end > p->count) return FLOW_BAD_FIRST;
    return p->final > 1 ? FLOW_BAD_TERMS : FLOW_ACCEPTED;
}

/* Bits behind the tensor's last chunk must be zero. */
static enum weir_flow_verdict check_bits(flow_packet *p)
{
    if (p->first >= p->count) return FLOW_BAD_FIRST;
    const uint32_t left = p->count - p->first, most = left / 8 + (left % 8 != 0);
    if (!p->length || p->length > FLOW_MAX_BITMAP || p->length > most) return FLOW_BAD_LENGTH;
    p->bits = 8 * p->length < left ? 8 * p->length : left;
    if (p->bits % 8 && p->data[p->length - 1] >> p->bits % 8) return FLOW_BAD_BITMAP;
    return FLOW_ACCEPTED;
}

static enum weir_flow_verdict check_bitmap(flow_packet *p)
{
    if (p->flags & WEIR_FLAG_TRIMMED && !p->length) return FLOW_ACCEPTED;
    return check_bits(p);
}

static enum weir_flow_verdict check_stop(flow_packet *p)
{
    const int trimmed = (p->flags & WEIR_FLAG_TRIMMED) != 0;
    if (trimmed && p->length) return FLOW_BAD_LENGTH;
    if (!trimmed && !p->length && p->first) return FLOW_BAD_FIRST;
    return p->length ? check_bits(p) : FLOW_ACCEPTED;
}

enum weir_flow_verdict flow_decode(const uint8_t *payload, uint32_t length, flow_packet *p)
{
    if (length < WEIR_FLOW_SIZE) return FLOW_SHORT;
    *p = (flow_packet){
        .kind = payload[WEIR_FLOW_TYPE_OFFSET] & 15,
        .flags = payload[WEIR_FLOW_FLAGS_OFFSET],
        .layer = payload[WEIR_FLOW_LAYER_OFFSET] >> WEIR_FLOW_LAYER_SHIFT,
        .magnitude = payload[WEIR_FLOW_MAGNITUDE_OFFSET] & 15,
        .worker = payload[WEIR_FLOW_WORKER_OFFSET],
        .flow = weir_get32(payload + WEIR_FLOW_FLOW_OFFSET),
        .tensor = weir_get32(payload + WEIR_FLOW_TENSOR_OFFSET),
        .index = weir_get32(payload + WEIR_FLOW_INDEX_OFFSET),
        .count = weir_get32(payload + WEIR_FLOW_COUNT_OFFSET),
        .first = weir_get32(payload + WEIR_FLOW_FIRST_OFFSET),
        .data = length > WEIR_FLOW_SIZE ? payload + WEIR_FLOW_SIZE : NULL,
        .length = length - WEIR_FLOW_SIZE,
    };
    if (payload[WEIR_FLOW_VERSION_OFFSET] >> WEIR_FLOW_VERSION_SHIFT != WEIR_VERSION) return FLOW_BAD_VERSION;
    const uint8_t allowed = allowed_flags(p->kind);
    if (!allowed) return FLOW_BAD_TYPE;
    if (p->flags & ~allowed) return FLOW_BAD_FLAGS;
    if (p->layer >= WEIR_LAYER_CLASSES || p->magnitude >= WEIR_MAGNITUDE_CLASSES) return FLOW_BAD_CLASS;
    if (!p->count) return FLOW_BAD_COUNT;
    if (!p->tensor) return FLOW_BAD_TENSOR;
    switch (p->kind) {
    case WEIR_FLOW_CHUNK:
        return check_chunk(p);
    case WEIR_FLOW_PROBE:
        return check_probe(p);
    case WEIR_FLOW_BITMAP:
        return check_bitmap(p);
    default:
        return check_stop(p);
    }
}

void flow_write_header(uint8_t *out, const flow_head *head, uint32_t kind, uint32_t flags, uint32_t magnitude,
                       uint32_t index, uint32_t first)
{
    out[WEIR_FLOW_TYPE_OFFSET] = (uint8_t)(WEIR_VERSION << WEIR_FLOW_VERSION_SHIFT | kind);
    out[WEIR_FLOW_FLAGS_OFFSET] = (uint8_t)flags;
    out[WEIR_FLOW_LAYER_OFFSET] = (uint8_t)(head->layer << WEIR_FLOW_LAYER_SHIFT | magnitude);
    out[WEIR_FLOW_WORKER_OFFSET] = head->worker;
    weir_put32(out + WEIR_FLOW_FLOW_OFFSET, head->flow);
    weir_put32(out + WEIR_FLOW_TENSOR_OFFSET, head->tensor);
    weir_put32(out + WEIR_FLOW_INDEX_OFFSET, index);
    weir_put32(out + WEIR_FLOW_COUNT_OFFSET, head->count);
    weir_put32(out + WEIR_FLOW_FIRST_OFFSET, first);
}
