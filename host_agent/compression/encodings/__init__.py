# SPDX-License-Identifier: Apache-2.0
"""Encodings: how what was chosen is written down, agreed by all workers, so that it costs least."""

from weir.host_agent.compression.encodings.encoder import Encoder, Proposal
from weir.host_agent.compression.encodings.encoding import (
    DENSE,
    SCALE_BLOCK,
    Encoding,
    EncodingPlan,
    EncodingRule,
    parse_rule,
)
from weir.host_agent.compression.encodings.selection import Selection

__all__ = [
    "DENSE",
    "SCALE_BLOCK",
    "Encoder",
    "Encoding",
    "EncodingPlan",
    "EncodingRule",
    "Proposal",
    "Selection",
    "parse_rule",
]
