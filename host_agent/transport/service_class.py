# SPDX-License-Identifier: Apache-2.0
"""The class of service of a vector: the class its packets travel in, and its loss budget.

Example::

    # two accounts of a vector of four blocks: the first loses nothing, the second up to 512 lanes
    service = ServiceClass(
        layer=3, accounts=np.array([0, 0, 1, 1], np.uint16), budgets=np.array([0, 512], np.uint64)
    )
    reducer.reduce_blocks(lanes, Op.ADD, 256, service)
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.transport import bindings
from weir.host_agent.transport.arrays import address_of, contiguous
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES, Op

NO_ACCOUNT: Final = 0xFFFF
MAX_ACCOUNT_ROWS: Final = 32


@dataclass(frozen=True, eq=False)
class ServiceClass:
    """The packet class and the loss budget of one vector. The arrays must not change while it is on its way.

    layer: layer class, 0 (front) to LAYER_CLASSES - 1 (back): the packets' priority.
    magnitudes: per block its magnitude class, below MAGNITUDE_CLASSES; None: all 0.
    accounts: per block the index of its budget; None: all 0. Of two dimensions, a block counts against the
    budget in each row, and against none where it says NO_ACCOUNT; at most MAX_ACCOUNT_ROWS.
    budgets: per account how many lanes of this worker's non-zero blocks may go missing: what no result
    includes is given back. Empty: lossless. For ADD only; MAX, OR and barriers are always lossless.
    Raises ValueError or TypeError for what cannot be any of that.
    """

    layer: int = 0
    magnitudes: npt.NDArray[np.uint8] | None = None
    accounts: npt.NDArray[np.uint16] | None = None
    budgets: npt.NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))

    def __post_init__(self) -> None:
        if not 0 <= self.layer < LAYER_CLASSES:
            raise ValueError(f"layer class {self.layer} is not in 0..{LAYER_CLASSES - 1}")
        contiguous(self.budgets, "budgets", np.uint64)
        if self.magnitudes is not None:
            contiguous(self.magnitudes, "magnitudes", np.uint8)
            _check_below(self.magnitudes, MAGNITUDE_CLASSES, "magnitude class")
        if self.accounts is not None:
            contiguous(self.accounts, "accounts", np.uint16)
            if self.accounts.ndim == 2 and not 1 <= len(self.accounts) <= MAX_ACCOUNT_ROWS:
                raise ValueError(f"accounts has {len(self.accounts)} rows, not 1 to {MAX_ACCOUNT_ROWS}")
            if self.budgets.size:
                named = (
                    self.accounts[self.accounts != NO_ACCOUNT] if self.accounts.ndim == 2 else self.accounts
                )
                _check_below(named, self.budgets.size, "account")

    def check(self, op: Op, blocks: int) -> None:
        """Raise ValueError unless this fits a reduce with ``op`` of this many blocks."""
        if self.budgets.size and (op is not Op.ADD or not blocks):
            what = "a barrier" if not blocks else f"{op.name}"
            raise ValueError(f"loss budgets are for ADD: {what} is always lossless, pass none")
        for name, array in (("magnitudes", self.magnitudes), ("accounts", self.accounts)):
            if array is not None and array.shape[-1] != blocks:
                raise ValueError(f"{array.shape[-1]} {name} for {blocks} blocks: there must be one for each")

    def divided(self, parts: int, count: int) -> "ServiceClass":
        """Return the same for a vector whose blocks are cut into ``parts`` each, ``count`` in all."""

        def cut(array: npt.NDArray[Any] | None) -> Any:
            return None if array is None else np.ascontiguousarray(np.repeat(array, parts, -1)[..., :count])

        return replace(self, magnitudes=cut(self.magnitudes), accounts=cut(self.accounts))

    @cached_property
    def native(self) -> bindings.ServiceClass:
        """Return the C side's view of it; valid while this lives."""
        return bindings.ServiceClass(
            self.layer,
            None if self.magnitudes is None else address_of(self.magnitudes),
            None if self.accounts is None else address_of(self.accounts),
            address_of(self.budgets),
            self.budgets.size,
            self.accounts.shape[0] if self.accounts is not None and self.accounts.ndim == 2 else 1,
        )


def _check_below(array: npt.NDArray[Any], limit: int, what: str) -> None:
    if array.size and int(array.max()) >= limit:
        raise ValueError(f"{what} {int(array.max())}: there are {limit}")


LOSSLESS: Final = ServiceClass()
