# SPDX-License-Identifier: Apache-2.0
"""Compression of a sparse linear model: features share buckets, and the graph is that of the buckets.

Feature hashing (Weinberger et al., 2009): a feature's weight is that of its bucket, with a sign of its own,
so that features which collide do so without bias. Hashing couples samples that have nothing in common: a
bucket is needed wherever any of its features is. So it is better to know the partition when features are
hashed (`local_buckets`): features that the same machines use share buckets, and cost what one of them would;
best those of them that say the same of the label.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from weir.host_agent.placement.samples import Integers, Samples
from weir.host_agent.placement.traffic import Users

Floats = npt.NDArray[np.float64]

MACHINES: Final = 63  # as many fit into one number as a set of users


@dataclass(frozen=True)
class Buckets:
    """A hash of features.

    of_feature: int64[hashes, width], the buckets of each. signs: of the same shape, 1 or -1.
    """

    count: int
    of_feature: Integers
    signs: Integers

    def compress(self, samples: Samples) -> Samples:
        """Return the samples with buckets as their features."""
        rows = np.tile(samples.rows, len(self.of_feature))
        buckets = self.of_feature[:, samples.features].reshape(-1)
        return Samples.of_pairs(rows, buckets, len(samples), self.count, samples.labels, samples.names)


def plain_buckets(width: int, count: int, *, hashes: int = 1, seed: int = 0) -> Buckets:
    """Hash features to buckets at random, each to ``hashes`` of them."""
    rng = np.random.default_rng(seed)
    return Buckets(
        count, rng.integers(count, size=(hashes, width)), 1 - 2 * rng.integers(2, size=(hashes, width))
    )


def compositional_buckets(width: int, count: int, *, seed: int = 0) -> Buckets:
    """Give each feature two buckets, by quotient and remainder of a number drawn for it, which no other
    feature has together (Shi et al., 2020); its embedding is the sum of theirs.

    Raises:
        ValueError: fewer buckets than that takes.
    """
    if count * count < 4 * width:
        raise ValueError(f"{count} buckets make fewer than {width} pairs: at least {2 * isqrt(width) + 2}")
    quotients = -(-2 * width // (count + isqrt(count * count - 4 * width)))
    rest = count - quotients
    features = np.random.default_rng(seed).permutation(width)  # neighbours are of one text, which is a hint
    return Buckets(
        count, np.stack([features // rest, quotients + features % rest]), np.ones((2, width), np.int64)
    )


def likeness(samples: Samples) -> Floats:
    """Return for each feature the share of its samples that have label 1, drawn to that of all samples by one
    sample more: what a linear model can know of it at most (Baker and McCallum, 1998).

    Raises:
        ValueError: the samples have no labels 0 and 1.
    """
    labels = samples.labels
    if labels is None or not labels.size or not 0 <= labels.min() <= labels.max() <= 1:
        raise ValueError(
            "clusters of features need samples with labels of two kinds: give two folders, or a file of them"
        )
    ones = np.bincount(samples.features, labels[samples.rows], minlength=samples.width)
    total = np.bincount(samples.features, minlength=samples.width)
    found: Floats = (ones + labels.mean()) / (total + 1)
    return found


def local_buckets(
    used: Users, count: int, *, hashes: int = 1, seed: int = 0, like: Floats | None = None
) -> Buckets:
    """Hash features so that those used by the same machines share buckets.

    Each set of machines gets buckets in proportion to the features that it alone uses, one at least while
    there are enough; so about as many features share a bucket as with a plain hash. The smallest sets share
    theirs.

    used: bool[machines, width], up to 63 machines. like: float[width]: instead of a hash, features of one set
    share buckets that are alike in this, without signs; hashes must be 1.

    Raises:
        ValueError: more machines, or no buckets.
    """
    machines, width = used.shape
    if machines > MACHINES:
        raise ValueError(f"{machines} machines: the limit is {MACHINES}")
    if count < 1:
        raise ValueError(f"{count} buckets")
    rng = np.random.default_rng(seed)
    codes = (1 << np.arange(machines, dtype=np.int64)) @ used
    sets, of_set, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    kept = np.argsort(-sizes, kind="stable")[: max(count // 2, 1)]  # half the buckets for ones, half by size
    group = np.zeros(sets.size, np.int64)  # group 0: all sets that are too small
    group[kept] = np.arange(1, kept.size + 1)
    members = np.bincount(group[of_set], minlength=kept.size + 1)
    ends = np.rint(np.cumsum(members) * count / width).astype(np.int64)
    begins = np.concatenate([[0], ends[:-1]])
    spans = np.maximum(ends - begins, 1)
    of_group = group[of_set]
    drawn = rng.random((hashes, width))
    signs = 1 - 2 * rng.integers(2, size=(hashes, width))
    if like is not None:
        order = np.lexsort((drawn[0], like, of_group))
        before = np.cumsum(members) - members
        drawn = np.empty((1, width))
        drawn[0, order] = (np.arange(width) - before[of_group[order]]) / members[of_group[order]]
        signs = np.ones((1, width), np.int64)
    buckets = begins[of_group] + (drawn * spans[of_group]).astype(np.int64)
    return Buckets(count, np.minimum(buckets, count - 1), signs)
