# SPDX-License-Identifier: Apache-2.0
"""One state for all members of a group, whoever left or joined: that of the rank that made most steps."""

from collections.abc import Mapping
from typing import Any

import torch

from weir.host_agent.collectives.collectives import Collectives
from weir.host_agent.torch.packed_state import checksum_of, pack_state, unpack_state


def newest(collectives: Collectives, step: int, state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the state of the rank that has made most steps, the lowest one on a tie; None where it is this
    one's.

    state: tensors and plain values, as torch.load takes with ``weights_only``. To be called on all ranks at
    once; where their states are the same they exchange a few numbers, no more.
    """
    communicator = collectives.communicator
    own = pack_state(state)
    mine = torch.tensor([step, own.numel(), checksum_of(own)])
    everyone = [torch.empty_like(mine) for _ in range(communicator.size)]
    collectives.all_gather(everyone, mine)
    steps = [int(numbers[0]) for numbers in everyone]
    root = steps.index(max(steps))
    if all(torch.equal(numbers, mine) for numbers in everyone):
        return None
    data = own if root == communicator.rank else torch.empty(int(everyone[root][1]), dtype=torch.uint8)
    collectives.broadcast(data, root)
    if root == communicator.rank:
        return None
    return unpack_state(data)
