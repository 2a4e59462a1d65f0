# SPDX-License-Identifier: Apache-2.0
"""Bounded loss of an asynchronous push: which chunks of its flow may be lost, and in which order.

What says where values belong is never lost; of the values, a share that the server sees to. Of these, chunks
with the smallest mean magnitude are dropped first, as the blocks of a bucket are
(``weir.host_agent.compression.classes``). What was lost is zero in what the server applies, and the server's
next word says so: the worker then holds it again.
"""

import numpy as np
import numpy.typing as npt

from weir.host_agent.flows import FlowConfig
from weir.host_agent.parameter_server.messages import FromWorker
from weir.host_agent.parameter_server.payload import Words
from weir.host_agent.transport.service_class import ServiceClass
from weir.wire.definition import MAGNITUDE_CLASSES

_INDEX, _VALUES = 0, 1  # accounts


def service_of(
    message: FromWorker, words: Words, config: FlowConfig, loss_budget: float, layer: int
) -> ServiceClass:
    """Return how a message travels.

    Args:
        message: what is sent.
        words: the same, encoded.
        config: of the flow that carries it.
        loss_budget: share of its values that may be lost.
        layer: layer class of its shard.
    """
    chunks, budget = config.chunks(words.size), int(loss_budget * message.droppable)
    first = -(-(words.size - message.droppable) // config.chunk_lanes)  # that holds values alone
    if not budget or first >= chunks:
        return ServiceClass(layer)
    accounts = np.where(np.arange(chunks) < first, _INDEX, _VALUES).astype(np.uint16)
    magnitudes = np.full(chunks, MAGNITUDE_CLASSES - 1, np.uint8)
    values = words[first * config.chunk_lanes :].view(np.float32)
    magnitudes[first:] = _magnitude_classes(values, config.chunk_lanes)
    return ServiceClass(layer, magnitudes, accounts, np.array([0, budget], np.uint64))


def _magnitude_classes(values: npt.NDArray[np.float32], length: int) -> npt.NDArray[np.uint8]:
    """Return the class of each run of values: as many in each, by mean magnitude, 0 the smallest."""
    starts = np.arange(0, values.size, length)
    sums = np.add.reduceat(np.abs(values, dtype=np.float64), starts)
    places = np.empty(starts.size, np.int64)
    places[np.argsort(sums / np.diff(starts, append=values.size), kind="stable")] = np.arange(starts.size)
    return (places * MAGNITUDE_CLASSES // starts.size).astype(np.uint8)
