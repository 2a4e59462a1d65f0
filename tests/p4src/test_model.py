# SPDX-License-Identifier: Apache-2.0
"""Random packets against a model: the slot protocol again, in the plainest Python, compared packet by packet.

The model keeps every round of every slot as a list of what was sent. It shares no code with the program.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from tests.harness.lab import Job, Lab
from tests.harness.target import Sent
from weir.wire.definition import NO_BLOCK, Op, columns

WORKERS, SLOTS = 3, 2
COMBINE: dict[Op, Callable[[int, int], int]] = {
    Op.ADD: lambda a, b: (a + b) % 2**32,
    Op.MAX: max,
    Op.OR: operator.or_,
}


@dataclass
class Round:
    """One round of a slot: the first packet of each worker."""

    number: int
    packets: dict[int, dict[str, Any]] = field(default_factory=dict)

    def result(self, op: Op) -> dict[str, Any]:
        """Sum, minima and included mask over all packets."""
        lanes: dict[int, list[int]] = {}
        for packet in self.packets.values():
            for group, values in packet["lanes"].items():
                have = lanes.get(group, [0] * 32)
                lanes[group] = [COMBINE[op](a, b) for a, b in zip(have, values, strict=True)]
        return {
            "lanes": lanes,
            "nexts": [min(n) for n in zip(*(p["nexts"] for p in self.packets.values()), strict=True)],
            "included": sum(1 << worker for worker, packet in self.packets.items() if packet["lanes"]),
        }


@dataclass
class Model:
    """What the switch must do, for one job with one operator and block size."""

    job: Job
    op: Op
    block_log2: int
    headroom: int
    cells: dict[tuple[int, int], Round] = field(default_factory=dict)
    far: dict[tuple[int, int], tuple[int, set[int]]] = field(default_factory=dict)

    def send(self, worker: int, slot: int, number: int, packet: dict[str, Any]) -> list[Sent]:
        """Return what must come out."""
        cell = (slot, number % 2)
        held = self.cells.get(cell)
        if held is not None and (number < held.number or self._leaps(cell, held.number, worker, number)):
            return []
        if held is None or number > held.number:
            held = self.cells[cell] = Round(number)
        first = worker not in held.packets
        stamp = {"slot": slot, "round": number, "op": self.op, "block_log2": self.block_log2}
        last = not packet["lanes"] and len(held.packets) + first == WORKERS
        if last and 128 * len(held.result(self.op)["lanes"]) > self.headroom:
            nexts = packet["nexts"] if first else held.result(self.op)["nexts"]
            return [self.job.repeat(worker, **stamp, nexts=nexts, blocks=packet["blocks"])]
        if first:
            held.packets[worker] = packet
        if len(held.packets) < WORKERS:
            return []
        result = held.result(self.op)
        if 128 * (len(result["lanes"]) - len(packet["lanes"])) > self.headroom:
            return []
        fields = {**result, **stamp}
        fields["blocks"] = packet["blocks"]
        return self.job.results(**fields) if first else [self.job.result(worker, **fields, again=True)]

    def _leaps(self, cell: tuple[int, int], held: int, worker: int, number: int) -> bool:
        """Return whether a packet would make a cell leap all by itself, and note whose it is."""
        if number <= held + 2:
            return False
        last, senders = self.far.get(cell, (number, set()))
        self.far[cell] = number, (senders if last == number else set()) | {worker}
        return len(self.far[cell][1]) == 1


seeds = st.integers(0, 2**32 - 1)


def lanes_of(seed: int, group: int) -> list[int]:
    """32 lanes from a seed."""
    return [(seed ^ group * 0x9E3779B9) * (2 * lane + 1) * 0x85EBCA6B % 2**32 for lane in range(32)]


@st.composite
def exchanges(draw: st.DrawFn) -> dict[str, Any]:
    """Return a packet of a random worker, near the round that the slot is in."""
    return {
        "worker": draw(st.integers(0, WORKERS - 1)),
        "slot": draw(st.integers(0, SLOTS - 1)),
        "step": draw(st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1, 1, -1, -2, 2, 3, 4, 4, 1000])),
        "seed": draw(seeds),
        "mask": draw(st.integers(0, 0xFF)),
    }


@given(
    op=st.sampled_from(Op),
    block_log2=st.integers(5, 8),
    sequence=st.lists(exchanges(), min_size=10, max_size=60),
)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_packet_out_is_the_models(
    lab: Lab, op: Op, block_log2: int, sequence: list[dict[str, Any]]
) -> None:
    fresh = Lab(lab.target)  # each example starts with empty tables
    job = fresh.job(WORKERS, slots=SLOTS)
    model = Model(job, op, block_log2, fresh.target.headroom)
    count = columns(block_log2)
    rounds = [10] * SLOTS
    for item in sequence:
        slot, seed = item["slot"], item["seed"]
        number = rounds[slot] + item["step"]
        lanes = {group: lanes_of(seed, group) for group in range(8) if item["mask"] >> group & 1}
        nexts = [NO_BLOCK if seed >> c & 3 == 0 else (seed >> c) % 97 for c in range(count)]
        packet = {"lanes": lanes, "nexts": nexts, "blocks": [number * 8 + c for c in range(count)]}
        expected = model.send(item["worker"], slot, number, packet)
        sent = job.send(item["worker"], slot=slot, round=number, op=op, block_log2=block_log2, **packet)
        assert sent == expected
        if (now := model.cells.get((slot, number % 2))) is not None and now.number == number:
            rounds[slot] = max(rounds[slot], number)
