# SPDX-License-Identifier: Apache-2.0
"""Places parameters when the samples' places are known: each with one of its users."""

from typing import Final

import numpy as np

from weir.host_agent.placement.samples import Integers
from weir.host_agent.placement.traffic import SLACK, Users, cap

_CHUNK: Final = 256  # parameters that are placed before loads are looked at again


def place_parameters(used: Users, slack: float = SLACK) -> Integers:
    """Return a machine for each parameter: one that uses it, unless its share is full.

    Which of a parameter's users has it makes no difference to the total, so the least busy one gets it: it
    will send the value to all others. Parameters with one user come first, as they have no choice; the most
    widely used last. What finds no room with its users goes anywhere.

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
