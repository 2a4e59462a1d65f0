/* SPDX-License-Identifier: Apache-2.0 */
/* frame.h as plain functions, for Python. */
#include "frame.h"

/* Write headers and payload into `frame`; returns its length. */
uint32_t weir_frame_wrap(const weir_addresses *addresses, const uint8_t *payload, uint32_t length, uint8_t *frame)
{
    weir_frame_header(frame, addresses, length);
    memcpy(frame + WEIR_FRAME_OVERHEAD, payload, length);
    return WEIR_FRAME_OVERHEAD + length;
}

int32_t weir_frame_unwrap(const weir_addresses *addresses, const uint8_t *frame, uint32_t length)
{
    return weir_frame_payload(frame, length, addresses);
}
