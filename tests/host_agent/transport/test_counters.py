# SPDX-License-Identifier: Apache-2.0
"""One list of counters: where they come from, what they mean to each other, and their sums."""

import numpy as np
import pytest

from softp4.switch import Switch
from tests.simulator.rack import Rack
from weir.host_agent.transport import bindings
from weir.host_agent.transport.counters import COUNTERS, TransportCounters
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.p4src import PROGRAM
from weir.simulator.entries import aggregation
from weir.simulator.host import Work
from weir.simulator.link import Faults
from weir.wire.definition import Op


def test_every_counter_comes_from_c_once() -> None:
    assert sorted([*bindings.Report.COUNTS, *bindings.Report.FROM_VERDICTS]) == sorted(COUNTERS)


@pytest.mark.parametrize("service", [LOSSLESS, ServiceClass(budgets=np.array([20 * 256], np.uint64))])
def test_a_packet_after_a_rounds_first_is_a_retransmission_a_release_or_a_probe(
    service: ServiceClass,
) -> None:
    faults = Faults(loss=0.1, jitter=50_000, trim=0.05)
    with Switch(PROGRAM) as switch:
        table, entry = aggregation()
        switch.table(table).insert(entry)
        with Rack(switch, workers=3, slots=8, seed=1, up=faults, down=faults) as rack:
            rack.submit([Work(Op.ADD, 256, np.ones(200 * 256, np.uint32), 0, service) for _ in rack.hosts])
            rack.run()
            reports = [host.reports[0] for host in rack.hosts]
    total = sum((report.counters for report in reports), TransportCounters())
    again = total.retransmissions, total.releases, total.probes
    assert total.packets_up == total.rounds + sum(again)
    assert total.retransmissions and total.probes
    assert bool(total.releases) == bool(service.budgets.size)


def test_sums_and_differences_are_of_every_counter() -> None:
    primes = TransportCounters(**{name: 2 * number + 3 for number, name in enumerate(COUNTERS)})
    ones = TransportCounters(**dict.fromkeys(COUNTERS, 1))
    for number, name in enumerate(COUNTERS):
        assert getattr(primes + ones, name) == 2 * number + 4
        assert getattr(primes - ones, name) == 2 * number + 2
