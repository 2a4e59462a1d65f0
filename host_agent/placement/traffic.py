# SPDX-License-Identifier: Apache-2.0
"""Places of samples and parameters, and what they cost.

Every machine has a worker, with its samples, and a server, with its parameters. In an iteration, a worker
pulls each parameter that its samples use, once, and pushes a gradient for each: what its own server holds
does not travel. This is the cost of Duan and Wu (JPDC 2023) as far as it is known, and of Parsa (Li et al.,
2015).
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softp4.native.json_text import parse_object
from weir.host_agent.placement.samples import Integers, Samples

Users = npt.NDArray[np.bool_]
VALUE_BYTES: Final = 4  # float32; who uses what is known after the first iteration, so no indices travel
MOST_MACHINES: Final = 1 << 15  # servers, as routing tables number them
SLACK: Final = 0.05  # by which a machine may have more than its share of the samples, or of the parameters


class PlacementError(ValueError):
    """A placement that cannot be one of these samples; the message says why."""


@contextlib.contextmanager
def reading(file: Path, what: str) -> Iterator[None]:
    """Raise PlacementError, which names the file, for what a block finds wrong with it."""
    try:
        yield
    except OSError as error:
        raise PlacementError(f"{file} cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise PlacementError(f"{file} is no {what}: it has no {error}") from None
    except ValueError as error:
        raise PlacementError(f"{file} is no {what}: {error}") from None


def whole(value: object, name: str, least: int, most: int) -> int:
    """Return a value that is a whole number within bounds. ValueError for any other."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} is {value!r:.40}: a whole number from {least} to {most} is needed")
    return value


def wholes(values: object, name: str, least: int, most: int) -> Integers:
    """Return a list of whole numbers within bounds. ValueError for anything else."""
    if not isinstance(values, list):
        raise ValueError(f"{name} is {type(values).__name__}, not a list of numbers")
    return np.array([whole(value, name, least, most) for value in values], np.int64)


@dataclass(frozen=True)
class Placement:
    """The machine of each sample and of each parameter. int64[n] and int64[width], from 0 to machines - 1."""

    machines: int
    of_sample: Integers
    of_parameter: Integers

    def check(self, samples: Samples, slack: float = SLACK) -> None:
        """Raise PlacementError unless it fits these samples and no machine has more than its share."""
        for what, places, count in (
            ("samples", self.of_sample, len(samples)),
            ("parameters", self.of_parameter, samples.width),
        ):
            if places.size != count:
                raise PlacementError(f"{places.size} {what} are placed, but there are {count}")
            if places.size and not 0 <= places.min() <= places.max() < self.machines:
                raise PlacementError(
                    f"{what} on machines {places.min()} to {places.max()} of {self.machines}"
                )
            most, share = (
                int(np.bincount(places, minlength=self.machines).max()),
                cap(count, self.machines, slack),
            )
            if most > share:
                raise PlacementError(
                    f"a machine has {most} {what}: more than {share}, its share and {slack:.0%}"
                )

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values, which ``from_json`` takes, among others or alone."""
        return {
            "machines": self.machines,
            "of_sample": self.of_sample.tolist(),
            "of_parameter": self.of_parameter.tolist(),
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "Placement":
        """Return the placement that ``as_json`` wrote, among other values or alone.

        Raises:
            KeyError, ValueError: it is none; each says what is missing or wrong.
        """
        machines = whole(said["machines"], "machines", 1, MOST_MACHINES)
        return cls(
            machines,
            wholes(said["of_sample"], "of_sample", 0, machines - 1),
            wholes(said["of_parameter"], "of_parameter", 0, machines - 1),
        )

    @classmethod
    def load(cls, file: Path) -> "Placement":
        """Return the placement in a file. Raises PlacementError when it is none."""
        with reading(file, "placement"):
            return cls.from_json(parse_object(file.read_bytes()))


@dataclass(frozen=True)
class Traffic:
    """Parameters that travel in one iteration.

    pulled: int64[machines, machines], how many parameters the worker of the first machine needs from the
    server of the second.
    """

    pulled: Integers

    @property
    def links(self) -> Integers:
        """Return bytes from machine to machine: what servers send, and the gradients that workers push."""
        return VALUE_BYTES * (self.pulled.T + self.pulled)

    @property
    def total(self) -> int:
        """Return bytes over all links."""
        return int(self.links.sum())

    @property
    def bottleneck(self) -> int:
        """Bytes that the busiest machine sends and receives."""
        return int((self.links.sum(axis=0) + self.links.sum(axis=1)).max())


def users(samples: Samples, of_sample: Integers, machines: int) -> Users:
    """Return bool[machines, width]: whether some sample of a machine uses a parameter."""
    found = np.zeros((machines, samples.width), np.bool_)
    found[of_sample[samples.rows], samples.features] = True
    return found


def traffic(samples: Samples, placement: Placement) -> Traffic:
    """Return what travels between machines in one iteration over all samples."""
    needed = users(samples, placement.of_sample, placement.machines)
    pulled = np.stack(
        [np.bincount(placement.of_parameter[row], minlength=placement.machines) for row in needed]
    )
    np.fill_diagonal(pulled, 0)
    return Traffic(pulled)


def traffic_in_batches(samples: Samples, placement: Placement, size: int, seed: int) -> Traffic:
    """Return what travels between machines in one pass over all samples, in steps.

    Args:
        samples: as placed.
        placement: of samples and parameters.
        size: samples that a worker takes in a step, of its own in an order drawn by lot.
        seed: of that order.
    """
    machines, count = placement.machines, len(samples)
    drawn = np.random.default_rng(seed).permutation(count)
    drawn = drawn[np.argsort(placement.of_sample[drawn], kind="stable")]
    firsts = np.concatenate([[0], np.cumsum(np.bincount(placement.of_sample, minlength=machines))])
    step = np.empty(count, np.int64)
    step[drawn] = (np.arange(count) - firsts[placement.of_sample[drawn]]) // size
    steps = -(-count // size)
    pulls = np.unique(
        (placement.of_sample[samples.rows] * steps + step[samples.rows]) * samples.width + samples.features
    )
    links = pulls // (samples.width * steps) * machines + placement.of_parameter[pulls % samples.width]
    pulled = np.bincount(links, minlength=machines * machines).reshape(machines, machines)
    np.fill_diagonal(pulled, 0)
    return Traffic(pulled)


def cap(count: int, machines: int, slack: float = SLACK) -> int:
    """Return the most that a machine may have of ``count`` things."""
    return int(np.ceil(count / machines * (1 + slack)))
