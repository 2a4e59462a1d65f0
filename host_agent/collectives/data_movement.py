# SPDX-License-Identifier: Apache-2.0
"""Moving data with OR: every lane has one contributor, everybody else leaves it zero.

OR with zeros changes no bit, so any dtype arrives exactly; lanes that are zero anyway are not even sent.
"""

from collections.abc import Sequence

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import Lanes, byte_count, lanes_for, read_bytes, write_bytes
from weir.wire.definition import Op


def place(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the lane offsets of parts of ``sizes`` bytes, one after another, and the number of all lanes."""
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += lanes_for(size)
    return offsets, total


def publish(communicator: Communicator, total: int, parts: Sequence[tuple[int, torch.Tensor]]) -> Lanes:
    """Return the ``total`` lanes that result when each worker writes its ``parts`` (lane offset, tensor)."""
    lanes: Lanes = np.zeros(total, dtype=np.uint32)
    for offset, tensor in parts:
        write_bytes(lanes, offset, tensor)
    return communicator.reduce(lanes, Op.OR)


def all_gather(communicator: Communicator, outputs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    """Fill ``outputs[r]`` with rank r's ``own``; sizes may differ from rank to rank."""
    offsets, total = place([byte_count(output) for output in outputs])
    lanes = publish(communicator, total, [(offsets[communicator.rank], own)])
    for offset, output in zip(offsets, outputs, strict=True):
        read_bytes(lanes, offset, output)


def broadcast(communicator: Communicator, tensor: torch.Tensor, root: int) -> None:
    """Overwrite ``tensor`` by the root's."""
    parts = [(0, tensor)] if communicator.rank == root else []
    lanes = publish(communicator, lanes_for(byte_count(tensor)), parts)
    if communicator.rank != root:
        read_bytes(lanes, 0, tensor)


def scatter(
    communicator: Communicator, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int
) -> None:
    """Overwrite ``output`` by the root's ``inputs[this rank]``; all are of one size. Others pass none."""
    offsets, total = place([byte_count(output)] * communicator.size)
    lanes = publish(
        communicator, total, list(zip(offsets, inputs, strict=True)) if communicator.rank == root else []
    )
    read_bytes(lanes, offsets[communicator.rank], output)


def all_to_all(
    communicator: Communicator, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> None:
    """Fill ``outputs[r]`` with what rank r has in its ``inputs[this rank]``.

    A first, small exchange makes every pair's size known to all, since a worker knows only its own; where
    sender and receiver disagree, every rank raises the same ValueError.
    """
    sizes = torch.tensor([[byte_count(part) for part in parts] for parts in (inputs, outputs)])
    known = torch.zeros(communicator.size, 2, communicator.size, dtype=torch.int64)
    all_gather(communicator, list(known), sizes)
    sent, expected = known[:, 0].tolist(), known[:, 1].tolist()
    ranks = range(communicator.size)
    for source, target in ((source, target) for source in ranks for target in ranks):
        if sent[source][target] != expected[target][source]:
            raise ValueError(
                f"all_to_all: rank {source} sends {sent[source][target]} bytes to rank {target}, "
                f"which expects {expected[target][source]}"
            )
    offsets, total = place([size for row in sent for size in row])
    mine = [(offsets[communicator.rank * communicator.size + target], inputs[target]) for target in ranks]
    lanes = publish(communicator, total, mine)
    for source in ranks:
        read_bytes(lanes, offsets[source * communicator.size + communicator.rank], outputs[source])
