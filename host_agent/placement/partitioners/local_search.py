# SPDX-License-Identifier: Apache-2.0
"""Local search on partitions: samples move one by one while that gains something (csrc/improve.c)."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from softp4 import native
from weir.host_agent.placement.samples import Integers, Samples
from weir.host_agent.placement.traffic import VALUE_BYTES, cap

MOST_MACHINES: Final = 256

_ENOUGH: Final = 1e-3  # of the cost: a pass that gains less is the last
_PASSES: Final = 12
_UNEVEN: Final = 1.1  # times the mean load of machines, from where on load is a cost of its own: chosen here
_DEAR: Final = 8.0  # what a transfer beyond the bound costs, in transfers

_pointer, _int64 = ctypes.c_void_p, ctypes.c_int64


class _Partition(ctypes.Structure):
    """``struct partition`` of improve.c."""

    _fields_ = (
        ("machines", _int64),
        *((name, _pointer) for name in ("starts", "features", "places", "sizes", "counts", "degree")),
        ("alone", _pointer),
        ("load", _pointer),
        ("most_samples", _int64),
        ("most_parameters", _int64),
        ("limit", ctypes.c_double),
        ("bound", ctypes.c_double),
        ("dear", ctypes.c_double),
    )


_SIGNATURES: Final[native.Signatures] = {
    "weir_improve": (ctypes.c_double, (ctypes.POINTER(_Partition), _pointer, _int64)),
    "weir_greedy": (
        None,
        (_int64, _pointer, _pointer, _pointer, _int64, _pointer, _pointer, _pointer),
    ),
}


@cache
def library() -> ctypes.CDLL:
    """Return the compiled functions; native's errors where there is no compiler."""
    return native.load_library(
        "placement", sorted((Path(__file__).parent / "csrc").glob("*.c")), signatures=_SIGNATURES
    )


class LocalSearch:
    """A partition that is improved in place.

    What counts is the pairs of machines and parameters in use, parameters that one machine alone uses and has
    no room for, and load: values that a machine pulls and serves, each parameter's transfers shared among its
    users.

    Args:
        samples, places, machines, slack: the partition; places is copied.
        bound: bytes that no machine should send and receive, by that estimate.

    Attributes:
        places: int64[samples], the machine of each.
    """

    def __init__(self, samples: Samples, places: Integers, machines: int, slack: float, bound: float) -> None:
        if machines > MOST_MACHINES:
            raise ValueError(f"{machines} machines: {MOST_MACHINES} at most")
        self.places = np.ascontiguousarray(places, np.int64).copy()
        self._samples, self._machines = samples, machines
        counts = np.zeros((samples.width, machines), np.int32)
        np.add.at(counts, (samples.features, places[samples.rows]), 1)
        used = counts > 0
        degree = used.sum(axis=1).astype(np.int32)
        alone = (used & (degree == 1)[:, None]).sum(axis=0).astype(np.int64)
        share = 2.0 * (degree - 1.0) / np.maximum(degree, 1) * (degree > 0)
        self._pairs = int(degree.sum())
        self._load = np.ascontiguousarray(share @ used)
        self._arrays = {
            "starts": np.ascontiguousarray(samples.starts, np.int64),
            "features": np.ascontiguousarray(samples.features, np.int64),
            "places": self.places,
            "sizes": np.bincount(places, minlength=machines).astype(np.int64),
            "counts": counts,
            "degree": degree,
            "alone": alone,
            "load": self._load,
        }
        self._state = _Partition(
            machines=machines,
            most_samples=cap(len(samples), machines, slack),
            most_parameters=cap(samples.width, machines, slack),
            bound=bound / (2 * VALUE_BYTES),
            dear=_DEAR,
            **{name: array.ctypes.data for name, array in self._arrays.items()},
        )

    def improve(self, rng: np.random.Generator) -> None:
        """Pass over all samples in random order, until a pass gains less than a thousandth (Fiduccia and
        Mattheyses, 1982, without their buckets).
        """
        for _ in range(_PASSES):
            self._state.limit = _UNEVEN * float(self._load.mean())
            order = rng.permutation(len(self._samples)).astype(np.int64)
            if library().weir_improve(self._state, order.ctypes.data, order.size) <= _ENOUGH * self._pairs:
                break
