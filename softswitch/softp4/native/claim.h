/* SPDX-License-Identifier: Apache-2.0 */
/* How a host takes a port of a switch over an IP network: it proves that it has the port's key.
 *
 *     host                       switch
 *     ASK         ------------>
 *                 <------------  CHALLENGE  a number that nobody could foresee
 *     PROOF       ------------>             made of the number, with the key
 *                 <------------  TAKEN      from now on, this address is the host's
 *
 * Each of them is one datagram of SP4_CLAIM_BYTES, no longer than the one that it answers. They travel between
 * frames, which are longer. A number serves for one proof: to repeat a proof changes nothing. A host whose address
 * changes asks again. `label`: a host may hold its port by several addresses at once, one for each label: frames to
 * the UDP port of that number go there. A label may also be the IPv4 address of a group, of which several addresses of
 * a port may be members: frames to the group go to all of these.
 *
 * Layout: magic 8, kind 1, zero 3, label 4, number 8, tag 8. Big-endian. */
#ifndef SOFTP4_CLAIM_H
#define SOFTP4_CLAIM_H

#include <string.h>

#include "siphash.h"

enum { SP4_CLAIM_BYTES = 32, SP4_KEY_BYTES = 16 };

enum sp4_claim_kind { SP4_CLAIM_ASK = 1, SP4_CLAIM_CHALLENGE, SP4_CLAIM_PROOF, SP4_CLAIM_TAKEN };

typedef struct {
    uint8_t kind;
    uint32_t label;
    uint64_t number; /* of ASK: 0 */
} sp4_claim;

/* A group address, which is no frame's destination by chance. */
static const uint8_t SP4_CLAIM_MAGIC[8] = {'s', 'p', '4', 'c', 'l', 'a', 'i', 'm'};

static inline int sp4_is_claim(const uint8_t *bytes, uint32_t length)
{
    return length == SP4_CLAIM_BYTES && memcmp(bytes, SP4_CLAIM_MAGIC, sizeof SP4_CLAIM_MAGIC) == 0;
}

/* What only who has the key can tell. Of messages that prove nothing: 0. */
static inline uint64_t sp4_claim_tag(const sp4_claim *c, const uint8_t key[SP4_KEY_BYTES])
{
    if (c->kind < SP4_CLAIM_PROOF) return 0;
    return sp4_siphash(key, sp4_siphash(key, c->number) ^ ((uint64_t)c->kind << 32 | c->label));
}

static inline void sp4_claim_word(uint8_t *out, uint64_t word)
{
    for (int i = 7; i >= 0; i--, word >>= 8) out[i] = (uint8_t)word;
}

static inline uint64_t sp4_claim_number(const uint8_t *in)
{
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word = word << 8 | in[i];
    return word;
}

static inline void sp4_claim_label(uint8_t *out, uint32_t label)
{
    for (int i = 3; i >= 0; i--, label >>= 8) out[i] = (uint8_t)label;
}

static inline void sp4_claim_write(uint8_t out[SP4_CLAIM_BYTES], const sp4_claim *c,
                                   const uint8_t key[SP4_KEY_BYTES])
{
    memset(out, 0, SP4_CLAIM_BYTES);
    memcpy(out, SP4_CLAIM_MAGIC, sizeof SP4_CLAIM_MAGIC);
    out[8] = c->kind;
    sp4_claim_label(out + 12, c->label);
    sp4_claim_word(out + 16, c->number);
    sp4_claim_word(out + 24, sp4_claim_tag(c, key));
}

/* Whether the message, of SP4_CLAIM_BYTES, is one that the key's owner may have made. */
static inline int sp4_claim_read(const uint8_t in[SP4_CLAIM_BYTES], sp4_claim *c,
                                 const uint8_t key[SP4_KEY_BYTES])
{
    const uint32_t label = (uint32_t)in[12] << 24 | (uint32_t)in[13] << 16 | (uint32_t)in[14] << 8 | in[15];
    *c = (sp4_claim){in[8], label, sp4_claim_number(in + 16)};
    return c->kind >= SP4_CLAIM_ASK && c->kind <= SP4_CLAIM_TAKEN &&
           sp4_claim_number(in + 24) == sp4_claim_tag(c, key);
}

#endif
