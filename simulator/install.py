# SPDX-License-Identifier: Apache-2.0
"""The controller's desired state, put straight into a soft switch of this process, without P4Runtime."""

from controller import entries as wanted
from softswitch.entry import Entry, Exact, Lpm, Replica
from softswitch.switch import Switch


def install(switch: Switch, state: wanted.SwitchState) -> None:
    """Insert every entry and group of ``state``; the switch must hold none of them yet."""
    for number, replicas in state.groups.items():
        switch.set_multicast_group(number, [Replica(r.port, r.rid) for r in sorted(replicas)])
    for entry in state.entries:
        key = tuple(_match(value) for _, value in entry.match)
        switch.insert_entry(entry.table, Entry(key, entry.action, tuple(value for _, value in entry.params)))


def _match(value: wanted.Match) -> Exact | Lpm:
    return Lpm(value.value, value.length) if isinstance(value, wanted.Lpm) else Exact(value)
