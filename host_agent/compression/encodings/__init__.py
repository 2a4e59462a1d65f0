# SPDX-License-Identifier: Apache-2.0
"""Encodings: how what was chosen is written down, agreed by all workers, so that it costs least.

May know: bucket layouts, collectives, transport. Knows nothing of the sparsifiers, which stand above it: some
choose by what an encoding costs (``forecast``, ``pyramid``); the encoder is told what it needs of them.
``cost`` says what an exchange puts on the wire, exactly; ``omnireduce`` what a peer would.
"""

from weir.host_agent.compression.encodings.encoder import Encoder, Proposal, prescribed
from weir.host_agent.compression.encodings.encoding import (
    DENSE,
    SCALE_BLOCK,
    Encoding,
    EncodingPlan,
    EncodingRule,
    parse_rule,
)
from weir.host_agent.compression.encodings.selection import Selection, Summed

__all__ = [
    "DENSE",
    "SCALE_BLOCK",
    "Encoder",
    "Encoding",
    "EncodingPlan",
    "EncodingRule",
    "Proposal",
    "Selection",
    "Summed",
    "parse_rule",
    "prescribed",
]
