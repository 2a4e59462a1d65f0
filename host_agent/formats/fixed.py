# SPDX-License-Identifier: Apache-2.0
"""A planner that learns nothing: what is not prescribed gets one fixed mask."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from host_agent.bucket_layout import BucketLayout
from host_agent.formats.format import Format, Plan


class Planner:
    """One mask of 8 elements for every parameter."""

    def __init__(self, workers: int, slots: int) -> None:
        """Nothing to keep."""

    def resize(self, workers: int, slots: int) -> None:
        """The group has changed."""

    def plan(self, layout: BucketLayout, fixed: Mapping[str, Format], block: int | None) -> Plan:
        """A plan."""
        formats = {segment.name: fixed.get(segment.name, Format(8)) for segment in layout}
        return Plan(formats, block or 64, levels=2, reason="fixed")

    def count(self, layout: BucketLayout, packed: torch.Tensor) -> npt.NDArray[np.uint32]:
        """A count, to have one."""
        return np.array([int(torch.count_nonzero(packed))], np.uint32)

    def observe(
        self, layout: BucketLayout, plan: Plan, total: torch.Tensor, counts: npt.NDArray[np.uint32]
    ) -> None:
        """Learns nothing."""

    def end_step(self) -> None:
        """Nothing to do."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""
