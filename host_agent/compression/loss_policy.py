# SPDX-License-Identifier: Apache-2.0
"""Loss policies: how much of a gradient may go missing in a step, by layer class and magnitude class.

A block that goes missing counts as zero in the sum of that step, and its owner adds it to its next gradient
(error feedback). The average is not rescaled by the number of workers that were included: the others would
then stand in for the missing one, and it would be counted again when its residual arrives. Delivered late but
once, every gradient has the weight that it has without loss.

Budgets bound what is lost of every tensor in every step; what is in fact lost is up to the network, which
takes nothing from a packet unless it has to.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from softp4.native.files import write_atomically
from softp4.native.json_text import parse_json
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.classes import LayerClasses
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

Share = Annotated[float, Field(ge=0, le=1)]

# The shape of a policy made from one number, after what DLCP reports: models stood 1.1 % loss in front layers
# but 0.4 % in back layers, 1.6 % of small gradients but 0.1 % of large ones.
LAYER_SHAPE: Final = (1.0, 0.8, 0.6, 0.4)
CHOICE: Final = 3
"""Chosen here: this many times the budget may be lost, so that the network has a choice. From the smallest
magnitudes on, and none of the others: with a budget of 10 % the smaller third of a tensor."""

_ROUNDING: Final = 1e-6  # lanes: a product such as 0.29 * 100 must not lose a whole one to binary fractions
_OLD_TABLE: Final = [4] * 6  # magnitude classes of each layer class before wire version 3
_MOST_ACCOUNTS: Final = 1 << 16


class LossPolicyError(ValueError):
    """A loss policy, or a file with one, is not valid; says what is wrong, where, and what would do."""


@dataclass(frozen=True)
class Accounts:
    """The lanes of one vector that may go missing. of_block: each block's account; budgets: by account.

    There are MAGNITUDE_CLASSES accounts for every parameter, in the order of the layout.
    """

    of_block: npt.NDArray[np.uint16]
    budgets: npt.NDArray[np.uint64]


class LossPolicy(BaseModel):
    """The shares, 0 to 1, that may go missing; frozen.

    Args:
        budgets: of the blocks of one magnitude class in one tensor: a row for each layer class from the front
            to the back, in it a share for each magnitude class from the smallest to the largest.
        tensor: of a whole tensor, by layer class; whatever the budgets say, no tensor loses more.
        calibration: how the numbers were found, for people; ignored.

    Example::

        policy = LossPolicy.from_budget(0.05)
        policy.save(Path("policy.json"))
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal["weir-loss-policy-1"] = "weir-loss-policy-1"
    budgets: tuple[tuple[Share, ...], ...]
    tensor: tuple[Share, ...]
    calibration: Mapping[str, Any] | None = None

    @field_validator("budgets")
    @classmethod
    def _is_a_table(cls, rows: tuple[tuple[float, ...], ...]) -> tuple[tuple[float, ...], ...]:
        if len(rows) != LAYER_CLASSES or any(len(row) != MAGNITUDE_CLASSES for row in rows):
            found = ", ".join(str(len(row)) for row in rows)
            old = [len(row) for row in rows] == _OLD_TABLE
            raise ValueError(
                f"{LAYER_CLASSES} rows (layer classes) of {MAGNITUDE_CLASSES} shares (magnitude classes) "
                f"are needed, these are {len(rows)} of {found or 'none'}"
                + ("; it was made for the classes of wire version 2: calibrate again" if old else "")
            )
        return rows

    @field_validator("tensor")
    @classmethod
    def _has_a_share_per_layer(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        if len(shares) != LAYER_CLASSES:
            raise ValueError(f"{LAYER_CLASSES} shares (layer classes) are needed, not {len(shares)}")
        return shares

    @classmethod
    def of(cls, given: "LossPolicy | float | str | Path") -> "LossPolicy":
        """Return a policy itself, one made from a budget, or the one in a file."""
        if isinstance(given, LossPolicy):
            return given
        return cls.load(Path(given)) if isinstance(given, str | Path) else cls.from_budget(given)

    @classmethod
    def from_budget(cls, p: float) -> Self:
        """Allow at most the share ``p`` of a tensor in the front layers, less towards the back (LAYER_SHAPE).

        Within a tensor, of the smallest blocks, whichever of them the network takes (CHOICE). 0: lossless.
        """
        if not 0.0 <= p <= 1.0:
            raise LossPolicyError(f"loss budget {p!r}: it is the share that may go missing, from 0 to 1")
        tensor = tuple(p * layer for layer in LAYER_SHAPE)
        return cls(budgets=tuple(map(_smallest, tensor)), tensor=tensor)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the policy in a JSON file, such as ``weir calibrate`` writes. LossPolicyError, or
        OSError.
        """
        try:
            return cls.model_validate(parse_json(path.read_bytes()))
        except ValidationError as error:
            problems = "\n".join(f"  {_sentence(item)}" for item in error.errors())
            raise LossPolicyError(f"{path} is no loss policy:\n{problems}") from None
        except ValueError as error:
            raise LossPolicyError(f"{path} is no loss policy: it is not JSON ({error})") from None

    def save(self, path: Path) -> None:
        """Write the policy as JSON, for ``load``. After an error an older file is unchanged.

        Args:
            path: of the file.

        Raises:
            OSError: the file cannot be written.
        """
        write_atomically(path, json.dumps(self.model_dump(mode="json"), indent=2) + "\n")

    @property
    def lossless(self) -> bool:
        """Return whether nothing may ever go missing."""
        return not any(self.tensor) or not any(any(row) for row in self.budgets)

    def shares(self, layout: BucketLayout, layers: LayerClasses) -> npt.NDArray[np.float64]:
        """Return the share that may be lost of each account, in the order of ``Accounts``.

        Args:
            layout: places of the parameters in the bucket.
            layers: classes of the layers.
        """
        rows = [self.budgets[layers[segment.name]] for segment in layout]
        return np.array(rows, np.float64).reshape(-1)

    def accounts_for(
        self,
        layout: BucketLayout,
        layers: LayerClasses,
        magnitudes: npt.NDArray[np.uint8],
        occupied: npt.NDArray[np.bool_],
        block_lanes: int | None = None,
    ) -> Accounts:
        """Return how many lanes of a vector may be lost in one step, by account.

        Shares are rounded down to lanes, and a block is lost whole. So of a few blocks and a small share
        nothing can be lost.

        Args:
            layout: places of the parameters in the bucket.
            layers: classes of the layers.
            magnitudes: class of each block, uint8.
            occupied: whether this worker sends lanes of the block, bool; shares are of the lanes that it
                sends.
            block_lanes: lanes of a block; by default one for each value.
        """
        of_block = _accounts(layout, magnitudes)
        count = len(layout.segments) * MAGNITUDE_CLASSES
        if count > _MOST_ACCOUNTS:
            raise LossPolicyError(
                f"bucket {layout.index} has {len(layout.segments)} parameters, a loss budget can be kept for "
                f"{_MOST_ACCOUNTS // MAGNITUDE_CLASSES}: make buckets smaller (bucket_cap_mb)"
            )
        lanes = np.bincount(of_block[occupied], minlength=count) * float(block_lanes or layout.packet_block)
        budgets = np.floor(self.shares(layout, layers) * lanes + _ROUNDING).reshape(-1, MAGNITUDE_CLASSES)
        whole = np.array([self.tensor[layers[segment.name]] for segment in layout])
        most = np.floor(whole * lanes.reshape(budgets.shape).sum(axis=1) + _ROUNDING)
        total = budgets.sum(axis=1)
        over = total > most
        budgets[over] = np.floor(budgets[over] * (most[over] / total[over])[:, np.newaxis])
        return Accounts(of_block.astype(np.uint16), budgets.reshape(-1).astype(np.uint64))


def _smallest(share: float) -> tuple[float, ...]:
    """Return for each magnitude class whether it is of those that hold CHOICE times the budget."""
    classes = math.ceil(CHOICE * share * MAGNITUDE_CLASSES - _ROUNDING)
    return tuple(float(magnitude < classes) for magnitude in range(MAGNITUDE_CLASSES))


def _accounts(layout: BucketLayout, magnitudes: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    return layout.owners * MAGNITUDE_CLASSES + magnitudes


def _sentence(item: Any) -> str:
    """Return one pydantic error: where in the file, what is wrong, what was there."""
    where = item["loc"]
    if where[:1] == ("budgets",) and len(where) == 3:
        place = f"budgets of layer class {where[1]}, magnitude class {where[2]}"
    else:
        place = " ".join(str(part) for part in where) or "the whole file"
    message = item["msg"].removeprefix("Value error, ")
    shown = "" if item["type"] in {"value_error", "missing"} else f", not {item['input']!r}"
    return f"{place}: {message[0].lower()}{message[1:]}{shown}"
