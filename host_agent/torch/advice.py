# SPDX-License-Identifier: Apache-2.0
"""Warnings about combinations that learn worse than they need to: gradients held back, and a history of them,
or parameters of few blocks.

Adam and its kin divide by the history of the gradients they see. A gradient that was held back, and comes
late and all at once, is scaled by the wrong history; momentum repeats it. A hook does not see the optimizer,
so its first step is looked at.
"""

import functools
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

_log = logging.getLogger(__name__)

_FILTER_REMEDY: Final = "Use SGD, or leave it out; without servers, use %s, which holds updates back instead"
_HOOK_REMEDY: Final = "Use %s, which holds updates back instead, or send gradients whole"


def held_back(
    name: str,
    optimizer: str,
    *,
    divides: bool = True,
    servers: bool = False,
    compress: str = "weir.torch.compress",
) -> str:
    """Return why ``name``, which holds gradients back, does not go with an optimizer, and the way out.

    Args:
        name: of a hook, a method or a filter.
        optimizer: its name.
        divides: it divides by the history of gradients; otherwise it repeats them, by momentum.
        servers: parameter servers make the steps.
        compress: how the caller says that updates are sent instead.
    """
    remedy = (_FILTER_REMEDY if servers else _HOOK_REMEDY) % compress
    how = "divides by their history" if divides else "repeats those that come late, by its momentum"
    return (
        f"{name} holds gradients back, and {optimizer} {how}: this learns worse than without, often worse "
        f"than one worker alone, or not at all. {remedy}"
    )


def divides(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer divides by second moments of gradients, as Adam does."""
    return any("betas" in group and len(group["betas"]) > 1 for group in optimizer.param_groups)


def warn_of_filter(optimizer: torch.optim.Optimizer, name: str) -> None:
    """Say that ``name``, which holds gradients back on their way to servers, does not go with an optimizer,
    where that is so.
    """
    if divides(optimizer):
        _log.warning(held_back(name, type(optimizer).__name__, servers=True))


def warn_of_few_blocks(sizes: Iterable[int], density: float, block: int, name: str) -> None:
    """Say that parameters are too small for whole blocks of them to be chosen, where most values are in such.

    Of a parameter with fewer blocks than 1 / density none is chosen in most steps.

    Args:
        sizes: values of each parameter that blocks are chosen of.
        density: share of the blocks that are chosen.
        block: values in a block.
        name: of who chooses.
    """
    found = list(sizes)
    few = [size for size in found if -(-size // block) * density < 1]
    if 2 * sum(few) > sum(found):
        _log.warning(
            "%s chooses %g %% of the blocks of %d values: %d of %d parameters have less than one block "
            "for that, so they stand still in most steps, and the model learns worse than without. Use "
            "sparsifier 'dfs', smaller blocks or a higher density",
            *(name, 100 * density, block, len(few), len(found)),
        )


def _repeats(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer has momentum, as SGD may."""
    return any(group.get("momentum") for group in optimizer.param_groups)


class _Watch(NamedTuple):
    """A wait for the first step of some parameters, by id: they may go before a step comes."""

    parameters: frozenset[int]
    name: str


_watches: list[_Watch] = []


@functools.cache
def _look_at_all_steps() -> None:
    """Register the one hook there is: torch does not let a hook remove itself while it runs."""
    register_optimizer_step_pre_hook(_look)


def _look(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    for watch in [
        one for one in _watches if any(id(each) in one.parameters for each in _parameters(optimizer))
    ]:
        _watches.remove(watch)
        if (dividing := divides(optimizer)) or _repeats(optimizer):
            _log.warning(held_back(watch.name, type(optimizer).__name__, divides=dividing))


def warn_at_first_step(parameters: Iterable[torch.Tensor], name: str) -> None:
    """Say at the first step of any of these parameters' optimizers that it does not go with ``name``, where
    that is so.
    """
    _look_at_all_steps()
    _watches.append(_Watch(frozenset(map(id, parameters)), name))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]
