# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers: which part of a gradient is sent. One module each; registered by name."""

from host_agent.sparsifiers.base import (
    BLOCK_SIZES,
    Span,
    Sparsifier,
    SparsifierOptions,
    create_sparsifier,
    register,
    sparsifier_class,
    sparsifier_names,
)
from host_agent.sparsifiers.deft import Deft
from host_agent.sparsifiers.dense import Dense
from host_agent.sparsifiers.dfs import Dfs
from host_agent.sparsifiers.exdyna import ExDyna, ExDynaPublished
from host_agent.sparsifiers.micro import Micro, MicroPublished
from host_agent.sparsifiers.omnireduce import OmniReduce
from host_agent.sparsifiers.random_k import RandomK
from host_agent.sparsifiers.threshold import Threshold
from host_agent.sparsifiers.topk import TopK
from host_agent.sparsifiers.topk_block import TopKBlock

__all__ = [
    "BLOCK_SIZES",
    "Deft",
    "Dense",
    "Dfs",
    "ExDyna",
    "ExDynaPublished",
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
