// SPDX-License-Identifier: Apache-2.0
// Action profiles: actions with their data (members) and groups of them that tables' entries refer to.
#ifndef SOFTP4_PROFILE_H
#define SOFTP4_PROFILE_H

#include "base.h"

// Actions of entries that refer to a profile; their first argument is a handle.
#define SW_BY_MEMBER (UINT32_MAX - 1)
#define SW_BY_GROUP (UINT32_MAX - 2)

typedef struct {
    const char *name;
    uint32_t arg_words; // 64-bit words of the longest action data
} sw_profile_desc;

typedef struct {
    uint32_t action;
    uint64_t args[];
} sw_member;

typedef struct {
    uint32_t count;
    const sw_member *members[];
} sw_member_group;

typedef struct {
    const sw_profile_desc *desc;
    sw_member **members; // by handle; NULL for a free one
    sw_member_group **groups;
    uint32_t member_count, group_count;
} sw_profile;

SW_INLINE const sw_member *sw_profile_member(const sw_profile *profile, uint64_t handle)
{
    return profile->members[handle];
}

SW_INLINE const sw_member_group *sw_profile_group(const sw_profile *profile, uint64_t handle)
{
    return profile->groups[handle];
}

void sw_profile_free(sw_profile *profile);

// Make a member or a group, or replace its contents; 0, or -1 when memory ran out (then nothing has changed).
// What refers to them goes on. Handles are the caller's, small numbers.
int sw_profile_set_member(sw_profile *profile, uint32_t handle, uint32_t action, const uint64_t *args);
int sw_profile_set_group(sw_profile *profile, uint32_t handle, uint32_t count, const uint32_t *members);
// Nothing may refer to them any more.
void sw_profile_remove_member(sw_profile *profile, uint32_t handle);
void sw_profile_remove_group(sw_profile *profile, uint32_t handle);

#endif
