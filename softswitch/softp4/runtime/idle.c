// SPDX-License-Identifier: Apache-2.0
// Times of entries that no packet has hit for a while. Which tables keep them the generated code says; numbers
// have been checked by the caller.
#include "state.h"
#include "table.h"

static sw_state *state(sw_switch *sw) { return (sw_state *)sw; }

static sw_idle *times(sw_switch *sw, uint32_t table, uint32_t handle)
{
    sw_table *t = &state(sw)->tables[table];
    return sw_entry_idle(t, t->handles[handle]);
}

static uint64_t due(const sw_idle *idle)
{
    const uint64_t since = idle->hit > idle->told ? idle->hit : idle->told;
    return idle->timeout == 0 || idle->timeout > SW_NEVER - since ? SW_NEVER : since + idle->timeout;
}

void swc_tell(sw_switch *sw, uint64_t now_ns)
{
    sw_lock(sw);
    if (now_ns > state(sw)->now) state(sw)->now = now_ns;
    sw_unlock(sw);
}

// A new entry's time begins when swc_expire first asks for it, or with a packet.
void swc_begin_idle(sw_switch *sw, uint32_t table, uint32_t handle)
{
    sw_lock(sw);
    times(sw, table, handle)->hit = SW_NEVER;
    sw_unlock(sw);
}

void swc_set_timeout(sw_switch *sw, uint32_t table, uint32_t handle, uint64_t timeout_ns)
{
    sw_lock(sw);
    times(sw, table, handle)->timeout = timeout_ns;
    sw_unlock(sw);
}

// Nanoseconds since the entry was hit, or since it was made.
uint64_t swc_idle_time(sw_switch *sw, uint32_t table, uint32_t handle)
{
    sw_lock(sw);
    const uint64_t hit = times(sw, table, handle)->hit, now = state(sw)->now;
    sw_unlock(sw);
    return hit < now ? now - hit : 0;
}

// Whether an entry's time has run out; then it begins again. `next` is when it can run out next, SW_NEVER
// without a timeout.
int swc_expire(sw_switch *sw, uint32_t table, uint32_t handle, uint64_t now_ns, uint64_t *next)
{
    sw_lock(sw);
    sw_idle *idle = times(sw, table, handle);
    if (idle->hit == SW_NEVER) idle->hit = now_ns;
    const int out = due(idle) <= now_ns;
    if (out) idle->told = now_ns;
    *next = due(idle);
    sw_unlock(sw);
    return out;
}
