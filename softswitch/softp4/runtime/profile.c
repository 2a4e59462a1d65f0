// SPDX-License-Identifier: Apache-2.0
#include "profile.h"

#include <stdlib.h>
#include <string.h>

// An array of pointers so long that it has element `handle`, or NULL; the new ones are NULL.
static void *with_room(void *array, uint32_t *count, uint32_t handle)
{
    if (handle < *count) return array;
    uint32_t wanted = handle < 8 ? 16 : 2 * handle;
    void **new = realloc(array, wanted * sizeof *new);
    if (new == NULL) return NULL;
    memset(new + *count, 0, (wanted - *count) * sizeof *new);
    *count = wanted;
    return new;
}

void sw_profile_free(sw_profile *profile)
{
    for (uint32_t i = 0; i < profile->member_count; i++) free(profile->members[i]);
    for (uint32_t i = 0; i < profile->group_count; i++) free(profile->groups[i]);
    free(profile->members);
    free(profile->groups);
}

int sw_profile_set_member(sw_profile *profile, uint32_t handle, uint32_t action, const uint64_t *args)
{
    size_t bytes = profile->desc->arg_words * sizeof(uint64_t);
    sw_member **members = with_room(profile->members, &profile->member_count, handle);
    if (members == NULL) return -1;
    profile->members = members;
    sw_member *member = profile->members[handle];
    if (member == NULL && (member = malloc(sizeof *member + bytes)) == NULL) return -1;
    member->action = action;
    memcpy(member->args, args, bytes);
    profile->members[handle] = member;
    return 0;
}

int sw_profile_set_group(sw_profile *profile, uint32_t handle, uint32_t count, const uint32_t *members)
{
    sw_member_group **groups = with_room(profile->groups, &profile->group_count, handle);
    if (groups == NULL) return -1;
    profile->groups = groups;
    sw_member_group *group = malloc(sizeof *group + count * sizeof group->members[0]);
    if (group == NULL) return -1;
    group->count = count;
    for (uint32_t i = 0; i < count; i++) group->members[i] = profile->members[members[i]];
    free(profile->groups[handle]);
    profile->groups[handle] = group;
    return 0;
}

void sw_profile_remove_member(sw_profile *profile, uint32_t handle)
{
    free(profile->members[handle]);
    profile->members[handle] = NULL;
}

void sw_profile_remove_group(sw_profile *profile, uint32_t handle)
{
    free(profile->groups[handle]);
    profile->groups[handle] = NULL;
}
