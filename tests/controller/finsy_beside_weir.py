# SPDX-License-Identifier: Apache-2.0
"""finsy beside Weir's soft switch, controller and agents, in one process."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import finsy as fy
from lab import STATION, Lab, expect, frame

from softp4.device import Device
from weir.agent_service.client import AgentClient
from weir.controller.server import running
from weir.controller.topology import single_switch


async def own_switch(lab: Lab) -> None:
    """finsy's own switch forwards as finsy says."""
    async with fy.Switch("own", lab.address, fy.SwitchOptions(p4info=lab.p4info, p4blob=lab.program)) as sw:
        await sw.insert(
            [fy.P4TableEntry("stations", match=fy.Match(dst=STATION), action=fy.Action("forward", port=1))]
        )
        lab.send(2, frame(STATION))
        expect(lab.receive(1), frame(STATION))


with Device() as device:
    switch = device.serve("127.0.0.1:0")
    device.start()
    with running(single_switch(2, switch)) as controller, ThreadPoolExecutor(2) as pool:
        agents = [AgentClient(controller.address) for _ in range(2)]
        joined = pool.map(
            lambda rank: agents[rank].join(job="digits", size=2, rank=rank, host=f"h{rank + 1}"), range(2)
        )
        expect(len({member.job_id for member in joined}), 1)
        asyncio.run(own_switch(Lab()))
        for agent in agents:
            agent.close()
print("done")
