/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of published weights: those of a message written one behind the other, and those that came put to their
 * places in it. The format is wire.definition.WEIGHTS. See packets.py. */
#include <stdint.h>
#include <string.h>

#include "lanes.h"
#include "siphash.h"
#include "wire.h"

enum {
    HEADER = WEIR_WEIGHTS_SIZE,
    MOST = WEIR_WEIGHTS_MOST_DATA,
    CHECK = WEIR_WEIGHTS_CHECK_OFFSET,
    MISSING = 0, /* of a packet that has not come */
    THERE = 1,
    ASKED = 2 /* missing, and asked for */
};

/* The check of a packet, which is behind the header's other fields. */
static uint64_t check_of(const uint8_t *key, const uint8_t *packet, uint32_t size)
{
    uint64_t v[4];
    sp4_sip_begin(v, key);
    sp4_sip_word(v, sp4_little64(packet));
    sp4_sip_word(v, sp4_little64(packet + 8));
    uint8_t last[8] = {0};
    memcpy(last, packet + 16, CHECK - 16);
    sp4_sip_word(v, sp4_little64(last));
    return sp4_sip_end(v, packet + HEADER, size, 24 + size);
}

/* Write the check of a packet of `length` bytes. */
void weir_weights_sign(const uint8_t *key, uint8_t *packet, uint32_t length)
{
    const uint64_t check = check_of(key, packet, length - HEADER);
    weir_put32(packet + CHECK, (uint32_t)(check >> 32));
    weir_put32(packet + CHECK + 4, (uint32_t)check);
}

int weir_weights_is_signed(const uint8_t *key, const uint8_t *packet, uint32_t length)
{
    const uint64_t check = check_of(key, packet, length - HEADER);
    return weir_get32(packet + CHECK) == (uint32_t)(check >> 32) &&
           weir_get32(packet + CHECK + 4) == (uint32_t)check;
}

/* What all packets of a message have in common. Mirrored by native.py. */
typedef struct {
    uint32_t job, number, snapshot, packets;
} weir_message;

/* Write packets that follow one another, from number `first` on: whole ones, and a last one of what is left of the
 * data. Returns their bytes. */
uint64_t weir_weights_write(const uint8_t *key, const weir_message *of, uint32_t first, const uint8_t *data,
                            uint64_t length, uint8_t *out)
{
    uint8_t *at = out;
    for (uint32_t index = first; length; index++) {
        const uint32_t size = length < MOST ? (uint32_t)length : MOST;
        at[WEIR_WEIGHTS_VERSION_OFFSET] =
            WEIR_VERSION << WEIR_WEIGHTS_VERSION_SHIFT | WEIR_WEIGHTS_TYPE_DATA << WEIR_WEIGHTS_TYPE_SHIFT;
        at[WEIR_WEIGHTS_SNAPSHOT_OFFSET] = (uint8_t)of->snapshot;
        weir_put16(at + WEIR_WEIGHTS_SIZE_OFFSET, (uint16_t)size);
        weir_put32(at + WEIR_WEIGHTS_JOB_OFFSET, of->job);
        weir_put32(at + WEIR_WEIGHTS_NUMBER_OFFSET, of->number);
        weir_put32(at + WEIR_WEIGHTS_INDEX_OFFSET, index);
        weir_put32(at + WEIR_WEIGHTS_COUNT_OFFSET, of->packets);
        memcpy(at + HEADER, data, size);
        weir_weights_sign(key, at, HEADER + size);
        at += HEADER + size;
        data += size;
        length -= size;
    }
    return (uint64_t)(at - out);
}

/* A message of which packets come. Mirrored by native.py. body: MOST bytes for each packet. there: its state. received:
 * packets that are there. asked: packets that were asked for and have not come. reach: the highest number that came,
 * plus 1. last_but_one, last: bytes of these packets, once they are there. */
typedef struct {
    uint8_t *body, *there;
    weir_message of;
    uint32_t received, duplicates, asked, reach, last_but_one, last;
} weir_part;

/* Whether a packet is one of this message, and as long as it must be. */
static int belongs(const uint8_t *packet, uint32_t length, const weir_message *of)
{
    if (length <= HEADER ||
        packet[0] != (WEIR_VERSION << WEIR_WEIGHTS_VERSION_SHIFT | WEIR_WEIGHTS_TYPE_DATA) ||
        packet[WEIR_WEIGHTS_SNAPSHOT_OFFSET] != of->snapshot)
        return 0;
    const uint32_t size = length - HEADER, index = weir_get32(packet + WEIR_WEIGHTS_INDEX_OFFSET);
    return size == weir_get16(packet + WEIR_WEIGHTS_SIZE_OFFSET) && size <= MOST && index < of->packets &&
           (size == MOST || index + 2 >= of->packets) &&
           weir_get32(packet + WEIR_WEIGHTS_JOB_OFFSET) == of->job &&
           weir_get32(packet + WEIR_WEIGHTS_NUMBER_OFFSET) == of->number &&
           weir_get32(packet + WEIR_WEIGHTS_COUNT_OFFSET) == of->packets;
}

static void put(weir_part *part, const uint8_t *packet, uint32_t size)
{
    const uint32_t index = weir_get32(packet + WEIR_WEIGHTS_INDEX_OFFSET);
    uint8_t *there = part->there + index;
    if (*there == THERE) {
        part->duplicates++;
        return;
    }
    memcpy(part->body + (uint64_t)index * MOST, packet + HEADER, size);
    if (*there == ASKED) part->asked--;
    *there = THERE;
    part->received++;
    if (index >= part->reach) part->reach = index + 1;
    if (index + 2 == part->of.packets) part->last_but_one = size;
    if (index + 1 == part->of.packets) part->last = size;
}

/* Put packets to their places, from place `first` on, up to one that is none of this message, or not signed. Returns the
 * place of that one. places: of each packet in memory: at, length. */
uint32_t weir_weights_gather(const uint8_t *key, const uint8_t *memory, const uint32_t *places,
                             uint32_t first, uint32_t count, weir_part *part)
{
    for (; first < count; first++) {
        const uint8_t *packet = memory + places[2 * first];
        const uint32_t length = places[2 * first + 1];
        if (!belongs(packet, length, &part->of) || !weir_weights_is_signed(key, packet, length)) break;
        put(part, packet, length - HEADER);
    }
    return first;
}
