# SPDX-License-Identifier: Apache-2.0
"""The rule about loss budgets of sums: how many of a worker's lanes may be missing in results.

A budget is the sender's affair, and not in any packet; who audits says what share it was. An operation is
known by its fingerprint, which all of its packets carry.
"""

from dataclasses import dataclass, field
from typing import Final

from weir.pcap.audit.point import Sent
from weir.pcap.audit.report import Report
from weir.pcap.audit.rules import Rule
from weir.wire.definition import Op

_NAMED: Final = 3  # frames of a finding


@dataclass
class _Account:
    """Lanes of a worker in one operation: how many, how many are missing, and frames of some that are."""

    block: int
    lanes: int = 0
    missing: int = 0
    frames: list[str] = field(default_factory=list)


class Budgets:
    """Adds up what is missing, by worker and operation. share: what may be; None: nobody has said."""

    def __init__(self, report: Report, share: float | None) -> None:
        self._report, self._share = report, share
        self._accounts: dict[tuple[int, str, int], _Account] = {}

    def add(self, host: str, sent: Sent, lanes: int, missing: bool) -> None:
        """Take in a worker's lanes of one round.

        sent: one of its packets. missing: the round has a result, without these lanes.
        """
        packet = sent.packet
        if missing:
            text = f"a round of {packet.op.name} lacks lanes of {host}"
            self._report.check(Rule.BUDGET, packet.op is Op.ADD, text, sent.frame)
        if self._share is None:
            return
        key = packet.job, host, packet.check
        account = self._accounts.setdefault(key, _Account(1 << packet.block_log2))
        account.lanes += lanes
        if missing:
            account.missing += lanes
            if len(account.frames) < _NAMED:
                account.frames.append(sent.frame.place)

    def finish(self) -> None:
        """Check the accounts of all operations."""
        for (job, host, check), account in self._accounts.items():
            if self._share is None or not account.lanes:
                continue
            # The vector's last block may be shorter than its packet says.
            short = account.block - 1 if self._share else 0
            text = (
                f"{account.missing} of {account.lanes} lanes of {host} are missing in operation "
                f"{check:#010x} of job {job:#x}, {account.missing / account.lanes:.1%}; its "
                f"budget is {self._share:.1%}"
            )
            allowed = self._share * account.lanes + short
            self._report.check(Rule.BUDGET, account.missing <= allowed, text, *account.frames)
