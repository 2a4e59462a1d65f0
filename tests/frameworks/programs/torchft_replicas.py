# SPDX-License-Identifier: Apache-2.0
"""Replicas of torchft over Weir: one is lost, and one comes back; parameters stay equal.

Each replica's process group is configured again whenever their number changes.
"""

import hashlib
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchft import DistributedDataParallel, Manager, Optimizer
from torchft.coordination import LighthouseServer

from tests.frameworks import sections

STEPS = 3  # together, before one is lost and after it has come back


def replica(number: int, lighthouse: str, first_life: bool, results: Any) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = sections.run("torchft", "weir")["ProcessGroupWeir"](timeout=timedelta(seconds=30))
    torch.manual_seed(number)  # a new replica gets the others' state
    model = torch.nn.Linear(4, 2)
    inner = torch.optim.SGD(model.parameters(), 0.1)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=group,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=f"replica-{number}-",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=lighthouse,
        timeout=timedelta(seconds=30),
    )
    ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    together: dict[int, str] = {}
    before, lost = 1, not first_life
    while not lost or len(together) < STEPS:
        if number == 1 and first_life and len(together) == STEPS:
            os._exit(0)
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(10 * manager.current_step() + number)
        ddp(torch.randn(4, 4, generator=generator)).square().mean().backward()
        optimizer.step()
        now = manager.num_participants()
        if now == 1:
            lost, together = lost or before == 2, {}
            time.sleep(0.05)  # alone it is fast
        else:
            values = torch.cat([one.detach().flatten() for one in model.parameters()])
            together[manager.current_step()] = hashlib.sha256(values.numpy().tobytes()).hexdigest()
        before = now
    results.put((number, together))
    manager.shutdown()
    group.abort()


if __name__ == "__main__":
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1, join_timeout_ms=5000)
    context = mp.get_context("spawn")
    results = context.Queue()

    def start(number: int, first_life: bool) -> Any:
        place = (number, lighthouse.address(), first_life, results)
        process = context.Process(target=replica, args=place)
        process.start()
        return process

    survivor, lost = start(0, first_life=True), start(1, first_life=True)
    lost.join(60)
    again = start(1, first_life=False)
    said = dict(results.get(timeout=90) for _ in range(2))
    assert said[0] == said[1]
    for process in (survivor, again):
        process.join(60)
        assert process.exitcode == 0
    lighthouse.shutdown()
    print("trained over weir", flush=True)
