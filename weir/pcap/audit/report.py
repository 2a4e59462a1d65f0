# SPDX-License-Identifier: Apache-2.0
"""Rules, what was looked at for their sake, and the findings."""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from weir.pcap.frames import CapturedFrame


class Rule(Enum):
    """A rule of the protocol (docs/protocol.md, docs/flows.md), by the name that findings carry."""

    WELL_FORMED = "well-formed", "what is sent to Weir's ports is a Weir packet"
    ROUND_ORDER = (
        "round order",
        "nobody sends round r + 1 of a slot before the result of round r was sent to it",
    )
    SAME_LANES = "same lanes", "what is sent again is what was sent before"
    COMPLETE = "complete", "no result leaves before a packet of every child has come"
    MASK = "mask", "who is included in a result, and counted, sent lanes that were added"
    SUMS = "sums", "sums are what the included contributions add up to, at every switch"
    REPLICAS = "replicas", "all results of a round are the same"
    NEXT = "next", "a result asks for the least block that was announced"
    AUDIENCE = "audience", "lanes of a result go to its audience, and to nobody else"
    OPERATION = "operation", "all packets of a round are of one operation, or its result says otherwise"
    CLASS = "class", "DSCP and ECN say what the packet's classes and flags say"
    TRIMMED = (
        "trimmed",
        "a trimmed packet has neither lanes nor data, and was droppable or says that it counts for nothing",
    )
    PRIORITY = "priority", "no packet overtakes one of its own or of a higher class on a link"
    SPRAY = "spray", "equal-cost links carry equal shares of what is sprayed"
    SETTLEMENT = (
        "settlement",
        "what a receiver of a flow says it has, had come; what it gave up, it was allowed to",
    )

    def __init__(self, title: str, promise: str) -> None:
        self.title = title
        self.promise = promise


@dataclass(frozen=True)
class Finding:
    """A breach of a rule: what is wrong, and the frames that show it.

    round: (aggregation address, job, slot, round) where the breach is one of a round's.
    """

    rule: Rule
    text: str
    frames: tuple[str, ...]
    round: tuple[str, int, int, int] | None = None

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
        """Return the lanes that a complete round did without: the worker's residual has them."""
        return self.entered - self.included - self.unknown


@dataclass
class Report:
    """checked: by rule, how often it was applied. worker_lanes: by (job, host), what became of its lanes.

    frames: all that were looked at; weir: those to and from Weir's ports.
    """

    findings: list[Finding] = field(default_factory=list)
    checked: Counter[Rule] = field(default_factory=Counter)
    worker_lanes: dict[tuple[int, str], Shares] = field(default_factory=dict)
    frames: int = 0
    weir: int = 0

    def check(
        self,
        rule: Rule,
        kept: bool,
        text: str,
        *frames: CapturedFrame,
        round_: tuple[str, int, int, int] | None = None,
    ) -> None:
        """Note that a rule was applied, and the finding if it was not kept."""
        self.checked[rule] += 1
        if not kept:
            self.findings.append(Finding(rule, text, tuple(frame.place for frame in frames), round_))
