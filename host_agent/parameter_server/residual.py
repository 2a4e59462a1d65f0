# SPDX-License-Identifier: Apache-2.0
"""The residual of a worker: updates that wait, until they add up to enough or arrive after all."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.routing import Integers
from weir.host_agent.parameter_server.value_filter import Bits, Floats

Where = slice | Integers
"""Elements of the model."""

ALL = slice(None)


class Held(Protocol):
    """A worker's side of the filter: ``add`` an update, choose, ``take`` what was chosen."""

    def add(self, where: Where, update: Floats) -> Floats:
        """Take in an update of some elements, and return what there is to send of it and of those held; not
        to be changed.
        """
        ...

    def take(self, where: Where, chosen: Bits) -> Floats:
        """Return the chosen ones of some elements, zero elsewhere: they are held no more."""
        ...

    def put_back(self, places: Integers, values: Floats) -> None:
        """Hold again what was taken from these elements, and did not arrive."""
        ...

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state, by name, without copying."""
        ...


class Residual:
    """The sum of what was not sent. Exact: an element is sent whole, or stays; nothing is ever divided.

    Right for whatever the updates are: gradients for a server's optimizer, or a worker's own steps. Memory of
    elements that are never touched is never taken.
    """

    def __init__(self, size: int) -> None:
        self._sum = np.zeros(size, np.float32)

    def add(self, where: Where, update: Floats) -> Floats:
        """Add an update, and return the sum."""
        self._sum[where] += update
        found: Floats = self._sum[where]
        return found

    def take(self, where: Where, chosen: Bits) -> Floats:
        """Return the chosen elements of the sum; zero is left of them."""
        due = self._sum[where]
        taken = np.where(chosen, due, np.float32(0))
        self._sum[where] = np.where(chosen, np.float32(0), due)
        return taken

    def put_back(self, places: Integers, values: Floats) -> None:
        """Add what did not arrive."""
        self._sum[places] += values

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the sum."""
        return {"sum": self._sum}


class MomentumResidual:
    """SGD's momentum on the worker, whose buffer is the residual too, as in PF-Caffe.

    There a step is ``h = m * h + update``; where h is small it is not sent, and becomes ``h / m``: the next
    step's m * h is then all of it, so that what is held adds up without decay. Here a bit per element says
    that the next step is not to multiply, which is the same without two roundings.

    It saves the memory of a residual, and differs from momentum in front of a ``Residual``: there, what is
    held would go on being repeated by m, m^2, ... at every step; here it is not, until it is sent.
    """

    def __init__(self, size: int, momentum: float) -> None:
        if not 0.0 < momentum < 1.0:
            raise ValueError(f"momentum {momentum} is not between 0 and 1")
        self._momentum = np.float32(momentum)
        self._buffer = np.zeros(size, np.float32)
        self._held = np.zeros(size, np.bool_)
        self._owed = np.zeros(size, np.float32)

    def add(self, where: Where, update: Floats) -> Floats:
        """Make a step of momentum, and return the buffer, with what was lost of it before."""
        buffer = self._buffer[where]
        buffer = np.where(self._held[where], buffer, buffer * self._momentum) + update
        self._buffer[where] = buffer
        due: Floats = buffer + self._owed[where]
        return due

    def take(self, where: Where, chosen: Bits) -> Floats:
        """Return the chosen elements of the buffer, which decay from now on; the others wait."""
        self._held[where] = ~chosen
        owed = self._owed[where]
        taken = np.where(chosen, self._buffer[where] + owed, np.float32(0))
        self._owed[where] = np.where(chosen, np.float32(0), owed)
        return taken

    def put_back(self, places: Integers, values: Floats) -> None:
        """Keep apart what did not arrive, as the buffer goes on with it: it is sent with the next step."""
        self._owed[places] += values

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the buffer, and which of its elements are held."""
        return {"buffer": self._buffer, "held": self._held}
