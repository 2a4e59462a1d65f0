# SPDX-License-Identifier: Apache-2.0
"""What the controller would write into a switch for a job, written through the switch's own interface."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from host_agent.frames import Addresses, Endpoint
from softswitch.entry import Entry, Exact
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
        everyone = (1 << len(self.ports)) - 1
        written = []
        for worker, port in enumerate(self.ports):
            admit = (self.slot_base, self.slots, 1 << worker, everyone, self.group)
            sender = (Exact(port), Exact(self.job), Exact(worker))
            written.append(
                ("WeirIngress.admission.workers", Entry(sender, "WeirIngress.admission.admit", admit))
            )
            addresses = host_addresses(port)
            deliver = (*_numbers(addresses.switch), *_numbers(addresses.host), addresses.host.udp_port)
            receiver = (Exact(self.job), Exact(worker))
            written.append(
                ("WeirEgress.results.receivers", Entry(receiver, "WeirEgress.results.deliver", deliver))
            )
        return written

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


def install_aggregation(switch: Switch) -> None:
    """Make the switch aggregate what is sent to AGGREGATION."""
    address = int(ipaddress.IPv4Address(AGGREGATION.ip))
    entry = Entry((Exact(address),), "WeirIngress.aggregator.aggregate")
    switch.insert_entry("WeirIngress.aggregator.addresses", entry)


def _numbers(end: Endpoint) -> tuple[int, int]:
    return int(end.mac.replace(":", ""), 16), int(ipaddress.IPv4Address(end.ip))
