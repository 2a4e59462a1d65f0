# SPDX-License-Identifier: Apache-2.0
"""Jobs in Weir's program, as its controller would install them, and packets that their workers might send."""

import random
from collections.abc import Sequence
from typing import Any, Final

from tests.differential.rows import Replicas, Row
from tests.harness.keys import Count, Key
from tests.harness.lab import Job, Lab, Uplink
from tests.harness.target import Sent, Target
from weir.wire.definition import NO_BLOCK, Flag, Op, PacketType, columns

_LANES: Final = (0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


class Jobs(Target):
    """Rows and groups of a few random jobs, some of them perhaps racks of larger ones."""

    name = "notes"
    shortest_frame = 0
    headroom = 512
    guards_sources = False  # rows of that table are drawn, as of others

    def __init__(self, rng: random.Random) -> None:
        self.rows: list[Row] = []
        self.groups: dict[int, Replicas] = {}
        self._rng = rng
        self._rounds: dict[int, int] = {}
        self._sent: list[tuple[int, bytes]] = []
        self._jobs: list[tuple[Job, Uplink | None]] = []
        lab = Lab(self)
        for number in range(rng.randrange(1, 4)):
            ports = rng.sample((1, 2, 3, 5, 8, 13), rng.randrange(1, 4))
            job = lab.job(
                len(ports), id=number + 1, ports=ports, slot_base=4 * number, racks=rng.random() < 0.3
            )
            uplink = lab.uplink(job, port=255, member=rng.randrange(3)) if rng.random() < 0.4 else None
            self._jobs.append((job, uplink))

    def arrival(self) -> tuple[int, bytes]:
        """Return a well-formed packet of the protocol, with few slots and rounds, so that rounds complete."""
        rng = self._rng
        job, uplink = rng.choice(self._jobs)
        slot = job.slot_base + rng.choice((0, 0, 1, 3) if rng.random() < 0.95 else (4, 7))
        turn = self._rounds.get(slot, 0) + (rng.random() < 0.2)
        self._rounds[slot] = turn
        block_log2 = 8 - turn % 4 if rng.random() < 0.95 else rng.choice((5, 6, 7, 8))
        count = columns(block_log2)
        groups = rng.sample(range(8), rng.choice((0, 1, 1, 2, 8)))
        fields: dict[str, Any] = {
            "slot": slot,
            "round": (turn if rng.random() < 0.95 else turn + rng.choice((-1, -1, 1))) % 256,
            "op": list(Op)[turn // 2 % 3] if rng.random() < 0.95 else rng.choice(list(Op)),
            "flags": Flag(rng.choice((1, 1, 1, 0, 2, 3, 4, 5, 8, 9))),
            "block_log2": block_log2,
            "blocks": [rng.randrange(4) for _ in range(count)],
            "nexts": [rng.choice((NO_BLOCK, rng.randrange(5))) for _ in range(count)],
            "lanes": {group: [self._lane() for _ in range(32)] for group in groups},
        }
        if uplink and rng.random() < 0.4:
            uplink.send(rng.choice(list(PacketType)), **fields)
        else:
            job.send(rng.randrange(len(job.stations)), **fields)
        return self._sent.pop()

    def _lane(self) -> int:
        return self._rng.choice((*_LANES, self._rng.getrandbits(32)))

    def insert(
        self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = (), priority: int = 0
    ) -> None:
        self.rows.append(Row(table, tuple(key), action, tuple(args), priority))

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self.groups[group] = tuple(replicas)

    def counter(self, name: str, index: int) -> Count:
        return Count(0, 0)

    def reset(self) -> None:
        pass

    def close(self) -> None:
        pass

    def send(self, port: int, frame: bytes) -> list[Sent]:
        self._sent.append((port, frame))
        return []

    def packet_out(self, port: int, frame: bytes) -> list[Sent]:
        raise NotImplementedError

    def modify(self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = ()) -> None:
        raise NotImplementedError

    def set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        raise NotImplementedError

    def entry_counter(self, table: str, key: Sequence[Key]) -> Count:
        raise NotImplementedError
