# SPDX-License-Identifier: Apache-2.0
"""Audit of captures: whether what is on the links keeps the protocol's rules, from packets alone."""

from weir.pcap.audit.audit import PacketAudit
from weir.pcap.audit.report import Finding, Note, Report
from weir.pcap.audit.rules import Rule

__all__ = ["Finding", "Note", "PacketAudit", "Report", "Rule"]
