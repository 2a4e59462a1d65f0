# SPDX-License-Identifier: Apache-2.0
"""Moving data with OR: every lane has one contributor, everybody else leaves it zero.

OR with zeros changes no bit, so any dtype arrives exactly; lanes that are zero anyway are not even sent. What
one rank wants alone only it gets, and what all others want does not come back to its sender.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator, fitting_block
from weir.host_agent.collectives.dtypes import Lanes, byte_count, lanes_for, read_bytes, write_bytes
from weir.wire.definition import Op


def place(sizes: Sequence[int], block: int = 1) -> tuple[list[int], int]:
    """Return where parts of ``sizes`` bytes begin, in lanes, and the number of all lanes.

    They lie one after another, each on a multiple of ``block`` lanes.
    """
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-lanes_for(size) // block) * block
    return offsets, total


def deliver(
    communicator: Communicator,
    sizes: Sequence[int],
    audience: Sequence[int],
    own: Callable[[int], torch.Tensor | None],
) -> tuple[Lanes, list[int]]:
    """Return lanes with the parts that this rank has or wants, and where in them each part begins.

    Args:
        communicator: of all workers, which make the same call.
        sizes: bytes of each part.
        audience: who wants it: rank r alone, or with ~r all but rank r.
        own: returns the part of this index, when this rank has it; None: another does.
    """
    block = fitting_block(max(map(lanes_for, sizes), default=0))
    offsets, total = place(sizes, block)
    lanes: Lanes = np.zeros(total, np.uint32)
    for index, offset in enumerate(offsets):
        if (part := own(index)) is not None:
            write_bytes(lanes, offset, part)
    blocks = np.diff([*offsets, total]) // block
    communicator.reduce(lanes, Op.OR, block, audience=np.repeat(np.array(audience, np.int16), blocks))
    return lanes, offsets


def all_gather(communicator: Communicator, outputs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    """Fill ``outputs[r]`` with rank r's ``own``; sizes may differ from rank to rank."""
    lanes, offsets = deliver(
        communicator,
        [byte_count(output) for output in outputs],
        [~rank for rank in range(communicator.size)],
        lambda rank: own if rank == communicator.rank else None,
    )
    for offset, output in zip(offsets, outputs, strict=True):
        read_bytes(lanes, offset, output)


def gather(communicator: Communicator, outputs: Sequence[torch.Tensor], own: torch.Tensor, root: int) -> None:
    """Fill the root's ``outputs[r]`` with rank r's ``own``; all are of one size. Others pass no outputs."""
    lanes, offsets = deliver(
        communicator,
        [byte_count(own)] * communicator.size,
        [root] * communicator.size,
        lambda rank: own if rank == communicator.rank else None,
    )
    for offset, output in zip(offsets, outputs, strict=False):
        read_bytes(lanes, offset, output)


def broadcast(communicator: Communicator, tensor: torch.Tensor, root: int) -> None:
    """Overwrite ``tensor`` by the root's."""
    here = communicator.rank == root
    lanes, _ = deliver(communicator, [byte_count(tensor)], [~root], lambda _: tensor if here else None)
    if not here:
        read_bytes(lanes, 0, tensor)


def scatter(
    communicator: Communicator, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int
) -> None:
    """Overwrite ``output`` by the root's ``inputs[this rank]``; all are of one size. Others pass none."""
    lanes, offsets = deliver(
        communicator,
        [byte_count(output)] * communicator.size,
        [*range(communicator.size)],
        lambda rank: inputs[rank] if communicator.rank == root else None,
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
    lanes, offsets = deliver(
        communicator,
        [size for row in sent for size in row],
        [*ranks] * communicator.size,
        lambda pair: (
            inputs[pair % communicator.size] if pair // communicator.size == communicator.rank else None
        ),
    )
    for source in ranks:
        read_bytes(lanes, offsets[source * communicator.size + communicator.rank], outputs[source])
