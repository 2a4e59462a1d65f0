// SPDX-License-Identifier: Apache-2.0
// Frames on their way into a socket: copied one by one, sent with one call. Frames that follow one another and
// are alike may be one message, a batch, which the kernel segments where single frames are wanted.
#ifndef SOFTP4_BATCH_H
#define SOFTP4_BATCH_H

#include <sys/socket.h>

#include "loop_state.h"

enum {
    SEND_BATCH = 64,
    SEND_BYTES = 4 << 16,
    BATCH_FRAMES = 64,   // UDP_MAX_SEGMENTS, in every kernel that segments
    BATCH_BYTES = 65507, // UDP's longest payload over IPv4; of whole frames a little less than fits
    NOTE_BYTES = 32,     // of what the kernel is told about a message
};

// A message: frames of `size` bytes, the last of which may be shorter. Their first `headers` bytes are there once.
typedef struct {
    uint32_t frames, size, headers;
} gso_batch;

// A kind of socket: what it is told about messages, and how.
typedef struct {
    uint32_t prefix; // bytes of a note that come before the frames; the kernel finds no offload in zeros
    // Makes a message of several frames a batch. `note` is all zeros.
    void (*coalesce)(struct msghdr *message, const gso_batch *batch, uint8_t *note);
    void (*restore)(uint8_t *frame, uint32_t len); // what `coalesce` did to the headers; may be NULL
} send_kind;

typedef struct {
    const send_kind *kind;
    int segments; // whether the kernel segments batches
    uint32_t queued, written;
    gso_batch batches[SEND_BATCH];
    struct mmsghdr messages[SEND_BATCH];
    struct iovec vectors[SEND_BATCH][2]; // the note's prefix, frames
    _Alignas(8) uint8_t notes[SEND_BATCH][NOTE_BYTES];
    uint8_t bytes[SEND_BYTES];
} send_batch;

void batch_init(send_batch *b, const send_kind *kind, int segments);
int batch_add(send_batch *b, port *p, int fd, const uint8_t *frame, uint32_t len); // 0, or -1: too long
const uint8_t *batch_last(const send_batch *b); // the first frame of the last message, or NULL
// Adds the frame to the last message, with whose frames it shares its first `headers` bytes but for what `coalesce`
// sets, unless it is longer than they or the batch is full. Returns whether it was added.
int batch_join(send_batch *b, const uint8_t *frame, uint32_t len, uint32_t headers);
void batch_flush(send_batch *b, port *p, int fd); // counts in p->stats

// Socket buffers as large as the system lets us have.
enum { SOCKET_BUFFER = 8 << 20 };
void grow_buffer(int fd, int forced_option, int option);

#endif
