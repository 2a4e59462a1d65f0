# SPDX-License-Identifier: Apache-2.0
"""The base of all sparsifiers, which decide which part of a gradient travels now and which waits."""

import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import torch

from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.collectives.packing import LaneBits
from weir.host_agent.compression.bucket_layout import Span
from weir.wire.definition import BLOCK_SIZES

WARMUP_DENSITY: Final = 0.25


@dataclass(frozen=True)
class SparsifierOptions:
    """The settings every sparsifier may read; each reads those it knows.

    Args:
        density: fraction kept, above 0 and at most 1.
        threshold: magnitude from which an element is kept, at least 0.
        block: elements in a block, of methods that choose whole blocks: 32, 64, 128 or 256.
        warmup_steps: over this many first steps the density goes down to its target, from WARMUP_DENSITY.
        seed: of whatever is drawn at random; the same on every worker.
        energy: instead of a density, the share of a gradient's energy (its sum of squares) that may wait, at
            least 0 and below 1; None: by density.
        leave_out: parts of a method to do without, by name, to see what each is worth; see the method.

    Raises:
        ValueError: an option out of range.
    """

    density: float = 0.05
    threshold: float = 1e-3
    block: int = 256
    warmup_steps: int = 0
    seed: int = 0
    energy: float | None = None
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 < self.density <= 1.0:
            raise ValueError(f"density is {self.density!r}: it is the fraction kept, above 0 and at most 1")
        if not self.threshold >= 0.0:
            raise ValueError(f"threshold is {self.threshold!r}: it is a magnitude, at least 0")
        if self.block not in BLOCK_SIZES:
            raise ValueError(
                f"block is {self.block!r} lanes: it must be one of {', '.join(map(str, BLOCK_SIZES))}"
            )
        if self.warmup_steps < 0:
            raise ValueError(
                f"warmup_steps is {self.warmup_steps!r}: it must be a number of steps, at least 0"
            )
        if self.energy is not None and not 0.0 <= self.energy < 1.0:
            raise ValueError(f"energy is {self.energy!r}: it is the share that may wait, at least 0, below 1")

    def density_at(self, step: int) -> float:
        """Return the target density of a step. In the warm-up it falls geometrically.

        Reference: Lin et al., "Deep Gradient Compression", ICLR 2018: from 25 % to 0.1 % in five epochs.

        Args:
            step: counted from 0.
        """
        if step >= self.warmup_steps or self.density >= WARMUP_DENSITY:
            return self.density
        return float(WARMUP_DENSITY * (self.density / WARMUP_DENSITY) ** (step / self.warmup_steps))


