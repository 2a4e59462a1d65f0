// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "xdp_redirect.h"

#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// Only the first `size` bytes of the attributes, so that older kernels take them, too.
#define ATTRIBUTES_TO(last) (offsetof(union bpf_attr, last) + sizeof(((union bpf_attr *)0)->last))

static int bpf(enum bpf_cmd command, union bpf_attr *attributes, size_t size)
{
    const long result = syscall(SYS_bpf, command, attributes, size);
    return result < 0 ? -errno : (int)result;
}

static int make_map(void)
{
    union bpf_attr a;
    memset(&a, 0, sizeof a);
    a.map_type = BPF_MAP_TYPE_XSKMAP;
    a.key_size = a.value_size = sizeof(uint32_t);
    a.max_entries = 1;
    return bpf(BPF_MAP_CREATE, &a, ATTRIBUTES_TO(map_flags));
}

// return bpf_redirect_map(&map, context->rx_queue_index, XDP_PASS);
static int load_program(int map)
{
    const struct bpf_insn program[] = {
        {.code = BPF_LDX | BPF_MEM | BPF_W,
         .dst_reg = BPF_REG_2,
         .src_reg = BPF_REG_1,
         .off = offsetof(struct xdp_md, rx_queue_index)},
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = BPF_REG_1, .src_reg = BPF_PSEUDO_MAP_FD, .imm = map},
        {.code = 0}, // the upper half of the 64-bit constant
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_3, .imm = XDP_PASS},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_redirect_map},
        {.code = BPF_JMP | BPF_EXIT},
    };
    static const char license[] = "Apache-2.0";
    union bpf_attr a;
    memset(&a, 0, sizeof a);
    a.prog_type = BPF_PROG_TYPE_XDP;
    a.insn_cnt = sizeof program / sizeof program[0];
    a.insns = (uint64_t)(uintptr_t)program;
    a.license = (uint64_t)(uintptr_t)license;
    memcpy(a.prog_name, "softp4", sizeof "softp4");
    a.expected_attach_type = BPF_XDP;
    return bpf(BPF_PROG_LOAD, &a, ATTRIBUTES_TO(expected_attach_type));
}

// A link, unlike a program set by netlink, goes when the file descriptor does.
static int attach(int program, unsigned interface, uint32_t mode)
{
    union bpf_attr a;
    memset(&a, 0, sizeof a);
    a.link_create.prog_fd = (uint32_t)program;
    a.link_create.target_ifindex = interface;
    a.link_create.attach_type = BPF_XDP;
    a.link_create.flags = mode;
    return bpf(BPF_LINK_CREATE, &a, ATTRIBUTES_TO(link_create.flags));
}

int xdp_redirect_open(xdp_redirect *r, unsigned interface)
{
    *r = (xdp_redirect){.map = -1, .program = -1, .link = -1};
    if ((r->map = make_map()) < 0) return r->map;
    if ((r->program = load_program(r->map)) < 0) return r->program;
    r->link = attach(r->program, interface, XDP_FLAGS_DRV_MODE);
    r->native = r->link >= 0;
    if (r->link < 0 && r->link != -EBUSY && r->link != -EPERM)
        r->link = attach(r->program, interface, XDP_FLAGS_SKB_MODE);
    return r->link < 0 ? r->link : 0;
}

int xdp_redirect_to(xdp_redirect *r, int socket)
{
    const uint32_t queue = 0, value = (uint32_t)socket;
    union bpf_attr a;
    memset(&a, 0, sizeof a);
    a.map_fd = (uint32_t)r->map;
    a.key = (uint64_t)(uintptr_t)&queue;
    a.value = (uint64_t)(uintptr_t)&value;
    return bpf(BPF_MAP_UPDATE_ELEM, &a, ATTRIBUTES_TO(flags));
}

void xdp_redirect_close(xdp_redirect *r)
{
    int *const files[] = {&r->link, &r->program, &r->map};
    for (int i = 0; i < 3; i++) {
        if (*files[i] >= 0) close(*files[i]);
        *files[i] = -1;
    }
}
