# SPDX-License-Identifier: Apache-2.0
"""States of jobs with parameter servers: what the servers hold, to all workers, and what a worker has, to
them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from weir.host_agent.collectives.data_movement import broadcast
from weir.host_agent.parameter_server.routing import Piece
from weir.host_agent.torch.packed_state import pack_state, unpack_state
from weir.host_agent.torch.parameter_server.job_group import JobGroup

State = Mapping[str, Any]
"""Tensors and plain values, as torch.load takes with ``weights_only``."""


def spread(job_group: JobGroup, root: int, state: State | None) -> dict[str, Any]:
    """Return one member's state, on every member; all call this, and the others pass None."""
    return job_group.run("weir.parameter_server.state", (root,), lambda: _spread(job_group, root, state))


def _spread(job_group: JobGroup, root: int, state: State | None) -> dict[str, Any]:
    data = torch.empty(0, dtype=torch.uint8)
    if state is not None:
        data = pack_state(state)
    size = torch.tensor([data.numel()])
    broadcast(job_group.connection, size, root)
    if state is None:
        data = torch.empty(int(size), dtype=torch.uint8)
    broadcast(job_group.connection, data, root)
    return unpack_state(data)


def by_parameter(pieces: Sequence[Piece], states: State) -> dict[str, dict[str, Any]]:
    """Return an optimizer's state by parameter from that by piece: tensors of the parameter's shape, and
    numbers.
    """
    found: dict[str, dict[str, Any]] = {}
    for piece in pieces:
        for key, value in states.get(piece.title, {}).items():
            whole = found.setdefault(piece.name, {})
            if _is_of(piece, value):
                whole[key] = torch.cat([whole[key], value]) if key in whole else value
            else:
                whole[key] = value
    shapes = {piece.name: piece.shape for piece in pieces}
    return {
        name: {
            key: value.view(shapes[name]) if isinstance(value, torch.Tensor) and value.dim() else value
            for key, value in state.items()
        }
        for name, state in found.items()
    }


def by_piece(pieces: Sequence[Piece], states: State) -> dict[str, dict[str, Any]]:
    """Return what ``by_parameter`` returned, by piece again: of these or any others of the parameters."""
    return {
        piece.title: {
            key: value.reshape(-1)[piece.in_parameter].clone()
            if isinstance(value, torch.Tensor) and value.dim()
            else value
            for key, value in states[piece.name].items()
        }
        for piece in pieces
        if piece.name in states
    }


def _is_of(piece: Piece, value: object) -> bool:
    """Return whether a value has something for each of a piece's elements."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.numel() == piece.length
