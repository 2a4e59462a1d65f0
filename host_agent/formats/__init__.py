# SPDX-License-Identifier: Apache-2.0
"""Formats: how what the sparsifiers chose is written down, agreed by all workers, so that it costs least."""

from host_agent.formats.format import DENSE, SCALE_LANES, Format, Plan, Rule, parse_rule
from host_agent.formats.formats import Formats, Proposal
from host_agent.formats.selection import Selection

__all__ = ["DENSE", "SCALE_LANES", "Format", "Formats", "Plan", "Proposal", "Rule", "Selection", "parse_rule"]
