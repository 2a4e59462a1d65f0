# SPDX-License-Identifier: Apache-2.0
"""A graph network, and graphs whose nodes belong to communities that few of them tell."""

import functools

import numpy as np
import torch
from torch import Tensor, nn

from weir.train.data import Dataset, Split

NODES = 48
COMMUNITIES = 6
_GRAPHS, _HELD_OUT = 8192, 512
_WITHIN, _BETWEEN = 0.5, 0.05  # chance of an edge
_TELLS = 0.25  # of the nodes


class Gcn(nn.Module):
    """Four graph convolutions with shortcuts, 0.05 million parameters, for graphs of 48 nodes.

    Reference: Kipf and Welling, "Semi-Supervised Classification with Graph Convolutional Networks", ICLR
    2017.
    """

    def __init__(self, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(COMMUNITIES, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, COMMUNITIES)

    def forward(self, graphs: Tensor) -> Tensor:
        """Return scores of each node's community, shape (N, nodes, communities), of ``graphs``."""
        edges, told = torch.split(graphs, [NODES, COMMUNITIES], dim=-1)
        edges = edges + torch.eye(NODES)
        scale = edges.sum(dim=-1, keepdim=True).rsqrt()
        edges = scale * edges * scale.transpose(1, 2)
        x = self.first(told)
        for layer in self.layers:
            x = x + torch.relu(layer(edges @ x))
        scores: Tensor = self.head(x)
        return scores


@functools.cache
def graphs() -> Dataset:
    """Return graphs of a stochastic block model, with the community of every node.

    A quarter of the nodes tell theirs; edges within a community are ten times as frequent as others.
    inputs: float32 (N, nodes, nodes + communities), adjacency beside what nodes tell; targets: int64 (N,
    nodes).
    """
    random = np.random.default_rng(0)
    count = _GRAPHS + _HELD_OUT
    members = random.integers(COMMUNITIES, size=(count, NODES))
    same = members[:, :, None] == members[:, None, :]
    drawn = random.random(same.shape, np.float32) < np.where(same, _WITHIN, _BETWEEN)
    upper = np.triu(drawn, 1)
    edges = (upper | upper.transpose(0, 2, 1)).astype(np.float32)
    tells = random.random(members.shape, np.float32) < _TELLS
    told = np.eye(COMMUNITIES, dtype=np.float32)[members] * tells[..., None]
    inputs, targets = torch.from_numpy(np.concatenate((edges, told), axis=2)), torch.from_numpy(members)
    return Dataset(
        train=Split(inputs[:_GRAPHS], targets[:_GRAPHS]), test=Split(inputs[_GRAPHS:], targets[_GRAPHS:])
    )
