# SPDX-License-Identifier: Apache-2.0
"""Play a scenario on one of the switches: what each frame made leave, and what the counters say then."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from softp4.state.entry import Entry
from softp4.switch import Switch
from tests.differential.scenario import Scenario, batches
from tests.differential.steady import NOW_US
from tests.harness.bmv2_stream import Bmv2DiedError, Bmv2Stream
from tests.harness.keys import entry_key

# BMv2's queues hold 64 packets each, and a frame may leave a port a few times: no burst may fill one.
_BURST: Final = 12
_TIMEOUT: Final = 15.0  # seconds that BMv2 may take for a burst
_CELLS: Final = 32  # of a counter that are read

Left = list[tuple[int, bytes]]


class DeadlyFramesError(Exception):
    """BMv2 ends, or never ends with a packet, because of one of ``count`` frames from ``first`` on."""

    def __init__(self, first: int, count: int, why: str) -> None:
        super().__init__(" ".join(why.split()))
        self.first = first
        self.count = count


@dataclass(frozen=True)
class Played:
    """Frames that left, for each frame by port and in order; (packets, bytes) of each counter cell."""

    left: tuple[tuple[tuple[int, bytes], ...], ...]
    counts: tuple[tuple[int, int], ...]


def counters(program: Any) -> list[tuple[str, int]]:
    """Return the counter cells that are compared: (name, index)."""
    return [
        (each["name"], index)
        for each in program["counter_arrays"]
        if not each.get("is_direct")
        for index in range(min(each["size"], _CELLS))
    ]


def fill(switch: Switch, scenario: Scenario) -> None:
    """Put a scenario's entries, defaults, groups and sessions into the soft switch."""
    for row in scenario.rows:
        switch.table(row.table).insert(Entry(entry_key(row.key), row.action, row.args, row.priority))
    for default in scenario.defaults:
        switch.table(default.table).set_default(default.action, default.args)
    for group, replicas in scenario.groups:
        switch.multicast_groups.set(group, replicas)
    for session, replicas in scenario.sessions:
        switch.clone_sessions.set(session, replicas)


def on_soft(path: Path, program: Any, scenario: Scenario) -> Played:
    """Play on the soft switch."""
    with Switch(path) as switch:
        fill(switch, scenario)
        left = [_by_port(switch.process(port, frame, NOW_US * 1000)) for port, frame in scenario.frames]
        counts = [switch.counter(name).read(index) for name, index in counters(program)]
    return Played(tuple(left), tuple((count.packets, count.bytes) for count in counts))


def on_bmv2(path: Path, p4info: Path, program: Any, scenario: Scenario, one_by_one: bool) -> Played:
    """Play on BMv2; ``one_by_one``: each frame waits until nothing of the one before is left.

    Raises:
        RuntimeError: BMv2 refuses the program or the entries.
        DeadlyFramesError: it does not survive a frame.
    """
    with Bmv2Stream(path, p4info, ["--priority-queues", "8"]) as switch:
        for row in scenario.rows:
            switch.control.insert(row.table, row.key, row.action, row.args, row.priority)
        for default in scenario.defaults:
            switch.control.set_default(default.table, default.action, default.args)
        for group, replicas in scenario.groups:
            switch.control.set_group(group, replicas)
        for session, replicas in scenario.sessions:
            switch.control.set_session(session, replicas)
        left: list[tuple[tuple[int, bytes], ...]] = []
        for batch in batches(scenario.frames, 1 if one_by_one else _BURST):
            try:
                left += map(_by_port, switch.process(batch, _TIMEOUT))
            except (Bmv2DiedError, grpc.RpcError) as error:
                raise DeadlyFramesError(len(left), len(batch), str(error)) from error
        counts = [switch.control.counter(name, index) for name, index in counters(program)]
    return Played(tuple(left), tuple((count.packets, count.bytes) for count in counts))


def _by_port(left: Sequence[tuple[int, bytes]]) -> tuple[tuple[int, bytes], ...]:
    """Stable: the order at each port stays. Empty frames, which truncate(0) makes, leave no real port."""
    return tuple(sorted((sent for sent in left if sent[1]), key=lambda sent: sent[0]))
