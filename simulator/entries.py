# SPDX-License-Identifier: Apache-2.0
"""The controller's entries for a job, written through the switch's own interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from softp4.state.entry import Entry, Exact, Lpm, Match, Replica, Ternary
from softp4.switch import Switch
from weir.controller.entries import Lpm as WantedLpm
from weir.controller.entries import Match as WantedMatch
from weir.controller.entries import SwitchState, TableEntry
from weir.controller.entries import Ternary as WantedTernary
from weir.controller.sync import Batch, GroupUpdate, Verb, plan
from weir.controller.tables import admission, aggregator, results
from weir.host_agent.transport.frames import Addresses, Endpoint

AGGREGATION = Endpoint("02:00:00:00:00:fe", "10.0.0.254")


def host_addresses(number: int) -> Addresses:
    """Return the addresses of host ``number`` (from 1), behind switch port ``number``."""
    return Addresses(Endpoint(f"02:00:00:00:00:{number:02x}", f"10.0.0.{number}"), AGGREGATION)


@dataclass(frozen=True)
class SwitchJob:
    """A job on one switch: worker w is the host on port ``ports[w]``. ``group`` is its multicast group."""

    job: int
    ports: Sequence[int]
    slot_base: int
    slots: int
    group: int

    def entries(self) -> list[tuple[str, Entry]]:
        """Return (table, entry) for every entry of this job."""
        written = []
        for worker, port in enumerate(self.ports):
            written.append(
                admission.worker(
                    port=port,
                    job_id=self.job,
                    number=worker,
                    ip=host_addresses(port).host.ip,
                    udp_port=host_addresses(port).host.udp_port,
                    all_children=admission.bits(range(len(self.ports))),
                    slot_base=self.slot_base,
                    slot_count=self.slots,
                    group=self.group,
                )
            )
            host = host_addresses(port).host
            written.append(
                results.receiver(
                    job_id=self.job,
                    number=worker,
                    port=port,
                    src_mac=AGGREGATION.mac,
                    src_ip=AGGREGATION.ip,
                    dst_mac=host.mac,
                    dst_ip=host.ip,
                    dst_port=host.udp_port,
                    path=worker,
                )
            )
        return [(entry.table, _entry(entry)) for entry in written]

    def install(self, switch: Switch) -> None:
        """Admit the job."""
        for table, entry in self.entries():
            switch.table(table).insert(entry)
        switch.multicast_groups.set(self.group, [(port, w + 1) for w, port in enumerate(self.ports)])

    def remove(self, switch: Switch) -> None:
        """Forget the job. Its slots keep their contents, as they would in a real switch."""
        for table, entry in self.entries():
            switch.table(table).delete(entry.key)
        switch.multicast_groups.delete(self.group)


def aggregation(headroom: int = 0xFFFF) -> tuple[str, Entry]:
    """Return (table, entry) that makes a switch aggregate what is sent to AGGREGATION.

    ``headroom``: by how many bytes it may lengthen a packet.
    """
    entry = aggregator.address(AGGREGATION.ip, headroom)
    return entry.table, _entry(entry)


def install(switch: Switch, state: SwitchState) -> None:
    """Insert every entry and group of a controller's desired state; the switch must hold none of them yet."""
    apply(switch, plan(SwitchState(), state))


def apply(switch: Switch, batches: Sequence[Batch]) -> None:
    """Write what the controller would write, in its order."""
    for update in chain.from_iterable(batches):
        if isinstance(update, GroupUpdate):
            if update.verb is Verb.DELETE:
                switch.multicast_groups.delete(update.group)
            else:
                replicas = [Replica(r.port, r.rid) for r in sorted(update.replicas)]
                switch.multicast_groups.set(update.group, replicas)
            continue
        entry = _entry(update.entry)
        if update.verb is Verb.INSERT:
            switch.table(update.entry.table).insert(entry)
        elif update.verb is Verb.MODIFY:
            switch.table(update.entry.table).modify(entry)
        else:
            switch.table(update.entry.table).delete(entry.key, entry.priority)


def _entry(entry: TableEntry) -> Entry:
    key = tuple(_match(value) for _, value in entry.match)
    return Entry(key, entry.action, tuple(int(value) for _, value in entry.params), entry.priority)


def _match(value: WantedMatch) -> Match:
    match value:
        case WantedLpm(number, length):
            return Lpm(number, length)
        case WantedTernary(number, mask):
            return Ternary(number, mask)
        case number:
            return Exact(number)
