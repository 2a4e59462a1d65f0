# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers: which part of a gradient is sent. One module each; registered by name.

May know: bucket layouts, and of the encodings what they cost. Knows nothing of communicators.
"""

from weir.host_agent.compression.bucket_layout import Span
from weir.host_agent.compression.sparsifiers.base import (
    IncompleteError,
    Sparsifier,
    SparsifierOptions,
    create_sparsifier,
    register,
    sparsifier_class,
    sparsifier_names,
)
from weir.host_agent.compression.sparsifiers.chunk_topk import ChunkTopK
from weir.host_agent.compression.sparsifiers.deft import Deft
from weir.host_agent.compression.sparsifiers.dense import Dense
from weir.host_agent.compression.sparsifiers.dfs import Dfs
from weir.host_agent.compression.sparsifiers.exdyna import ExDyna, ExDynaPublished
from weir.host_agent.compression.sparsifiers.micro import Micro, MicroPublished
from weir.host_agent.compression.sparsifiers.omnireduce import OmniReduce
from weir.host_agent.compression.sparsifiers.random_k import RandomK
from weir.host_agent.compression.sparsifiers.threshold import Threshold
from weir.host_agent.compression.sparsifiers.topk import TopK
from weir.host_agent.compression.sparsifiers.topk_block import TopKBlock

__all__ = [
    "ChunkTopK",
    "Deft",
    "Dense",
    "Dfs",
    "ExDyna",
    "ExDynaPublished",
    "IncompleteError",
    "Micro",
    "MicroPublished",
    "OmniReduce",
    "RandomK",
    "Span",
    "Sparsifier",
    "SparsifierOptions",
    "Threshold",
    "TopK",
    "TopKBlock",
    "create_sparsifier",
    "register",
    "sparsifier_class",
    "sparsifier_names",
]