class Sparsifier(ABC):
    """Chooses what is sent of each parameter's gradient, flat float32.

    ``encode`` returns a tensor of the same length holding the chosen elements, bit for bit, and zeros
    elsewhere; so ``gradient - encode(gradient, span)`` is what stays behind, exactly. ``decode`` turns the
    sum of all workers' encodings back into a gradient. A non-finite element is always chosen, never held
    back: it must reach the check that reports it.

    One step: ``encode`` and then ``observe`` for every parameter, bucket by bucket, then ``end_step``. A step
    that failed is repeated: ``encode`` changes nothing of the state, and what ``observe`` noted of a
    parameter is replaced when it is shown again. What ``observe`` is shown is the same on every worker, so a
    state made from nothing else is, too. Everything must depend on parameters and their spans alone: DDP's
    buckets change during a run. Gradients, and what is made of them, stay on their device; sums that are
    observed or measured are in main memory.

    To add one: subclass, set ``name``, ``summary`` and what else of the attributes below is not as usual,
    decorate with ``register`` (docs/guides/add-a-method.md).
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for people
    reference: ClassVar[str] = ""  # who described it, where
    uses: ClassVar[tuple[str, ...]] = ("density",)  # the options it reads; "density" includes the warm-up
    promises_density: ClassVar[bool] = True  # the share that is sent is the one asked for
    sends_all: ClassVar[bool] = False  # nothing is ever held back: no residual is needed
    fills_union: ClassVar[bool] = False  # what any worker chose is sent by all of them, whatever they chose
    lane_bits: ClassVar[LaneBits] = 32  # bits of a value on the wire, unless the user says
    mask_block: ClassVar[int | None] = (
        None  # elements per bit of the mask that workers agree on; None: as planned
    )

    def __init_subclass__(cls) -> None:
        for old, new in (("format", "encoding"), ("mask", "mask_block"), ("mask_of", "mask_block_of")):
            if old in cls.__dict__:
                raise TypeError(f"sparsifier {cls.__name__}: {old} is called {new} now")

    def __init__(self, options: SparsifierOptions) -> None:
        self.options = options
        self.step = 0
        self.rank, self.workers = 0, 1
        self.value_bits = 32.0
        """Bits of a value on the wire, which follow from the group and are the same in all of it."""

    def join(self, rank: int, workers: int) -> None:
        """Take a place in the group: before the first step and whenever the group has changed.

        Args:
            rank: of this worker, from 0.
            workers: their number.
        """
        self.rank, self.workers = rank, workers

    @property
    def encoding(self) -> str:
        """Return how what is sent is written down, unless the user says: a rule of
        ``compression.encodings``.
        """
        return "auto"

    def mask_block_of(self, span: Span) -> int | None:
        """Return how many elements a bit of a parameter's mask stands for in this step; see ``mask``.

        Args:
            span: of the parameter.

        Returns:
            The same number on every worker.
        """
        return self.mask_block

    def quota_of(self, span: Span) -> int | None:
        """Return how many elements, or blocks of the mask, each worker chooses of a parameter in this step.

        With a known quota, workers tell each other positions instead of sending masks.

        Args:
            span: of the parameter.

        Returns:
            The maximum, without values that are not finite; the same on every worker. None: unknown.
        """
        return None

    @property
    def observes_values(self) -> bool:
        """Return whether ``observe`` needs this step's sums, and not only which elements were chosen."""
        return not self.fills_union

    @property
    def density(self) -> float:
        """Fraction to keep in this step."""
        return self.options.density_at(self.step)

    @abstractmethod
    def encode(self, gradient: torch.Tensor, span: Span) -> torch.Tensor:
        """Return the part of a gradient to send.

        Args:
            gradient: flat, float32; it is not modified.
            span: of the parameter.

        Returns:
            As long as ``gradient``, with zeros where nothing is sent; may be ``gradient`` itself.
        """

    def encode_into(self, gradient: torch.Tensor, span: Span, out: torch.Tensor) -> None:
        """Write the result of ``encode`` to ``out``. Override it to save a copy.

        Args:
            gradient: flat, float32; it is not modified.
            span: of the parameter.
            out: as long as ``gradient``, float32.
        """
        out.copy_(self.encode(gradient, span))

    def encode_all(
        self, gradients: Sequence[torch.Tensor], spans: Sequence[Span], outs: Sequence[torch.Tensor]
    ) -> None:
        """Call ``encode_into`` for several parameters. Override it to save time.

        Args:
            gradients: one for each parameter, as for ``encode_into``.
            spans: of the parameters.
            outs: one for each parameter.
        """
        for gradient, span, out in zip(gradients, spans, outs, strict=True):
            self.encode_into(gradient, span, out)

    def mark(
        self, gradients: Sequence[torch.Tensor], spans: Sequence[Span], masks: Sequence[Lanes]
    ) -> list[int] | None:
        """Set the bits of the chosen blocks in each parameter's mask.

        Methods that fill the union need nothing else. It takes less time than ``encode``, and must choose the
        same blocks.

        Args:
            gradients: one for each parameter, flat, float32.
            spans: of the parameters.
            masks: zeros, a bit for each block of ``mask_block_of`` elements; see ``encodings.shared_mask``.

        Returns:
            The number of non-zero elements in each parameter's chosen blocks; None: call ``encode`` instead.
        """
        return None

    def decode(self, total: torch.Tensor) -> torch.Tensor:
        """Return the gradient that a sum stands for.

        Args:
            total: sum over workers of the encoded gradients, flat, float32.
        """
        return total

    def observe(self, total: torch.Tensor, union: torch.Tensor, span: Span) -> None:  # noqa: B027 may do nothing
        """Learn from the sum of a parameter; the same on every worker.

        Args:
            total: the sum, flat, float32.
            union: bool; elements that some worker had chosen, as fine as the mask that the workers agreed on.
                Without a mask it is ``total != 0``.
            span: of the parameter.
        """

    @property
    def observes_union(self) -> bool:
        """Return whether ``observe`` is needed in this step, and not only what comes after it."""
        return type(self).observe is not Sparsifier.observe

    def take_starts(self, starts: Lanes, size: int, span: Span) -> None:  # noqa: B027 may do nothing
        """Learn which blocks of a mask some worker had chosen, in a step without ``observe``.

        Args:
            starts: the first element of each block, ascending, uint32.
            size: elements in a block.
            span: of the parameter.
        """

    def take_count(self, travelled: int, span: Span) -> None:  # noqa: B027 may do nothing
        """Learn how many elements of a parameter some worker had chosen, after ``observe``.

        Args:
            travelled: number of these elements.
            span: of the parameter.
        """

    def measure(self, travelled: torch.Tensor, span: Span) -> float:
        """Return a float32 number about a parameter's sum, for ``take_note``.

        If sums go to servers, only these have the sums, and their measurements go to all workers. So the
        number must be 0 if the whole sum is 0.

        Args:
            travelled: the sum's elements that some worker had chosen, one after another, in whole blocks of
                the mask; all elements if the parameter was sent whole. float32.
            span: of the parameter.
        """
        return 0.0

    def measure_all(self, travelled: Sequence[torch.Tensor], spans: Sequence[Span]) -> list[float]:
        """Call ``measure`` for several parameters. Override it to save time.

        Args:
            travelled: one for each parameter, as for ``measure``.
            spans: of the parameters.
        """
        return [self.measure(own, span) for own, span in zip(travelled, spans, strict=True)]

    def take_note(self, measured: float, span: Span) -> None:  # noqa: B027 may do nothing
        """Learn the measurement of a parameter's sum, after ``observe``; the same on every worker.

        Args:
            measured: the result of ``measure``.
            span: of the parameter.
        """

    def end_step(self) -> None:
        """End a step, in which every parameter's sum has been observed."""
        self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """The state from which ``encode`` continues as if never interrupted: tensors and plain values."""
        return {"name": self.name, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state, also in a group of another size.

        Args:
            state: of ``state_dict`` of the same method.

        Raises:
            ValueError: the state belongs to another method.
        """
        if state["name"] != self.name:
            raise ValueError(f"the saved state is of sparsifier {state['name']!r}, this one is {self.name!r}")
        self.step = state["step"]


_REGISTRY: dict[str, type[Sparsifier]] = {}
_Class = TypeVar("_Class", bound=type[Sparsifier])


def register(cls: _Class) -> _Class:
    """Register a sparsifier under its ``name``; a class decorator.

    Args:
        cls: the sparsifier.

    Returns:
        The same class.

    Raises:
        IncompleteError: the class lacks a member, or has it in a form that cannot be used.
    """
    if (lack := _lack(cls)) is not None:
        raise IncompleteError(f"class {getattr(cls, '__name__', cls)} {lack}")
    _REGISTRY[cls.name] = cls
    return cls


class IncompleteError(ValueError):
    """A class is no sparsifier yet; the message names it and says what is missing."""


def _lack(cls: Any) -> str | None:
    """Return why a class cannot be registered, as text that follows its name, or None."""
    if not (isinstance(cls, type) and issubclass(cls, Sparsifier)):
        return "is no subclass of weir.torch.Sparsifier"
    for attribute, example in (("name", "my-method"), ("summary", "What is sent, in a line.")):
        if not isinstance(getattr(cls, attribute, None), str):
            return f'has no {attribute}: a text, such as {attribute} = "{example}"'
    if not re.fullmatch(r"[A-Za-z0-9._-]+", cls.name):
        return f"is called {cls.name!r}: a name is made of letters, digits, dots, hyphens and underscores"
    if cls.name in _REGISTRY:
        return f"is called {cls.name!r}, as another method is"
    if missing := sorted(cls.__abstractmethods__):
        return f"has no {', '.join(missing)}"
    for name, method in inspect.getmembers(Sparsifier, inspect.isfunction):
        own = getattr(cls, name)
        if own is not method and not name.startswith("__") and not _can_replace(own, method):
            return f"has no function {name}({', '.join(_parameters(method))}), but another {name}"
    try:
        cls(SparsifierOptions())
    except Exception as error:
        return f"cannot be made with {SparsifierOptions()}: {type(error).__name__}: {error}"
    return None


def _can_replace(own: Any, method: Any) -> bool:
    """Return whether ``own`` can be called as ``method`` is: with that many places."""
    try:
        inspect.signature(own).bind(*_parameters(method))
    except (TypeError, ValueError):
        return False
    return True


def _parameters(method: Any) -> list[str]:
    return list(inspect.signature(method).parameters)


def sparsifier_names() -> list[str]:
    """Return names that ``create_sparsifier`` knows, sorted."""
    return sorted(_REGISTRY)


def sparsifier_class(name: str) -> type[Sparsifier]:
    """Return the class of a name; ValueError lists the names when there is none of that name."""
    found = _REGISTRY.get(name)
    if found is None:
        raise ValueError(f"no sparsifier is called {name!r}; there are {', '.join(sparsifier_names())}")
    return found


def create_sparsifier(name: str, options: SparsifierOptions | None = None) -> Sparsifier:
    """Return a new sparsifier by name; ValueError lists the names when there is none of that name.

    Example::

        topk = create_sparsifier("topk", SparsifierOptions(density=0.01))
    """
    return sparsifier_class(name)(options or SparsifierOptions())
