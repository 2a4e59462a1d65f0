# SPDX-License-Identifier: Apache-2.0
"""The rows of the program for Tofino that the cases of ``test_tna.py`` do not reach.

``python -m tests.p4src.tna_coverage`` sends them to the translated program, traced, and prints, table by
table, how many of its constant entries were hit, and which were not. It takes some minutes.
"""

import random
from collections import defaultdict

from softp4.switch import Switch
from softp4.tracing.events import Applied
from tests.harness.lab import Lab, group_of
from tests.harness.tna import TnaTarget
from tests.p4src.test_tna import FULL, MALFORMED, PLACES, Draw, full_rounds, install, marked_rounds
from weir.wire.definition import GROUP_LANES, Op
from weir.wire.scapy_layer import Weir

STEPS = 300  # packets drawn for each place and number of workers
_OFTEN = 20  # packets between two looks at what was recorded


class Reached:
    """The entries that packets have hit since it was made, by table."""

    def __init__(self, target: TnaTarget) -> None:
        self.switches: tuple[Switch, ...] = target.switches
        self.hit: defaultdict[str, set[int]] = defaultdict(set)
        self._packets = 0
        for switch in self.switches:
            switch.recorder.start()

    def look(self, *, now: bool = False) -> None:
        """Take what was recorded, now and then."""
        self._packets += 1
        if now or self._packets % _OFTEN == 0:
            for switch in self.switches:
                events, lost = switch.recorder.read()
                assert not lost
                for event in events:
                    if isinstance(event, Applied) and event.hit:
                        self.hit[event.table.name].add(event.handle)


def _send_all(target: TnaTarget, reached: Reached, groups: int) -> None:
    """Send the cases whose packets of ADD have this many lane groups."""
    for place in PLACES:
        for workers, op in zip((1, 3, 5), Op, strict=True):
            draw = Draw(random.Random(f"{place} {workers}"), place, workers, op, groups)
            at = install(target, place, workers, 1)
            for _ in range(STEPS):
                draw.send(at)
                reached.look()
    for place in ("root", "spine"):
        at = install(target, place, FULL, 2)
        for packet in full_rounds(place, groups):
            packet.send(at)
            reached.look()
    at = install(target, "leaf", 1, 3)
    for packet in marked_rounds(groups):
        packet.send(at)
        reached.look()
    for wrong in MALFORMED:
        job = Lab(target).job(2)
        frame = job.contribution(0, lanes={0: group_of(1)})
        for name, value in wrong.items():
            frame[Weir].setfieldval("type" if name == "kind" else name, value)
        job.lab.send(job.stations[0].port, frame)


def main() -> None:
    """Send all cases, and print what they did not reach."""
    target = TnaTarget()
    reached = Reached(target)
    for groups in (1, 2):
        target.lanes = groups * GROUP_LANES
        _send_all(target, reached, groups)
    reached.look(now=True)
    for switch in reached.switches:
        for name, table in switch.program.tables.items():
            if table.immutable:
                entries = list(switch.table(name).entries())
                hit = reached.hit[name]
                print(f"{name.removeprefix('Whole.weir.')}: {len(hit)} of {len(entries)}")
                for number, entry in enumerate(entries):
                    if number not in hit:
                        print(f"    not {number}: {entry.action.rpartition('.')[2]}{entry.args}")
    target.close()


if __name__ == "__main__":
    main()
