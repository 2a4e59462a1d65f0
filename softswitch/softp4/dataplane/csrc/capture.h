// SPDX-License-Identifier: Apache-2.0
// Writes frames to a file: pcapng (draft-ietf-opsawg-pcapng), one interface per switch port; or pcap, which has
// neither interfaces nor directions.
#ifndef SOFTP4_CAPTURE_H
#define SOFTP4_CAPTURE_H

#include <stdint.h>

enum { CAPTURE_IN = 1, CAPTURE_OUT = 2 }; // the direction bits of epb_flags

typedef struct capture capture;

capture *capture_open(const char *path, int pcapng); // NULL with errno set
uint32_t capture_interface(capture *c, const char *name);
void capture_frame(capture *c, uint32_t interface, uint64_t now_ns, const uint8_t *frame, uint32_t len,
                   uint32_t direction);
void capture_flush(capture *c);
int capture_error(const capture *c); // 0, or the errno that ended the capture; the file has whole frames only
int capture_close(capture *c);       // the same

#endif
