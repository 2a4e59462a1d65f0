# SPDX-License-Identifier: Apache-2.0
"""Places parameters when the samples' places are known: each with one of its users."""

from typing import Final

import numpy as np

from weir.host_agent.placement.samples import Integers
from weir.host_agent.placement.traffic import SLACK, Users, cap

_CHUNK: Final = 256  # parameters that are placed before loads are looked at again
_SWAPS: Final = 20  # per machine, at most: what more would gain is a thousandth


def place_parameters(used: Users, slack: float = SLACK) -> Integers:
    """Return a machine for each parameter: one that uses it, unless its share is full.

    Which of a parameter's users has it makes no difference to the total, so the least busy one gets it: it
    will send the value to all others. Parameters with one user come first, as they have no choice; the most
    widely used last. What finds no room with its users goes anywhere. At the end, the busiest machine gives
    widely used parameters for others.

    used: bool[machines, parameters].
    """
    machines, count = used.shape
    most = cap(count, machines, slack)
    degree = used.sum(axis=0)
    places = np.full(count, -1, np.int64)
    room = np.full(machines, most, np.int64)
    load = used.sum(axis=1).astype(np.int64)  # pulled by each; then what it sends to others
    for machine in range(machines):
        own = np.flatnonzero((degree == 1) & used[machine])[: room[machine]]
        places[own] = machine
        room[machine] -= own.size
        load[machine] -= own.size
    shared = np.flatnonzero(degree > 1)
    shared = shared[np.argsort(degree[shared], kind="stable")]
    for start in range(0, shared.size, _CHUNK):
        chunk = shared[start : start + _CHUNK]
        _place_shared(used[:, chunk], degree[chunk], chunk, places, room, load)
    _level(used, degree, shared[places[shared] >= 0], places, load)
    rest = np.flatnonzero(places < 0)
    spare = np.repeat(np.arange(machines), np.maximum(room, 0))
    places[rest] = np.random.default_rng(0).permutation(spare)[: rest.size]
    return places


def _place_shared(
    used: Users, degree: Integers, chunk: Integers, places: Integers, room: Integers, load: Integers
) -> None:
    """Place one chunk of parameters; those whose users have no room stay where they are, nowhere."""
    for column, (parameter, users_) in enumerate(zip(chunk, degree, strict=True)):
        candidates = np.flatnonzero(used[:, column] & (room > 0))
        if candidates.size:
            machine = candidates[np.argmin(load[candidates])]
            places[parameter] = machine
            room[machine] -= 1
            load[machine] += users_ - 2  # it sends to the others, and does not pull


def _level(used: Users, degree: Integers, chosen: Integers, places: Integers, load: Integers) -> None:
    """Let the busiest machine swap parameters with another, again and again, each with one of its users."""
    used, degree, held = used[:, chosen], degree[chosen], places[chosen]
    for _ in range(_SWAPS * len(used)):
        busiest = int(np.argmax(load))
        others = (int(other) for other in np.argsort(load, kind="stable") if other != busiest)
        if not any(_swap(used, degree, held, load, busiest, other) for other in others):
            break
    places[chosen] = held


def _swap(used: Users, degree: Integers, held: Integers, load: Integers, busy: int, idle: int) -> bool:
    """Swap parameters so that the loads of two machines come closer; return whether any could be."""
    given = np.flatnonzero((held == busy) & used[idle])
    taken = np.flatnonzero((held == idle) & used[busy])
    given = given[np.argsort(-degree[given], kind="stable")][: taken.size]
    taken = taken[np.argsort(degree[taken], kind="stable")][: given.size]
    half = (load[busy] - load[idle]) // 2
    relief = degree[given] - degree[taken]  # from the most to the least
    fit = (relief > 0) & (relief <= half)
    given, taken, relief = given[fit], taken[fit], relief[fit]
    count = int(np.searchsorted(np.cumsum(relief), half, side="right"))
    held[given[:count]], held[taken[:count]] = idle, busy
    load[busy] -= relief[:count].sum()
    load[idle] += relief[:count].sum()
    return count > 0
