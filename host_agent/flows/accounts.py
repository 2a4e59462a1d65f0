# SPDX-License-Identifier: Apache-2.0
"""Accounts and budgets of a tensor's chunks, and which chunks switches may trim."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows.codec import MAX_ACCOUNTS, Bits
from weir.host_agent.flows.config import FlowConfig
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import MAGNITUDE_CLASSES

EXPOSED: Final = 3
"""How many times its budget of an account's lanes a switch may trim. What it trims beyond the budget is only
sent again: where queues are short, that costs less than to drop what may not be trimmed."""

_Classes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ChunkClasses:
    """A service class, chunk by chunk.

    magnitudes, accounts: per chunk. budgets: lanes per account, at most those that it has; one account of 0
    stands for every account of a lossless tensor. droppable: chunks that a switch may trim.
    """

    magnitudes: _Classes
    accounts: _Classes
    budgets: npt.NDArray[np.uint32]
    droppable: Bits

    @classmethod
    def of(cls, service: ServiceClass, config: FlowConfig, lanes: int, tensor: int) -> "ChunkClasses":
        """Return the classes of a tensor's chunks. Raises ValueError when the service class is of another."""
        count = config.chunks(lanes)
        magnitudes = _per_chunk(service.magnitudes, count, "magnitudes").astype(np.uint8)
        given = _per_chunk(service.accounts, count, "accounts")
        if service.budgets.size == 0:
            none = np.zeros(count, np.uint8)
            return cls(magnitudes, none, np.zeros(1, np.uint32), none.view(np.bool_))
        if service.budgets.size > MAX_ACCOUNTS:
            raise ValueError(
                f"{service.budgets.size} accounts: a tensor of a flow has at most {MAX_ACCOUNTS}"
            )
        if int(given.max()) >= service.budgets.size:
            raise ValueError(f"account {int(given.max())} has no budget: there are {service.budgets.size}")
        accounts = given.astype(np.uint8)
        sizes = np.full(count, config.chunk_lanes, np.int64)
        sizes[-1] = lanes - (count - 1) * config.chunk_lanes
        totals = np.zeros(service.budgets.size, np.int64)
        np.add.at(totals, accounts, sizes)
        budgets = np.minimum(service.budgets, totals.astype(np.uint64)).astype(np.uint32)
        return cls(magnitudes, accounts, budgets, _droppable(magnitudes, accounts, sizes, budgets, tensor))


def _per_chunk(
    given: npt.NDArray[np.unsignedinteger] | None, count: int, what: str
) -> npt.NDArray[np.unsignedinteger]:
    if given is None:
        return np.zeros(count, np.uint8)
    if given.size != count:
        raise ValueError(f"the service class has {given.size} {what}, and the tensor {count} chunks")
    return given


def _droppable(
    magnitudes: _Classes,
    accounts: _Classes,
    sizes: npt.NDArray[np.int64],
    budgets: npt.NDArray[np.uint32],
    tensor: int,
) -> Bits:
    """Return which chunks a switch may trim: of every account ``EXPOSED`` times its budget, the smallest
    magnitude classes first.

    Of the class that fits in part, chunks at even distances, others with every tensor, lest the same values
    always be those that are lost.
    """
    chosen = np.zeros(sizes.size, np.bool_)
    for account in np.flatnonzero(budgets):
        room = EXPOSED * int(budgets[account])
        for magnitude in range(MAGNITUDE_CLASSES):
            of_class = np.flatnonzero((accounts == account) & (magnitudes == magnitude))
            size = int(sizes[of_class].sum())
            if size > room:
                fit = room // int(sizes[0])
                places = (np.arange(fit) * of_class.size // max(fit, 1) + tensor) % of_class.size
                chosen[of_class[places]] = True
                break
            chosen[of_class] = True
            room -= size
    return chosen
