/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h as plain functions, for Python. */
#include "frame.h"

/* Write headers and payload into `frame`; returns its length. */
uint32_t weir_frame_wrap(const weir_addresses *addresses, const uint8_t *payload, uint32_t length,
                         uint8_t traffic_class, uint8_t *frame)
{
    weir_frame_header(frame, addresses, length, traffic_class);
    memcpy(frame + WEIR_FRAME_OVERHEAD, payload, length);
    return WEIR_FRAME_OVERHEAD + length;
}

/* The payload's length or -1, and the traffic class. */
int32_t weir_frame_unwrap(const weir_addresses *addresses, const uint8_t *frame, uint32_t length,
                          uint8_t *traffic_class)
{
    int32_t payload = weir_frame_payload(frame, length, addresses);
    if (payload >= 0) *traffic_class = weir_frame_traffic_class(frame);
    return payload;
}
