# SPDX-License-Identifier: Apache-2.0
"""Findings of an audit, what was looked at, and what the captures could not tell."""

from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from weir.pcap.audit.rules import Rule
from weir.pcap.frames import CapturedFrame


class Note(Enum):
    """A limit of the captures, said once with the number of frames; no breach of a rule."""

    OFFLOADED = (
        "UDP checksums were not filled in yet: captured on the sending host, which leaves them to its "
        "device; they were not checked; `ethtool -K INTERFACE tx off`, or a capture at the switch, shows them"
    )
    TRAIN = (
        "packets of trains that were not cut yet: captured on a host, which leaves that to its device. They "
        "were taken as the packets that they become; `ethtool -K INTERFACE gso off gro off` shows them cut"
    )
    CUT_SHORT = (
        "Weir frames of which the capture has only the beginning: nothing but headers was checked. Capture "
        "whole frames (tcpdump -s 0)"
    )
    NOTHING = (
        "frames, and none from or to Weir's ports: nothing was checked. Is it the right interface, at the "
        "right time?"
    )


@dataclass(frozen=True)
class Finding:
    """A breach of a rule: what is wrong, and the frames that show it.

    round: (aggregation address, job, slot, round) where the breach is one of a round's.
    """

    rule: Rule
    text: str
    frames: tuple[str, ...]
    round: tuple[str, int, int, int] | None = None

    @property
    def remedy(self) -> str:
        """Return what to look at, and what to do."""
        return self.rule.remedy

    def __str__(self) -> str:
        where = ""
        if self.round is not None:
            address, job, slot, number = self.round
            where = f"{address}, job {job:#x} slot {slot} round {number}: "
        return f"{self.rule.title}: {where}{self.text} [{', '.join(self.frames)}]"


@dataclass
class Shares:
    """Counts of a worker's non-zero lanes: those in a result, and those that are in none (returned)."""

    entered: int = 0
    included: int = 0
    unknown: int = 0  # no result in the capture

    @property
    def returned(self) -> int:
        """Lanes that a complete round did without: the worker's residual has them."""
        return self.entered - self.included - self.unknown


@dataclass
class Report:
    """checked: by rule, how often it was applied. worker_lanes: by (job, host), what became of its lanes.

    frames: all that were looked at; weir: those to and from Weir's ports. notes: by note, how many frames.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: Counter[Rule] = field(default_factory=Counter)
    notes: Counter[Note] = field(default_factory=Counter)
    worker_lanes: dict[tuple[int, str], Shares] = field(default_factory=dict)
    frames: int = 0
    weir: int = 0

    def as_json(self, limit: int) -> dict[str, Any]:
        """Return the report for ``--json``.

        Args:
            limit: Largest number of findings in it.

        Returns:
            Dictionaries, lists, text and numbers.
        """
        broken = Counter(finding.rule for finding in self.findings)
        return {
            "rules": {
                rule.title: {"promise": rule.promise, "checked": self.checked[rule], "broken": broken[rule]}
                for rule in Rule
            },
            "workers": [
                {"job": f"{job:#x}", "worker": host, **asdict(shares), "returned": shares.returned}
                for (job, host), shares in sorted(self.worker_lanes.items())
            ],
            "findings": [
                {"rule": finding.rule.title, "text": finding.text, "frames": finding.frames}
                for finding in self.findings[:limit]
            ],
            "notes": {note.value: frames for note, frames in self.notes.items() if frames},
            "frames": self.frames,
            "frames_of_weir": self.weir,
            "broken": len(self.findings),
        }

    def forget(self, rules: Collection[Rule]) -> None:
        """Take back what was said about these rules."""
        self.findings = [finding for finding in self.findings if finding.rule not in rules]
        for rule in rules:
            del self.checked[rule]
        self.worker_lanes.clear()

    def check(
        self,
        rule: Rule,
        kept: bool,
        text: str,
        *frames: CapturedFrame | str,
        round_: tuple[str, int, int, int] | None = None,
    ) -> None:
        """Note that a rule was applied, and the finding if it was not kept.

        frames: those that show it, or their places.
        """
        self.checked[rule] += 1
        if not kept:
            places = [frame if isinstance(frame, str) else frame.place for frame in frames]
            self.findings.append(Finding(rule, text, tuple(dict.fromkeys(places)), round_))
