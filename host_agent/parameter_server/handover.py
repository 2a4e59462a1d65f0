# SPDX-License-Identifier: Apache-2.0
"""Units that move to another server: their values, the optimizer's state, and what readers have of them.

Of a reader that has other values the new server learns where they differ, not what they are: to that reader
it sends its own values of these elements next. A reader that uses none of them so costs a few words.
"""

from typing import Final

import numpy as np

from weir.host_agent.parameter_server.feed import UNKNOWN
from weir.host_agent.parameter_server.messages import Kind, Message
from weir.host_agent.parameter_server.payload import PayloadError, Words, decode_places, encode_places, plan
from weir.host_agent.parameter_server.value_filter import Floats

_VIEW_HEAD: Final = 4  # words: the worker, its incarnation, the words that follow

Views = dict[tuple[int, int], Words]
"""By worker and incarnation, in words: what a reader has of the units, or where that differs."""


def make_handover(member: int, epoch: int, units: Words, rows: Floats, steps: int, views: Views) -> Message:
    """Return the message that gives units to another server.

    Args:
        member: rank of the server that gives.
        epoch: of the routing table that moves them.
        units: as ``Units.encode`` writes them.
        rows: float32[k, n]; the values, then each part of the optimizer's state.
        steps: that the optimizer has made.
        views: what readers have.
    """
    words, aside = rows[0].view(np.uint32), [np.array([steps], np.uint32)]
    for (worker, incarnation), view in sorted(views.items()):
        differs = encode_places(plan(view != words))
        low, high = incarnation & 0xFFFFFFFF, incarnation >> 32
        aside += [np.array([worker, low, high, differs.size], np.uint32), differs]
    return Message(
        Kind.HANDOVER,
        member,
        epoch=epoch,
        pushed_units=units,
        aside=np.concatenate(aside),
        payload=rows.reshape(-1).view(np.uint32),
    )


def views_of(handover: Message) -> Views:
    """Return where readers' views differ. Raises PayloadError."""
    if not handover.aside.size:
        raise PayloadError("a handover without its head")
    words, found = handover.aside[1:], {}
    while words.size:
        if words.size < _VIEW_HEAD:
            raise PayloadError("a reader's view ends in the middle of its head")
        worker, low, high, size = map(int, words[:_VIEW_HEAD])
        found[worker, low | high << 32] = words[_VIEW_HEAD : _VIEW_HEAD + size]
        words = words[_VIEW_HEAD + size :]
    return found


def view_of(worker: int, incarnation: int, differing: Views, words: Words) -> Words:
    """Return what a reader has of elements that came with these words."""
    places = differing.get((worker, incarnation))
    if places is None:
        return np.full(words.size, UNKNOWN)
    return np.where(decode_places(places, words.size), UNKNOWN, words)
