# SPDX-License-Identifier: Apache-2.0
"""Encodings: how the chosen part of a gradient is written down, and the rules that say which one to use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from weir.wire.definition import BLOCK_SIZES, MAX_BLOCK_LOG2, SLOT_LANES

SCALE_BLOCK: Final = SLOT_LANES
"""Values that share one scale, whatever the encoding. Every parameter starts on a multiple of it."""

MASK_SIZES: Final = tuple(1 << log2 for log2 in range(MAX_BLOCK_LOG2 + 1))

Kind = Literal["auto", "dense", "blocks", "shared-mask"]


@dataclass(frozen=True)
class Encoding:
    """The form in which one parameter is written down.

    Attributes:
        mask_block: elements per bit of the mask that the workers agree on, one of MASK_SIZES; only blocks of
            this many elements in which some worker has chosen one are sent. None: no mask, the parameter is
            sent whole.
    """

    mask_block: int | None = None

    def __str__(self) -> str:
        return "dense" if self.mask_block is None else f"shared-mask:{self.mask_block}"


DENSE: Final = Encoding()


@dataclass(frozen=True)
class EncodingRule:
    """The encodings that may be used. size: of "blocks" and "shared-mask", elements per bit of the mask."""

    kind: Kind = "auto"
    size: int | None = None

    @property
    def encoding(self) -> Encoding | None:
        """Encoding that the rule prescribes; None: to be planned."""
        return None if self.kind == "auto" else Encoding(self.size)

    @property
    def packet_block(self) -> int | None:
        """Packet block that the rule prescribes; None: to be planned."""
        return self.size if self.kind == "blocks" else None

    def __str__(self) -> str:
        return self.kind if self.size is None else f"{self.kind}:{self.size}"


def parse_rule(text: str) -> EncodingRule:
    """Return the rule that a text stands for; ValueError says what there is.

    "auto": as is predicted to cost least. "dense": everything. "blocks:B": blocks of B values that are not
    zero on some worker, B from 32 to 256, as OmniReduce does. "shared-mask:M": blocks of M elements, 1 to
    256, in which some worker has chosen one.

    Example::

        parse_rule("shared-mask:4")   # EncodingRule("shared-mask", 4)
    """
    kind, colon, size = text.partition(":")
    if not colon and kind in ("auto", "dense"):
        return EncodingRule("auto" if kind == "auto" else "dense")
    if colon and kind == "blocks":
        return EncodingRule("blocks", _size(text, size, BLOCK_SIZES))
    if colon and kind == "shared-mask":
        return EncodingRule("shared-mask", _size(text, size, MASK_SIZES))
    raise ValueError(f"encoding {text!r} is not one of auto, dense, blocks:B and shared-mask:M")


def _size(text: str, size: str, known: tuple[int, ...]) -> int:
    if size not in map(str, known):
        raise ValueError(f"encoding {text!r}: the number must be one of {', '.join(map(str, known))}")
    return int(size)


@dataclass(frozen=True)
class EncodingPlan:
    """The encoding of one bucket; the same on every worker.

    Attributes:
        encodings: by parameter.
        packet_block: values in a block of the packets that carry them; zero blocks are skipped.
        levels: of the tree that the mask travels as, 1 to 3.
        capacities: where positions travel instead, how many blocks each worker chooses at most, by parameter
            that has a mask; None: the tree travels.
        reason: for people, one line.
        predicted: bytes on the wire that one worker sends and receives; 0: unknown.
        regions: elements in a region of a parameter's scales, see ``mask_scales``; SCALE_BLOCK if it is not
            there.
        tree: the tree's part of them.
    """

    encodings: Mapping[str, Encoding]
    packet_block: int = SLOT_LANES
    levels: int = 1
    reason: str = ""
    predicted: float = 0.0
    regions: Mapping[str, int] = field(default_factory=dict)
    tree: float = 0.0
    capacities: Mapping[str, int] | None = None
