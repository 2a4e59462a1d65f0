# SPDX-License-Identifier: Apache-2.0
"""Moving data with OR: every lane has one contributor, everybody else leaves it zero.

OR with zeros changes no bit, so any dtype arrives exactly; lanes that are zero anyway are not even sent. What
one rank wants alone only it gets, and what all others want does not come back to its sender.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from weir.host_agent.collectives.communicator import Communicator
from weir.host_agent.collectives.dtypes import byte_count, lanes_for, read_bytes, write_bytes
from weir.host_agent.collectives.parts import Parts, reduce_parts
from weir.host_agent.collectives.tensor_memory import array_of
from weir.wire.definition import Op


def deliver(
    communicator: Communicator,
    sizes: Sequence[int],
    audience: Sequence[int],
    inputs: Mapping[int, torch.Tensor],
    outputs: Mapping[int, torch.Tensor],
) -> None:
    """Bring parts of a vector from the ranks that have them to those that want them.

    Args:
        communicator: of all workers, which make the same call.
        sizes: bytes of each part.
        audience: who wants it: rank r alone, or with ~r all but rank r.
        inputs: the parts that this rank has, by index.
        outputs: what is overwritten by parts that it wants or has.
    """
    parts = Parts.of([lanes_for(size) for size in sizes], audience, torch.int32)
    if (starts := parts.starts) is not None:
        lanes = np.zeros(parts.size, np.uint32)
        for index, tensor in inputs.items():
            write_bytes(lanes, starts[index], tensor)
        reduce_parts(communicator, lanes, Op.OR, parts)
        for index, output in outputs.items():
            read_bytes(lanes, starts[index], output)
        return
    whole = parts.join(
        [_as_lanes(inputs[index]) if index in inputs else None for index in range(len(sizes))], torch.int32
    )
    reduce_parts(communicator, array_of(whole).view(np.uint32), Op.OR, parts)
    for index, output in outputs.items():
        read_bytes(array_of(parts.part(whole, index)).view(np.uint32), 0, output)


def _as_lanes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in lanes."""
    lanes = np.zeros(lanes_for(byte_count(tensor)), np.uint32)
    write_bytes(lanes, 0, tensor)
    return torch.from_numpy(lanes.view(np.int32))


def all_gather(communicator: Communicator, outputs: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    """Fill ``outputs[r]`` with rank r's ``own``; sizes may differ from rank to rank."""
    sizes = [byte_count(output) for output in outputs]
    audience = [~rank for rank in range(communicator.size)]
    deliver(communicator, sizes, audience, {communicator.rank: own}, dict(enumerate(outputs)))


def gather(communicator: Communicator, outputs: Sequence[torch.Tensor], own: torch.Tensor, root: int) -> None:
    """Fill the root's ``outputs[r]`` with rank r's ``own``; all are of one size. Others pass no outputs."""
    sizes, audience = [byte_count(own)] * communicator.size, [root] * communicator.size
    deliver(communicator, sizes, audience, {communicator.rank: own}, dict(enumerate(outputs)))


def broadcast(communicator: Communicator, tensor: torch.Tensor, root: int) -> None:
    """Overwrite ``tensor`` by the root's."""
    whole = {0: tensor}
    here = communicator.rank == root
    deliver(communicator, [byte_count(tensor)], [~root], whole if here else {}, {} if here else whole)


def scatter(
    communicator: Communicator, output: torch.Tensor, inputs: Sequence[torch.Tensor], root: int
) -> None:
    """Overwrite ``output`` by the root's ``inputs[this rank]``; all are of one size. Others pass none."""
    sizes, audience = [byte_count(output)] * communicator.size, list(range(communicator.size))
    mine = dict(enumerate(inputs)) if communicator.rank == root else {}
    deliver(communicator, sizes, audience, mine, {communicator.rank: output})


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
    rank, size = communicator.rank, communicator.size
    deliver(
        communicator,
        [count for row in sent for count in row],
        [*ranks] * size,
        {rank * size + target: inputs[target] for target in ranks},
        {source * size + rank: outputs[source] for source in ranks},
    )
