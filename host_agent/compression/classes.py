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


def magnitude_classes(layout: BucketLayout, vector: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the magnitude class of every block of ``vector`` (float32, spread by ``layout``).

    The blocks of each tensor that are not zero are sorted by their mean |g| and cut into MAGNITUDE_CLASSES
    equal parts, 0 the smallest; equal blocks are in one class, the larger. Nothing is remembered of other
    steps: what meets in a queue is of one step, and bounds from steps before would put nearly all of a step
    whose gradients are larger, or smaller, into one class.
    """
    sums = torch.linalg.vector_norm(vector.view(-1, layout.packet_block), ord=1, dim=1)
    means = (sums / layout.block_lengths).clamp_(max=_LARGEST).numpy()
    bounds = _quantiles(layout, means)[layout.owners]
    classes: npt.NDArray[np.uint8] = (means[:, np.newaxis] >= bounds).sum(axis=1, dtype=np.uint8)
    classes[means == 0] = 0
    return classes


def _quantiles(layout: BucketLayout, means: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return, in a row for each tensor, the least mean of each class but the first.

    Of those of its means that are not zero; a tensor that has none has a row without meaning.
    """
    tensors = len(layout.segments)
    blocks = np.bincount(layout.owners, minlength=tensors)
    zeros = np.bincount(layout.owners[means == 0], minlength=tensors)
    ordered = means[np.lexsort((means, layout.owners))]  # tensor by tensor, in each its zeros first
    places = (blocks - zeros)[:, np.newaxis] * np.arange(1, MAGNITUDE_CLASSES) // MAGNITUDE_CLASSES
    firsts = np.cumsum(blocks) - blocks + zeros
    seen = blocks > zeros
    return ordered[np.where(seen[:, np.newaxis], firsts[:, np.newaxis] + places, 0)]
