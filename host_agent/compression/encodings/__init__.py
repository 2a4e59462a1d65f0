# SPDX-License-Identifier: Apache-2.0
"""Encodings: how what was chosen is written down, agreed by all workers, so that it costs least."""

from weir.host_agent.compression.encodings.encoding import DENSE, SCALE_LANES, Format, Plan, Rule, parse_rule
from weir.host_agent.compression.encodings.encodings import Encodings, Proposal
from weir.host_agent.compression.encodings.selection import Selection

__all__ = [
    "DENSE",
    "SCALE_LANES",
    "Encodings",
    "Format",
    "Plan",
    "Proposal",
    "Rule",
    "Selection",
    "parse_rule",
]
