# SPDX-License-Identifier: Apache-2.0
"""The importance of a part of a gradient: its layer class, and the magnitude class of each of its blocks.

The layer class says how soon the next forward pass needs the parameter: it decides which of the network's
queues a bucket's packets wait in. The magnitude class says how much the block contributes: together they
decide how much of it may go missing (``weir.host_agent.compression.loss_policy``). Both are this worker's own
view; workers need not agree.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.wire.definition import LAYER_CLASSES, MAGNITUDE_CLASSES

_LARGEST: Final = torch.finfo(torch.float32).max


def layer_classes(sizes: Sequence[int]) -> list[int]:
    """Return the layer class of each of the tensors with so many elements, given in the order of the forward
    pass.

    The elements are cut into LAYER_CLASSES equal runs; a tensor belongs to the run that its middle is in.
    The runs that have a tensor are then spread evenly over the classes: the first tensor is in class 0 and
    the last one in the last class, also in a model where one tensor has nearly all elements.

    Example::

        layer_classes([10, 10, 10, 10, 10, 10])   # [0, 1, 2, 3, 4, 5]
        layer_classes([10, 1000, 10])             # [0, 2, 5]
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
    def of(cls, module: torch.nn.Module) -> "LayerClasses":
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


@dataclass(frozen=True)
class Magnitudes:
    """The classifier's findings in one vector. classes: of each block; quartiles: to be adopted, by name."""

    classes: npt.NDArray[np.uint8]
    quartiles: Mapping[str, npt.NDArray[np.float32]]


class MagnitudeClassifier:
    """Sorts the blocks of each tensor into MAGNITUDE_CLASSES by their mean |g|, 3 being the largest.

    A block is compared with the tensor's quartiles of the steps before, an exponential average: one noisy
    step does not move the bounds by much. Blocks that are zero count nowhere: with a sparsifier the quartiles
    are those of what is sent. A tensor seen for the first time is compared with its own quartiles.

    decay: weight of the past in the average, in [0, 1). Gradients shrink as training goes on, so a long
    memory takes too many blocks for small ones; docs/calibrate.md has what was measured.
    """

    def __init__(self, decay: float = 0.5) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay is {decay!r}: it is the weight of the past, at least 0 and below 1")
        self.decay = decay
        self._quartiles: dict[str, npt.NDArray[np.float32]] = {}

    def classify(self, layout: BucketLayout, vector: torch.Tensor) -> Magnitudes:
        """Return the classes of the blocks of ``vector`` (float32, spread by ``layout``); changes nothing
        yet.
        """
        sums = torch.linalg.vector_norm(vector.view(-1, layout.packet_block), ord=1, dim=1)
        means = (sums / layout.block_lengths).clamp_(max=_LARGEST).numpy()
        now, seen = _quartiles(layout, means)
        known = [self._quartiles.get(segment.name) for segment in layout]
        before = np.stack([now[i] if limits is None else limits for i, limits in enumerate(known)])
        classes = (means[:, np.newaxis] >= before[layout.owners]).sum(axis=1, dtype=np.uint8)
        classes[means == 0] = 0
        average = now + np.float32(self.decay) * (before - now)
        names = [segment.name for segment in layout]
        return Magnitudes(classes, {names[i]: average[i] for i in np.flatnonzero(seen)})

    def adopt(self, magnitudes: Magnitudes) -> None:
        """Make what was found part of the average: once for every vector that was delivered."""
        self._quartiles.update(magnitudes.quartiles)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the averages by parameter name."""
        return {name: torch.tensor(quartiles) for name, quartiles in self._quartiles.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all averages by a copy of saved ones."""
        self._quartiles = {name: quartiles.numpy().copy() for name, quartiles in state.items()}


def _quartiles(
    layout: BucketLayout, means: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Return each tensor's quartiles, a row each, and whether it has a block that is not zero.

    They are three of its means: a quarter, a half, three quarters of those that are not zero are below them.
    """
    tensors = len(layout.segments)
    blocks = np.bincount(layout.owners, minlength=tensors)
    zeros = np.bincount(layout.owners[means == 0], minlength=tensors)
    ordered = means[np.lexsort((means, layout.owners))]  # tensor by tensor, in each its zeros first
    places = (blocks - zeros)[:, np.newaxis] * np.arange(1, MAGNITUDE_CLASSES) // MAGNITUDE_CLASSES
    firsts = np.cumsum(blocks) - blocks + zeros
    seen = blocks > zeros
    return ordered[np.where(seen[:, np.newaxis], firsts[:, np.newaxis] + places, 0)], seen
