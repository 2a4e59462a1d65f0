# SPDX-License-Identifier: Apache-2.0
"""A whole plan: samples, their features or buckets of these, and where all of it lies."""

import time
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from weir.host_agent.placement.hashing import (
    Buckets,
    compositional_buckets,
    likeness,
    local_buckets,
    plain_buckets,
)
from weir.host_agent.placement.partitioners import PARTITIONERS
from weir.host_agent.placement.racks import in_racks
from weir.host_agent.placement.samples import Samples
from weir.host_agent.placement.servers import place_parameters
from weir.host_agent.placement.traffic import SLACK, Placement, Traffic, traffic, users

Hashing = Literal["none", "plain", "compositional", "local", "clustered"]
HASHINGS: Final[tuple[Hashing, ...]] = ("none", "plain", "compositional", "local", "clustered")
BOTH_RANDOM: Final = "random/random"
"""Samples and parameters dealt at random: what a parameter server does that does not look."""


@dataclass(frozen=True)
class Plan:
    """samples: with buckets for features where these are hashed. seconds: that partitioning took. racks: of
    the machines.
    """

    samples: Samples
    buckets: Buckets | None
    placement: Placement
    traffic: Traffic
    seconds: float
    racks: int = 1


def make_plan(
    samples: Samples,
    machines: int,
    method: str,
    *,
    hashing: Hashing = "none",
    buckets: int = 0,
    hashes: int = 1,
    racks: int = 1,
    slack: float = SLACK,
    seed: int = 0,
) -> Plan:
    """Place samples, and parameters where they are used.

    Plain and compositional hashes come first, and their buckets' graph is cut; local ones, and clusters of
    features that are alike in what they say of the label, come after the cut, and know it.

    Args:
        method: a name of `PARTITIONERS`, or `BOTH_RANDOM`.
        hashing, buckets: how features share parameters, and how many there are. hashes: buckets of each
            feature, of plain and local hashes.
        racks: of a leaf-spine network, with equally many machines each: parts that have much to say to each
            other share one.
        slack: by which a machine may have more than its share.

    Raises:
        MissingPackageError: the method's program is not installed.
        ValueError: numbers that make no sense.
    """
    if machines < 1 or machines > max(len(samples), 1):
        raise ValueError(f"{machines} machines for {len(samples)} samples")
    if hashing != "none" and buckets < machines:
        raise ValueError(f"{buckets} buckets for {machines} machines: there must be at least one each")
    began = time.monotonic()
    hashed: Buckets | None = None
    if hashing == "plain":
        hashed = plain_buckets(samples.width, buckets, hashes=hashes, seed=seed)
    elif hashing == "compositional":
        hashed = compositional_buckets(samples.width, buckets, seed=seed)
    if hashed is not None:
        samples = hashed.compress(samples)
    places = PARTITIONERS["random" if method == BOTH_RANDOM else method](samples, machines, slack, seed)
    if hashing in ("local", "clustered"):
        like = likeness(samples) if hashing == "clustered" else None
        used = users(samples, places, machines)
        hashed = local_buckets(used, buckets, hashes=1 if like is not None else hashes, seed=seed, like=like)
        samples = hashed.compress(samples)
    if method == BOTH_RANDOM:
        parameters = np.random.default_rng(seed).permutation(np.arange(samples.width) % machines)
    else:
        parameters = place_parameters(users(samples, places, machines), slack)
    placement = Placement(machines, places, parameters)
    if racks > 1:
        placement = in_racks(placement, traffic(samples, placement).links, racks)
    placement.check(samples, slack)
    return Plan(samples, hashed, placement, traffic(samples, placement), time.monotonic() - began, racks)
