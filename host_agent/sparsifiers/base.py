# SPDX-License-Identifier: Apache-2.0
"""What a sparsifier is: it decides which part of a gradient travels now and which waits."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from wire.definition import MAX_BLOCK_LOG2, MIN_BLOCK_LOG2

BLOCK_SIZES = tuple(1 << log2 for log2 in range(MIN_BLOCK_LOG2, MAX_BLOCK_LOG2 + 1))


@dataclass(frozen=True)
class SparsifierOptions:
    """The settings every sparsifier may read; each reads those it knows.

    density: fraction kept, in (0, 1]. threshold: magnitude from which an element is kept, at least 0.
    block: lanes in one block, 32, 64, 128 or 256.
    """

    density: float = 0.05
    threshold: float = 1e-3
    block: int = 256

    def __post_init__(self) -> None:
        if not 0.0 < self.density <= 1.0:
            raise ValueError(f"density is {self.density!r}: it is the fraction kept, above 0 and at most 1")
        if not self.threshold >= 0.0:
            raise ValueError(f"threshold is {self.threshold!r}: it is a magnitude, at least 0")
        if self.block not in BLOCK_SIZES:
            raise ValueError(
                f"block is {self.block!r} lanes: it must be one of {', '.join(map(str, BLOCK_SIZES))}"
            )


class Sparsifier(ABC):
    """Chooses what is sent of one flat float32 gradient.

    ``encode`` returns a tensor of the same length holding the chosen elements, bit for bit, and zeros
    elsewhere; so ``gradient - encode(gradient)`` is what stays behind, exactly. ``decode`` turns the sum of
    all workers' encodings back into a gradient. A non-finite element is always chosen, never held back:
    it must reach the check that reports it.

    To add one: subclass, set ``name``, decorate with ``register``.
    """

    name: ClassVar[str]
    sends_all: ClassVar[bool] = False  # nothing is ever held back: no residual is needed

    def __init__(self, options: SparsifierOptions) -> None:
        self.options = options

    @abstractmethod
    def encode(self, gradient: torch.Tensor) -> torch.Tensor:
        """The part of ``gradient`` (flat, float32, not modified) to send; may be ``gradient`` itself."""

    def decode(self, total: torch.Tensor) -> torch.Tensor:
        """The gradient that ``total``, the sum over workers of what they encoded, stands for."""
        return total

    def state_dict(self) -> dict[str, Any]:
        """What must be saved for ``encode`` to go on as if never interrupted."""
        return {"name": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what ``state_dict`` gave; refuses another sparsifier's."""
        if state["name"] != self.name:
            raise ValueError(f"the saved state is of sparsifier {state['name']!r}, this one is {self.name!r}")


_REGISTRY: dict[str, type[Sparsifier]] = {}
_Class = TypeVar("_Class", bound=type[Sparsifier])


def register(cls: _Class) -> _Class:
    """Class decorator: makes a sparsifier known by its ``name``."""
    if cls.name in _REGISTRY:
        raise ValueError(f"two sparsifiers are called {cls.name!r}")
    _REGISTRY[cls.name] = cls
    return cls


def sparsifier_names() -> list[str]:
    """Names that ``create_sparsifier`` knows, sorted."""
    return sorted(_REGISTRY)


def create_sparsifier(name: str, options: SparsifierOptions | None = None) -> Sparsifier:
    """A new sparsifier by name; ValueError lists the names when there is none of that name.

    Example::

        topk = create_sparsifier("topk", SparsifierOptions(density=0.01))
    """
    make: Callable[[SparsifierOptions], Sparsifier] | None = _REGISTRY.get(name)
    if make is None:
        raise ValueError(f"no sparsifier is called {name!r}; there are {', '.join(sparsifier_names())}")
    return make(options or SparsifierOptions())
