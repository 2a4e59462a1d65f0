# SPDX-License-Identifier: Apache-2.0
"""Flows through a switch, with several servers and workers on one address: all arrive, and those of which one
end has the flows' port are trimmed within their budgets.
"""

import contextlib
import threading
from functools import partial

import numpy as np
import pytest

from weir.host_agent.flows import FlowConfig, FlowReceiver, FlowSender, new_flow_id
from weir.host_agent.flows.udp import UdpFlows
from weir.host_agent.transport.service_class import ServiceClass
from weir.netns.cluster import network_cluster
from weir.network import NetworkSpec
from weir.wire.definition import FLOW_PORT

VALUES, BUDGET = 100_000, 30_000


@pytest.mark.root
def test_several_servers_and_workers_share_an_address() -> None:
    gradient = np.arange(1, VALUES + 1, dtype=np.float32)
    with (
        network_cluster(3, network=NetworkSpec(rate_bps=10**7)) as cluster,
        contextlib.ExitStack() as stack,
    ):
        lab = cluster.lab
        hosts = list(zip(lab.namespaces, lab.hosts, strict=True))
        # Two processes' sockets on each host: the first has the flows' port.
        servers, first, second = (
            [stack.enter_context(there.call(partial(UdpFlows.at, host.ip))) for _ in range(2)]
            for there, host in hosts
        )
        workers = [*first, *second]
        for pair in (servers, first, second):
            assert [flows.address.port == FLOW_PORT for flows in pair] == [True, False]
        flows = {}
        for number, worker in enumerate(workers):
            for index, server in enumerate(servers):
                config = FlowConfig(new_flow_id(), number, max_loss=0.5)
                sender, receiver = FlowSender(config), FlowReceiver(config)
                worker.mux.add(sender, server.address)
                server.mux.add(receiver, worker.address)
                sender.submit(gradient, ServiceClass(budgets=np.array([BUDGET], np.uint64)))
                flows[number, index] = sender, receiver
        done = threading.Event()
        serving = [threading.Thread(target=each.drive, args=(done.is_set, 60)) for each in servers]
        pushing = [
            threading.Thread(
                target=worker.drive,
                args=(lambda n=number: all(flows[n, i][0].idle for i in range(2)), 60),
            )
            for number, worker in enumerate(workers)
        ]
        for thread in (*serving, *pushing):
            thread.start()
        for thread in pushing:
            thread.join()
        for worker in workers:
            worker.linger(1)
        done.set()
        for thread in serving:
            thread.join()
    trimmed = {}
    for key, (sender, receiver) in flows.items():
        (settled,), (delivery,) = sender.settlements(), receiver.deliveries()
        assert np.array_equal(delivery.values + settled.residual(), gradient), key
        assert np.count_nonzero(settled.residual()) <= BUDGET, key
        trimmed[key] = sender.counts.trimmed
    plain = {(number, 1) for number in (1, 3)}  # neither end has the flows' port: carried like any UDP
    assert all((trimmed[key] > 0) == (key not in plain) for key in flows), trimmed
