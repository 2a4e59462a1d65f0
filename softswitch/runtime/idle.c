// SPDX-License-Identifier: Apache-2.0
// Entries that no packet has hit for a while. Which tables keep times the generated code says; numbers have
// been checked by the caller, who changes no table meanwhile.
#include "state.h"
#include "table.h"

enum { SLICE = 4096 };  // entries per hold of the lock, so that frames need not wait for a whole large table

static sw_state *state(sw_switch *sw) { return (sw_state *)sw; }

static uint64_t time_from(uint64_t start, uint64_t span) {
    return span > SW_NEVER - start ? SW_NEVER : start + span;
}

void swc_tell(sw_switch *sw, uint64_t now_ns) {
    sw_lock(sw);
    if (now_ns > state(sw)->now) state(sw)->now = now_ns;
    sw_unlock(sw);
}

void swc_set_timeout(sw_switch *sw, uint32_t table, uint32_t handle, uint64_t timeout_ns) {
    sw_table *t = &state(sw)->tables[table];
    sw_lock(sw);
    sw_entry_idle(t, t->handles[handle])->timeout = timeout_ns;
    sw_unlock(sw);
}

// A new entry's time begins when the switch is next told the time.
void swc_begin_idle(sw_switch *sw, uint32_t table, uint32_t handle) {
    sw_table *t = &state(sw)->tables[table];
    sw_lock(sw);
    sw_entry_idle(t, t->handles[handle])->hit = SW_NEVER;
    sw_unlock(sw);
}

// Nanoseconds since the entry was hit, or since it was made.
uint64_t swc_idle_time(sw_switch *sw, uint32_t table, uint32_t handle) {
    sw_table *t = &state(sw)->tables[table];
    sw_lock(sw);
    const uint64_t hit = sw_entry_idle(t, t->handles[handle])->hit, now = state(sw)->now;
    sw_unlock(sw);
    return hit < now ? now - hit : 0;
}

// The handles of up to `room` entries whose time has run out; it begins again. `next` is when the others'
// can have run out: SW_NEVER when none has a timeout. `from` is where to go on, the table's handles when done.
uint32_t swc_expire(sw_switch *sw, uint32_t table, uint64_t now_ns, uint32_t *from, uint32_t *out, uint32_t room,
                    uint64_t *next) {
    sw_table *t = &state(sw)->tables[table];
    uint32_t count = 0;
    while (*from < t->handle_count && count < room) {
        sw_lock(sw);
        for (uint32_t i = 0; i < SLICE && *from < t->handle_count && count < room; i++, ++*from) {
            sw_entry *entry = t->handles[*from];
            if (sw_is_free(entry)) continue;
            sw_idle *idle = sw_entry_idle(t, entry);
            if (idle->hit == SW_NEVER) idle->hit = now_ns;
            if (idle->timeout == 0) continue;
            if (time_from(idle->hit > idle->told ? idle->hit : idle->told, idle->timeout) <= now_ns) {
                idle->told = now_ns;
                out[count++] = *from;
            }
            const uint64_t due = time_from(idle->hit > idle->told ? idle->hit : idle->told, idle->timeout);
            if (due < *next) *next = due;
        }
        sw_unlock(sw);
    }
    return count;
}
