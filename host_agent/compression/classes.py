# SPDX-License-Identifier: Apache-2.0
"""The importance of a part of a gradient: its layer class, and the magnitude class of each of its blocks.

The layer class says how soon the next forward pass needs the parameter: it decides which of the network's
queues a bucket's packets wait in. The magnitude class says how much the block contributes: it decides what a
congested queue drops first, and together they decide how much may go missing
(``weir.host_agent.compression.loss_policy``). Both are this worker's own view; workers need not agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.compression.bucket_layout import BucketLayout, Parameters
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

_LARGEST: Final = torch.finfo(torch.float32).max


def layer_classes(sizes: Sequence[int]) -> list[int]:
    """Return the layer class of each of the tensors with so many elements, given in the order of the forward
    pass.

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
        """Return the class of packets that carry these parameters: whoever waits for one of them waits for
        all.
        """
        return min(self._classes[name] for name in names)

    def counts(self) -> list[int]:
        """Return how many parameters each class has."""
        return [list(self._classes.values()).count(found) for found in range(LAYER_CLASSES)]


def magnitude_classes(
    layout: BucketLayout, vector: torch.Tensor, scales: npt.NDArray[np.uint32] | None = None
) -> npt.NDArray[np.uint8]:
    """Return the magnitude class of every block of ``vector`` (float32, spread by ``layout``).

    The blocks of each tensor that are not zero are sorted and cut into MAGNITUDE_CLASSES equal parts, 0 the
    smallest; equal blocks are in one class, the larger. They are sorted by the scale that all workers have
    agreed on, then by their own mean |g|: a rack's sum may be trimmed only if every worker's part of it may,
    so workers should find the same blocks small, as far as they know of each other. Nothing is remembered of
    other steps: what meets in a queue is of one step, and bounds from steps before would put nearly all of a
    step whose gradients are larger, or smaller, into one class.

    Args:
        scales: of every block, the greater the larger the values; None: workers know nothing of each other.
    """
    sums = torch.linalg.vector_norm(vector.view(-1, layout.packet_block), ord=1, dim=1)
    means = array_of((sums / layout.block_lengths).clamp_(max=_LARGEST))
    agreed = np.zeros(means.size, np.uint32) if scales is None else np.where(means == 0, 0, scales)
    order = np.lexsort((means, agreed, layout.owners))  # tensor by tensor, in each its zeros first
    classes = np.empty(means.size, np.uint8)
    classes[order] = _thirds(layout.owners[order], agreed[order], means[order])
    return classes


def _thirds(
    owners: npt.NDArray[np.intp], agreed: npt.NDArray[np.uint32], means: npt.NDArray[np.float32]
) -> npt.NDArray[np.uint8]:
    """Return the classes of blocks in their order."""
    zeros = np.bincount(owners[means == 0], minlength=owners[-1] + 1) if owners.size else np.zeros(1, int)
    counts = np.bincount(owners, minlength=zeros.size)
    firsts = np.cumsum(counts) - counts + zeros
    places = np.arange(owners.size) - firsts[owners]
    bounds = (counts - zeros)[:, np.newaxis] * np.arange(1, MAGNITUDE_CLASSES) // MAGNITUDE_CLASSES
    new = np.ones(owners.size, np.bool_)  # begins a run of equal blocks
    new[1:] = (np.diff(owners) != 0) | (np.diff(agreed.astype(np.int64)) != 0) | (np.diff(means) != 0)
    lasts = np.append(np.flatnonzero(new)[1:], owners.size) - 1
    places = places[lasts][np.cumsum(new) - 1]
    classes: npt.NDArray[np.uint8] = (places[:, np.newaxis] >= bounds[owners]).sum(axis=1, dtype=np.uint8)
    classes[means == 0] = 0
    return classes
