# SPDX-License-Identifier: Apache-2.0
"""The switches' counters while a run goes: a thread asks the controller for them every other second."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from weir.cluster import LocalCluster
    from weir.netns.cluster import NetworkCluster

_EVERY_S: Final = 2.0  # reading all counters of a switch takes it some 30 ms
_SUMMED: Final = ("contribution", "round_complete")  # events of packets that a spine summed


@dataclass(frozen=True)
class NetworkCounts:
    """Packets since the switches started, over all of them.

    trims: packets whose lanes were cut off in a full queue. marks: packets marked there instead. congestion
    drops: packets that found no room and could not be trimmed. lost: dropped on purpose, to simulate loss.
    asked: times a switch asked a sender to send again. background: packets that are not Weir's, however many
    switches forwarded them. spines: bytes of Weir's packets that each spine took part in; dead: spines that
    have ended, and how.
    """

    trims: int = 0
    marks: int = 0
    congestion_drops: int = 0
    lost: int = 0
    asked: int = 0
    background: int = 0
    spines: Mapping[str, int] = field(default_factory=dict)
    dead: Mapping[str, str] = field(default_factory=dict)

    @property
    def shares(self) -> dict[str, float]:
        """Return each spine's share of their bytes; 0 before there are any."""
        total = sum(self.spines.values())
        return {name: count / total if total else 0.0 for name, count in self.spines.items()}

    def as_json(self) -> dict[str, Any]:
        """Return the counts for summary.json."""
        return {**asdict(self), "spine_shares": self.shares}


class NetworkWatch:
    """Keeps the newest counts of a cluster; a context manager. What cannot be read now stays as it was."""

    def __init__(self, cluster: "LocalCluster | NetworkCluster") -> None:
        self._cluster = cluster
        self._counts: NetworkCounts | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="network-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def counts(self) -> NetworkCounts | None:
        """Newest counts; None when nothing was ever read."""
        return self._counts

    def look(self) -> None:
        """Read them now."""
        from weir.agent_service.client import AgentError

        try:
            status = self._cluster.status()
        except AgentError:
            return
        before = self._counts or NetworkCounts()
        self._counts = read_counts(status, before, self._cluster.lost_spines())

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self.look()


def read_counts(status: Any, before: NetworkCounts, dead: Mapping[str, str]) -> NetworkCounts:
    """Return what a ``StatusReply`` says. ``before``: the last counts, for spines that cannot be asked any
    more.
    """
    events: Counter[str] = Counter()
    spines = dict(before.spines)
    background = 0
    for switch in status.switches:
        events.update({event.name: event.count.packets for event in switch.events})
        forwarded = next((e.count.packets for e in switch.events if e.name == "forwarded"), 0)
        # What crosses racks is forwarded by two leaves and one spine.
        background += -forwarded if switch.role == "spine" else forwarded
        if switch.role == "spine":
            summed = sum(event.count.bytes for event in switch.events if event.name in _SUMMED)
            spines[switch.name] = max(summed, spines.get(switch.name, 0))
    queues = [queue for switch in status.switches for queue in switch.queues]
    return NetworkCounts(
        trims=sum(queue.trimmed.packets for queue in queues),
        marks=sum(queue.marked.packets for queue in queues),
        congestion_drops=events["drop_congestion"],
        lost=events["drop_simulated"],
        asked=events["repeat_asked"],
        background=max(0, background),
        spines=spines,
        dead=dict(dead),
    )
