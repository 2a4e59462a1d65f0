// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "claimants.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

static int draw_number(claimants *c)
{
    // By its number: glibc has the function since 2.25, and wheels are for 2.17.
    return syscall(SYS_getrandom, &c->number, sizeof c->number, 0) == sizeof c->number ? 0 : -errno;
}

int claimants_init(claimants *c, const uint8_t key[SP4_KEY_BYTES])
{
    memcpy(c->key, key, SP4_KEY_BYTES);
    return draw_number(c);
}

static int same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family) return 0;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;
        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;
    return x->sin6_port == y->sin6_port && x->sin6_scope_id == y->sin6_scope_id &&
           memcmp(&x->sin6_addr, &y->sin6_addr, sizeof x->sin6_addr) == 0;
}

const claimant *claimants_find(const claimants *c, const struct sockaddr_storage *address, socklen_t size)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->all[i].size == size && same_address(&c->all[i].address, address)) return &c->all[i];
    return NULL;
}

static uint32_t word16(const uint8_t *bytes) { return (uint32_t)bytes[0] << 8 | bytes[1]; }

static int is_group(uint32_t label) { return label > 0xffff; }

// The UDP port that a frame goes to over IPv4 without options, or its group; 0: it is something else, or a later fragment.
static uint32_t label_of(const uint8_t *frame, uint32_t len)
{
    enum { ETHERNET = 14, IPV4 = 20, UDP = 8, ETHERTYPE_IPV4 = 0x0800, OFFSET = 0x1fff };
    const uint8_t *ip = frame + ETHERNET;
    if (len < ETHERNET + IPV4 + UDP || word16(frame + 12) != ETHERTYPE_IPV4 || ip[0] != 0x45 ||
        ip[9] != IPPROTO_UDP || word16(ip + 6) & OFFSET)
        return 0;
    return ip[16] >> 4 == 14 /* 224.0.0.0/4 */ ? word16(ip + 16) << 16 | word16(ip + 18)
                                               : word16(ip + IPV4 + 2);
}

const claimant *claimants_for(const claimants *c, const uint8_t *frame, uint32_t len, const claimant *after)
{
    const claimant *newest = c->count ? &c->all[0] : NULL;
    const uint32_t label = c->count > 1 ? label_of(frame, len) : 0;
    if (after && !is_group(after->label)) return NULL;
    for (uint32_t i = after ? (uint32_t)(after - c->all) + 1 : 0; i < c->count; i++) {
        if (c->all[i].label == label && label) return &c->all[i];
        if (c->all[i].proofs > newest->proofs) newest = &c->all[i];
    }
    return after ? NULL : newest;
}

// The place of a new proof: that of its address or, but for a group, of its label; a free one, or the oldest's.
static claimant *place_for(claimants *c, const sp4_claim *proof, const struct sockaddr_storage *from,
                           socklen_t size)
{
    claimant *oldest = &c->all[0];
    for (uint32_t i = 0; i < c->count; i++) {
        if ((c->all[i].label == proof->label && !is_group(proof->label)) ||
            (c->all[i].size == size && same_address(&c->all[i].address, from)))
            return &c->all[i];
        if (c->all[i].proofs < oldest->proofs) oldest = &c->all[i];
    }
    return c->count < MOST_CLAIMANTS ? &c->all[c->count++] : oldest;
}

int claimants_hear(claimants *c, const uint8_t *message, const struct sockaddr_storage *from, socklen_t size,
                   uint8_t answer[SP4_CLAIM_BYTES])
{
    sp4_claim said;
    if (!sp4_claim_read(message, &said, c->key)) return 0;
    if (said.kind == SP4_CLAIM_ASK) {
        sp4_claim_write(answer, &(sp4_claim){SP4_CLAIM_CHALLENGE, said.label, c->number}, c->key);
        return 1;
    }
    if (said.kind != SP4_CLAIM_PROOF || said.number != c->number || draw_number(c) != 0) return 0;
    *place_for(c, &said, from, size) = (claimant){*from, size, said.label, ++c->proofs};
    sp4_claim_write(answer, &(sp4_claim){SP4_CLAIM_TAKEN, said.label, said.number}, c->key);
    return 1;
}
