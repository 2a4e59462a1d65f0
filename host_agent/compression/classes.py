# SPDX-License-Identifier: Apache-2.0
"""The importance of a part of a gradient: its layer class, and the magnitude class of each of its blocks.

The layer class says how soon the next forward pass needs the parameter: it decides which of the network's
queues a bucket's packets wait in. The magnitude class says how much the block contributes: it decides what a
congested queue drops first, and together they decide how much may go missing
(``weir.host_agent.compression.loss_policy``). Workers need not agree on either for sums to be right;
where they do, whole sums may be cut instead of parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.bucket_layout import BucketLayout, Parameters
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

_LARGEST: Final = torch.finfo(torch.float32).max
_SPREAD: Final = np.uint32(0x9E3779B1)
"""Odd, near 2^32 over the golden ratio: multiples of it, modulo 2^32, are spread evenly."""
_THIRD: Final = np.uint32(2**32 // MAGNITUDE_CLASSES)


def layer_classes(sizes: Sequence[int]) -> list[int]:
    """Return the layer class of each of the tensors with this many elements, given in the order of the
    forward pass.

    The elements are cut into LAYER_CLASSES equal runs; a tensor belongs to the run that its middle is in.
    The runs that have a tensor are then spread evenly over the classes: the first tensor is in class 0 and
    the last one in the last class, also in a model where one tensor has nearly all elements.

    Example::

        layer_classes([10, 10, 10, 10])   # [0, 1, 2, 3]
        layer_classes([10, 1000, 10])     # [0, 1, 3]
    """
    ends = np.cumsum(np.asarray(sizes, np.int64))
    if not ends.size or not ends[-1]:
        return [0] * len(sizes)
    middles = 2 * ends - np.asarray(sizes)  # twice the middle, to stay with integers
    runs = np.minimum(LAYER_CLASSES * middles // (2 * ends[-1]), LAYER_CLASSES - 1)
    found, places = np.unique(runs, return_inverse=True)
    last = max(found.size - 1, 1)
    return [int(place) * (LAYER_CLASSES - 1) // last for place in places]


class LayerClasses:
    """The layer class of every parameter of a module: 0 for the front, LAYER_CLASSES - 1 for the back.

    The order of ``named_parameters`` stands for the order of the forward pass, as it does in DDP.
    """

    def __init__(self, classes: Mapping[str, int]) -> None:
        self._classes = dict(classes)

    @classmethod
    def of(cls, module: Parameters) -> "LayerClasses":
        """Return the classes of the module's parameters that are trained."""
        named = [(name, p.numel()) for name, p in module.named_parameters() if p.requires_grad]
        classes = layer_classes([size for _, size in named])
        return cls({name: found for (name, _), found in zip(named, classes, strict=True)})

    def __getitem__(self, name: str) -> int:
        return self._classes[name]

    def frontmost(self, names: Iterable[str]) -> int:
        """Return the class of packets that carry these parameters: anyone who waits for one of them waits for
        all.
        """
        return min(self._classes[name] for name in names)

    def counts(self) -> list[int]:
        """Return how many parameters each class has."""
        return [list(self._classes.values()).count(found) for found in range(LAYER_CLASSES)]


def magnitude_classes(layout: BucketLayout, vector: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the magnitude class of every block of ``vector`` (float32, spread by ``layout``), as one worker
    sees it.

    The blocks of each tensor that are not zero are sorted by mean |g| and cut into MAGNITUDE_CLASSES equal
    parts, 0 the smallest; equal blocks are in one class, the larger. Nothing is remembered of other steps:
    what meets in a queue is of one step, and bounds from steps before would put nearly all of a step whose
    gradients are larger, or smaller, into one class.
    """
    sums = torch.linalg.vector_norm(vector.view(-1, layout.packet_block), ord=1, dim=1)
    means = array_of((sums / layout.block_lengths).clamp_(max=_LARGEST))
    return _thirds(layout.owners, means == 0, means)


def shared_magnitude_classes(
    layout: BucketLayout, scales: npt.NDArray[np.uint32], step: int
) -> npt.NDArray[np.uint8]:
    """Return the magnitude class of every block as all workers see it, who need not ask one another.

    A switch may cut a sum, or a result for all, only if every worker gave up its part. So the classes follow
    from numbers that all have: the scales on which they agreed for this step. In these is what each worker
    still owes, so a block that went missing moves up. Of blocks with the same scale, each takes its turn: it
    is among the smallest third of them in one of three steps.

    Args:
        layout: of the blocks.
        scales: of every block, the greater the larger the values; 0: of zeros on every worker.
        step: the number of the step.
    """
    turns = np.arange(scales.size, dtype=np.uint32) * _SPREAD + np.uint32(step % MAGNITUDE_CLASSES) * _THIRD
    return _thirds(layout.owners, scales == 0, scales.astype(np.uint64) << np.uint64(32) | turns)


def _thirds(
    owners: npt.NDArray[np.intp], zero: npt.NDArray[np.bool_], sizes: npt.NDArray[Any]
) -> npt.NDArray[np.uint8]:
    """Return the classes of blocks, tensor by tensor, by their sizes; 0 of those that are zero."""
    order = np.lexsort((sizes, ~zero, owners))  # in each tensor its zeros first
    classes = np.empty(owners.size, np.uint8)
    owners, zero, sizes = owners[order], zero[order], sizes[order]
    zeros = np.bincount(owners[zero], minlength=owners[-1] + 1) if owners.size else np.zeros(1, int)
    counts = np.bincount(owners, minlength=zeros.size)
    firsts = np.cumsum(counts) - counts + zeros
    places = np.arange(owners.size) - firsts[owners]
    bounds = (counts - zeros)[:, np.newaxis] * np.arange(1, MAGNITUDE_CLASSES) // MAGNITUDE_CLASSES
    new = np.ones(owners.size, np.bool_)  # begins a run of equal blocks
    new[1:] = (np.diff(owners) != 0) | (np.diff(sizes) != 0)
    lasts = np.append(np.flatnonzero(new)[1:], owners.size) - 1
    places = places[lasts][np.cumsum(new) - 1]
    found: npt.NDArray[np.uint8] = (places[:, np.newaxis] >= bounds[owners]).sum(axis=1, dtype=np.uint8)
    found[zero] = 0
    classes[order] = found
    return classes
