# SPDX-License-Identifier: Apache-2.0
"""Moving data with OR: every lane has one contributor, everybody else leaves it zero.

OR with zeros changes no bit, so any dtype arrives exactly; lanes that are zero anyway are not even sent.
"""

from collections.abc import Sequence

import numpy as np
import torch

from host_agent.dtypes import Lanes, byte_count, lanes_for, read_bytes, write_bytes
from host_agent.primitive import Peers
from wire.definition import Op


def place(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Lane offsets of parts of ``sizes`` bytes laid one after another, and the lanes of all of them."""
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += lanes_for(size)
    return offsets, total


def publish(peers: Peers, total: int, parts: Sequence[tuple[int, torch.Tensor]]) -> Lanes:
    """The ``total`` lanes that result when each worker writes its ``parts`` (lane offset, tensor)."""
    lanes: Lanes = np.zeros(total, dtype=np.uint32)
    for offset, tensor in parts:
        write_bytes(lanes, offset, tensor)
    return peers.reduce(lanes, Op.OR)


def all_gather(peers: Peers, outputs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    """Fills ``outputs[r]`` with rank r's ``own``; sizes may differ from rank to rank."""
    offsets, total = place([byte_count(output) for output in outputs])
    lanes = publish(peers, total, [(offsets[peers.rank], own)])
    for offset, output in zip(offsets, outputs, strict=True):
        read_bytes(lanes, offset, output)


def broadcast(peers: Peers, tensor: torch.Tensor, root: int) -> None:
    """Overwrites ``tensor`` by the root's."""
    parts = [(0, tensor)] if peers.rank == root else []
    lanes = publish(peers, lanes_for(byte_count(tensor)), parts)
    if peers.rank != root:
        read_bytes(lanes, 0, tensor)


def scatter(peers: Peers, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int) -> None:
    """Overwrites ``output`` by the root's ``inputs[this rank]``; all are of one size. Others pass none."""
    offsets, total = place([byte_count(output)] * peers.size)
    lanes = publish(peers, total, list(zip(offsets, inputs, strict=True)) if peers.rank == root else [])
    read_bytes(lanes, offsets[peers.rank], output)


def all_to_all(peers: Peers, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Fills ``outputs[r]`` with what rank r has in its ``inputs[this rank]``.

    A first, small exchange makes every pair's size known to all, since a worker knows only its own; where
    sender and receiver disagree, every rank raises the same ValueError.
    """
    sizes = torch.tensor([[byte_count(part) for part in parts] for parts in (inputs, outputs)])
    known = torch.zeros(peers.size, 2, peers.size, dtype=torch.int64)
    all_gather(peers, list(known), sizes)
    sent, expected = known[:, 0].tolist(), known[:, 1].tolist()
    ranks = range(peers.size)
    for source, target in ((source, target) for source in ranks for target in ranks):
        if sent[source][target] != expected[target][source]:
            raise ValueError(
                f"all_to_all: rank {source} sends {sent[source][target]} bytes to rank {target}, "
                f"which expects {expected[target][source]}"
            )
    offsets, total = place([size for row in sent for size in row])
    mine = [(offsets[peers.rank * peers.size + target], inputs[target]) for target in ranks]
    lanes = publish(peers, total, mine)
    for source in ranks:
        read_bytes(lanes, offsets[source * peers.size + peers.rank], outputs[source])
