# SPDX-License-Identifier: Apache-2.0
"""The residual of a worker's filter: updates that wait until they add up to more than the threshold."""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from weir.host_agent.parameter_server.value_filter import Bits, Floats


class Held(Protocol):
    """A worker's side of the filter: ``add`` an update, choose, ``take`` what was chosen."""

    def add(self, update: Floats) -> Floats:
        """Take in an update, and return what there is to send of it and of those held; not to be changed."""
        ...

    def take(self, chosen: Bits) -> Floats:
        """Return the chosen elements, zero elsewhere: they are held no more."""
        ...

    def put_back(self, places: npt.NDArray[np.intp], values: Floats) -> None:
        """Hold again what was taken from these elements, and did not arrive."""
        ...

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the state, by name, without copying."""
        ...


class Residual:
    """The sum of what was not sent. Exact: an element is sent whole, or stays; nothing is ever divided.

    Right for whatever the updates are: gradients for a server's optimizer, or a worker's own steps.
    """

    def __init__(self, size: int) -> None:
        self._sum = np.zeros(size, np.float32)

    def add(self, update: Floats) -> Floats:
        """Add an update, and return the sum."""
        self._sum += update
        return self._sum

    def take(self, chosen: Bits) -> Floats:
        """Return the chosen elements of the sum; zero is left of them."""
        taken = np.where(chosen, self._sum, np.float32(0))
        self._sum[chosen] = 0
        return taken

    def put_back(self, places: npt.NDArray[np.intp], values: Floats) -> None:
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
        self._owed: Floats | None = None  # sent before, and lost

    def add(self, update: Floats) -> Floats:
        """Make a step of momentum, and return the buffer, with what was lost of it before."""
        np.multiply(self._buffer, self._momentum, out=self._buffer, where=~self._held)
        self._buffer += update
        return self._buffer if self._owed is None else self._buffer + self._owed

    def take(self, chosen: Bits) -> Floats:
        """Return the chosen elements of the buffer, which decay from now on; the others wait."""
        np.logical_not(chosen, out=self._held)
        due = self._buffer if self._owed is None else self._buffer + self._owed
        if self._owed is not None:
            self._owed[chosen] = 0
        return np.where(chosen, due, np.float32(0))

    def put_back(self, places: npt.NDArray[np.intp], values: Floats) -> None:
        """Keep apart what did not arrive, as the buffer goes on with it: it is sent with the next step."""
        if self._owed is None:
            self._owed = np.zeros_like(self._buffer)
        self._owed[places] += values

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the buffer, and which of its elements are held."""
        return {"buffer": self._buffer, "held": self._held}
