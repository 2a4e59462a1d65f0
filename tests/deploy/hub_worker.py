# SPDX-License-Identifier: Apache-2.0
"""A worker of a hub, without torch: ``python -m tests.deploy.hub_worker CONTROLLER RANK WORKERS``."""

import sys
from typing import Final

import numpy as np

from weir.agent_service.client import AgentClient
from weir.host_agent.torch.link_choice import bind_udp, choose_port
from weir.host_agent.transport.reducer import Reducer
from weir.host_agent.transport.slot_transport import TransportConfig
from weir.wire.definition import Op

LANES: Final = 100_000


def main(controller: str, rank: int, workers: int) -> None:
    """Join as this rank, sum a vector of 10 to the power of the rank, leave, and print the sum's values."""
    udp = bind_udp(None)
    assert udp is not None
    with AgentClient(controller) as client:
        member = client.join(
            job="sum", size=workers, rank=rank, host=f"h{rank + 1}", udp_port=udp.port, slots=200
        )
        port = choose_port(member, "ip", udp)
        config = TransportConfig(member.job_id, member.number, workers, member.slot_count, key=member.key)
        with Reducer(port.link, config) as reducer:
            vector = np.full(LANES, 10**rank, np.uint32)
            reducer.reduce_blocks(vector, Op.ADD, 32)  # in packets of the longest size
        port.release()
        client.leave()
    print("sums", *np.unique(vector).tolist())


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
