# SPDX-License-Identifier: Apache-2.0
"""The place of a rank in ``weir bench gpu``: its groups, its clock and its device's memory."""

import gc
import time
from typing import Any, ClassVar, Final, Protocol, cast

import torch
import torch.distributed as dist

import weir.torch
from weir.host_agent.collectives.packing import LaneBits

PIECES: Final = 4
"""Gloo groups that stand side by side."""


class Place:
    """Groups that are made when they are first asked for, by all ranks in the same order, and a clock.

    Attributes:
        rank, size: in the default group, which is Gloo's.
        cuda: some item measures on the device, so the clock waits for it.
    """

    def __init__(self, cuda: bool) -> None:
        self.rank, self.size, self.cuda = dist.get_rank(), dist.get_world_size(), cuda
        self._pieces: list[dist.ProcessGroup] = []
        self._weir: dict[tuple[LaneBits, bool], weir.torch.WeirProcessGroup] = {}

    @property
    def gloo(self) -> dist.ProcessGroup:
        """Gloo's group."""
        group = dist.group.WORLD
        assert group is not None
        return group

    def pieces(self) -> list[dist.ProcessGroup]:
        """Return Gloo groups for pieces of one tensor."""
        if not self._pieces:
            self._pieces = [dist.new_group(backend="gloo") for _ in range(PIECES)]
        return self._pieces

    def weir(self, bits: LaneBits = 32, *, local: bool = False) -> weir.torch.WeirProcessGroup:
        """Return Weir's group with ``bits`` to a value. local: its ranks reduce in the host's memory."""
        if (bits, local) not in self._weir:
            options = weir.torch.GroupOptions(lane_bits=bits, local="on" if local else "off")
            group = dist.new_group(backend="weir", pg_options=options)
            self._weir[bits, local] = cast(weir.torch.WeirProcessGroup, group)
        return self._weir[bits, local]

    def begin(self) -> float:
        """Wait until all ranks are here and the device is idle, and return the time."""
        self._wait_for_device()
        dist.barrier()
        return time.perf_counter()

    def since(self, began: float) -> float:
        """Return the seconds until all that was begun on the device is done."""
        self._wait_for_device()
        return time.perf_counter() - began

    def most(self, value: float) -> float:
        """Return the largest of all ranks' values."""
        most = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return float(most)

    def tidy(self) -> None:
        """Give back the memory that an item has used."""
        gc.collect()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _wait_for_device(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


class Item(Protocol):
    """Something that all ranks measure together; a frozen dataclass of JSON's types.

    Attributes:
        case: the name of its kind.
        device: "cuda" or "cpu".
    """

    case: ClassVar[str]

    @property
    def device(self) -> str:
        """Device of the tensors."""

    @property
    def name(self) -> str:
        """Name in progress reports."""

    def run(self, place: Place) -> dict[str, Any]:
        """Measure, and return what JSON can hold."""
