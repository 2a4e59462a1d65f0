# SPDX-License-Identifier: Apache-2.0
"""What the controller would write into a switch for a job, written through the switch's own interface."""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.entries import Lpm as WantedLpm
from controller.entries import SwitchState, TableEntry
from controller.tables import admission, aggregator, results
from host_agent.frames import Addresses, Endpoint
from softswitch.entry import Entry, Exact, Lpm, Replica
from softswitch.switch import Switch

AGGREGATION = Endpoint("02:00:00:00:00:fe", "10.0.0.254")


def host_addresses(number: int) -> Addresses:
    """Addresses of host ``number`` (from 1), behind switch port ``number``."""
    return Addresses(Endpoint(f"02:00:00:00:00:{number:02x}", f"10.0.0.{number}"), AGGREGATION)


@dataclass(frozen=True)
class Job:
    """A job on one switch: worker w is the host on port ``ports[w]``. ``group`` is its multicast group."""

    job: int
    ports: Sequence[int]
    slot_base: int
    slots: int
    group: int

    def entries(self) -> list[tuple[str, Entry]]:
        """(table, entry) for every entry of this job."""
        written = []
        for worker, port in enumerate(self.ports):
            written.append(
                admission.worker(
                    port=port,
                    job_id=self.job,
                    rank=worker,
                    size=len(self.ports),
                    slot_base=self.slot_base,
                    slot_count=self.slots,
                    group=self.group,
                )
            )
            host = host_addresses(port).host
            written.append(
                results.receiver(
                    job_id=self.job,
                    rank=worker,
                    src_mac=AGGREGATION.mac,
                    src_ip=AGGREGATION.ip,
                    dst_mac=host.mac,
                    dst_ip=host.ip,
                    dst_port=host.udp_port,
                )
            )
        return [(entry.table, _entry(entry)) for entry in written]

    def install(self, switch: Switch) -> None:
        """Admit the job."""
        for table, entry in self.entries():
            switch.insert_entry(table, entry)
        switch.set_multicast_group(self.group, [(port, w + 1) for w, port in enumerate(self.ports)])

    def remove(self, switch: Switch) -> None:
        """Forget the job. Its slots keep their contents, as they would in a real switch."""
        for table, entry in self.entries():
            switch.delete_entry(table, entry.key)
        switch.delete_multicast_group(self.group)


def aggregation(headroom: int = 0xFFFF) -> tuple[str, Entry]:
    """(table, entry) that makes a switch aggregate what is sent to AGGREGATION.

    ``headroom``: by how many bytes it may lengthen a packet.
    """
    entry = aggregator.address(AGGREGATION.ip, headroom)
    return entry.table, _entry(entry)


def install(switch: Switch, state: SwitchState) -> None:
    """Insert every entry and group of a controller's desired state; the switch must hold none of them yet."""
    for number, replicas in state.groups.items():
        switch.set_multicast_group(number, [Replica(r.port, r.rid) for r in sorted(replicas)])
    for entry in state.entries:
        switch.insert_entry(entry.table, _entry(entry))


def _entry(entry: TableEntry) -> Entry:
    key = tuple(
        Lpm(value.value, value.length) if isinstance(value, WantedLpm) else Exact(value)
        for _, value in entry.match
    )
    return Entry(key, entry.action, tuple(value for _, value in entry.params))
