// SPDX-License-Identifier: Apache-2.0
// Meters as the control plane sees them. Numbers have been checked by the caller.
#include "meter.h"

#include <string.h>

#include "table.h"

static sw_state *state(sw_switch *sw) { return (sw_state *)sw; }

static sw_meter *direct(sw_switch *sw, uint32_t table, uint32_t handle)
{
    sw_table *t = &state(sw)->tables[table];
    return sw_entry_meter(t, t->handles[handle]);
}

static void show(const sw_meter *meter, sw_meter_config *config, sw_cell *marked)
{
    *config = meter->config;
    memcpy(marked, meter->marked, sizeof meter->marked);
}

// Configures `count` meters of an array, from `first` on.
void swc_set_meters(sw_switch *sw, uint32_t array, uint64_t first, uint64_t count,
                    const sw_meter_config *wanted)
{
    sw_lock(sw);
    for (uint64_t i = 0; i < count; i++) sw_meter_configure(&state(sw)->meters[array][first + i], wanted);
    sw_unlock(sw);
}

void swc_meter(sw_switch *sw, uint32_t array, uint64_t index, sw_meter_config *config, sw_cell *marked)
{
    sw_lock(sw);
    show(&state(sw)->meters[array][index], config, marked);
    sw_unlock(sw);
}

void swc_clear_marked(sw_switch *sw, uint32_t array, uint64_t first, uint64_t count)
{
    sw_lock(sw);
    for (uint64_t i = 0; i < count; i++) {
        sw_meter *meter = &state(sw)->meters[array][first + i];
        memset(meter->marked, 0, sizeof meter->marked);
    }
    sw_unlock(sw);
}

void swc_set_entry_meter(sw_switch *sw, uint32_t table, uint32_t handle, const sw_meter_config *wanted)
{
    sw_lock(sw);
    sw_meter_configure(direct(sw, table, handle), wanted);
    sw_unlock(sw);
}

void swc_entry_marked(sw_switch *sw, uint32_t table, uint32_t handle, sw_cell *marked)
{
    sw_lock(sw);
    memcpy(marked, direct(sw, table, handle)->marked, sizeof direct(sw, table, handle)->marked);
    sw_unlock(sw);
}

void swc_clear_entry_marked(sw_switch *sw, uint32_t table, uint32_t handle)
{
    sw_lock(sw);
    sw_meter *meter = direct(sw, table, handle);
    memset(meter->marked, 0, sizeof meter->marked);
    sw_unlock(sw);
}
