/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel is told of datagrams, and tells: traffic class, and batches of one size (UDP_SEGMENT, UDP_GRO). */
#ifndef WEIR_DATAGRAMS_H
#define WEIR_DATAGRAMS_H

#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#ifndef SOL_UDP
#define SOL_UDP 17
#endif
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

/* Room for what is said of a message: traffic class, and size of a batch's datagrams. */
typedef union {
    struct cmsghdr header;
    uint8_t bytes[2 * CMSG_SPACE(sizeof(int))];
} weir_control;

/* Errors that may pass, and say no more than that a packet was lost. */
static inline int weir_is_loss(int error)
{
    switch (error) {
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
    case ENOBUFS:
    case EPERM: /* a firewall's */
        return 1;
    default:
        return 0;
    }
}

/* The call may go through later. */
static inline int weir_is_later(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static inline void weir_add_control(struct msghdr *message, int level, int type, const void *value,
                                    size_t bytes)
{
    struct cmsghdr *c = (void *)((uint8_t *)message->msg_control + message->msg_controllen);
    c->cmsg_level = level;
    c->cmsg_type = type;
    c->cmsg_len = CMSG_LEN(bytes);
    memcpy(CMSG_DATA(c), value, bytes);
    message->msg_controllen += CMSG_SPACE(bytes);
}

/* What the kernel says of a message that came: DSCP << 2 | ECN, 0 when it does not say, and the size of the
 * datagrams that it holds. */
static inline uint8_t weir_read_control(struct msghdr *message, uint32_t *size)
{
    uint8_t class = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS)
            class = *CMSG_DATA(c);
        else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS) {
            int told;
            memcpy(&told, CMSG_DATA(c), sizeof told);
            class = (uint8_t)told;
        } else if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
            int told;
            memcpy(&told, CMSG_DATA(c), sizeof told);
            if (told > 0) *size = (uint32_t)told;
        }
    return class;
}

#endif
