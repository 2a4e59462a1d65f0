# SPDX-License-Identifier: Apache-2.0
"""Parameters where they lie in memory, as rows of a layout: nothing is copied to be compressed.

Between a step's two passes (``rules`` and ``delivery``) a parameter's memory holds what is pending of it.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.counts import CountLanes
from weir.host_agent.compression import bindings
from weir.host_agent.compression.updates.layout import ROW, UpdateLayout
from weir.host_agent.transport.arrays import address_of

_FIELDS: Final = 4  # of ``part`` in updates.c


class Parts:
    """The values and gradients of all parameters, for one step.

    Attributes:
        layout: of the parameters.
        address: of the table that C reads.
        count: of parameters.
        values: of each parameter.

    Args:
        layout: of the parameters.
        values: contiguous float32 tensors in main memory, in this order.
        gradients: likewise; None: zeros.

    Raises:
        ValueError: a tensor is another one.
    """

    def __init__(
        self,
        layout: UpdateLayout,
        values: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None] | None = None,
    ) -> None:
        self.layout, self.count = layout, len(layout.names)
        self.values = list(values)
        self._gradients = [None] * self.count if gradients is None else list(gradients)
        self._table = np.zeros((self.count, _FIELDS), np.uint64)
        for index, (own, gradient) in enumerate(zip(self.values, self._gradients, strict=True)):
            size = layout.sizes[index]
            addresses = [_address(one, size) if one is not None else 0 for one in (own, gradient)]
            self._table[index] = (*addresses, size, layout.starts[index] // ROW)
        self.address = address_of(self._table)

    def spoilt(self) -> npt.NDArray[np.bool_]:
        """Return for each parameter whether its gradient holds NaN or infinity."""
        found = np.empty(self.count, np.bool_)
        bindings.library().weir_updates_spoilt(self.address, self.count, address_of(found))
        return found

    def gradient_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return copies of some rows of the gradients, which are ascending: float32[rows, ROW]."""
        return self._take(rows, gradients=True)

    def value_rows(self, rows: torch.Tensor | None) -> torch.Tensor:
        """Return copies of some rows of the values, None: of all."""
        return self._take(rows, gradients=False)

    def signs(self, rows: torch.Tensor | None, form: CountLanes) -> npt.NDArray[np.uint32]:
        """Return the signs of some rows of the values as counts, 1 for plus, in lanes; None: of all rows."""
        count = self._row_count(rows)
        lanes = np.empty(form.lanes(count * ROW), np.uint32)
        bindings.library().weir_updates_signs(
            self.address, pointer(rows), count, form.base, form.digits, address_of(lanes)
        )
        return lanes

    def settle(
        self,
        rows: torch.Tensor | None,
        own: torch.Tensor,
        mean: torch.Tensor,
        shared: torch.Tensor,
        factors: torch.Tensor,
    ) -> None:
        """Let values be weights again, of a shared point that has moved.

        Args:
            rows: those delivered, ascending; None: all.
            own, mean: float32[rows, ROW], delivered by this worker, and the mean of all workers.
            shared: the shared point, float32[rows, ROW]; overwritten.
            factors: float32[parameters], by which it is multiplied first.
        """
        bindings.library().weir_updates_settle(
            self.address,
            self.count,
            pointer(factors),
            pointer(rows),
            self._row_count(rows),
            pointer(own),
            pointer(mean),
            pointer(shared),
        )

    def settle_signs(
        self,
        rows: torch.Tensor | None,
        scales: torch.Tensor,
        lanes: npt.NDArray[np.uint32],
        form: CountLanes,
        shared: torch.Tensor,
        factors: torch.Tensor,
    ) -> None:
        """Do ``settle`` of signs. scales: float32[rows]; lanes: the sums of all workers' ``signs``."""
        bindings.library().weir_updates_settle_signs(
            self.address,
            self.count,
            pointer(factors),
            pointer(rows),
            self._row_count(rows),
            pointer(scales),
            address_of(lanes),
            form.most,
            form.base,
            form.digits,
            pointer(shared),
        )

    def _take(self, rows: torch.Tensor | None, *, gradients: bool) -> torch.Tensor:
        count = self._row_count(rows)
        out = torch.empty(count, ROW)
        bindings.library().weir_updates_take(self.address, pointer(rows), count, gradients, pointer(out))
        return out

    def _row_count(self, rows: torch.Tensor | None) -> int:
        return self.layout.rows if rows is None else len(rows)


def _address(tensor: torch.Tensor, size: int) -> int:
    fits = tensor.is_cpu and tensor.dtype is torch.float32 and tensor.is_contiguous()
    if not fits or tensor.numel() != size:
        raise ValueError(
            f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}: the step reads {size} contiguous "
            "float32 values in main memory"
        )
    return tensor.data_ptr()


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Return the address of a tensor for C, None for none. Raises ValueError: it is not in one piece."""
    if tensor is None:
        return None
    if not tensor.is_contiguous():
        raise ValueError("C reads contiguous tensors")
    return tensor.data_ptr()
