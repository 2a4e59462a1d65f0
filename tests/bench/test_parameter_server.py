# SPDX-License-Identifier: Apache-2.0
"""The dense parameter server: real connections, real threads."""

import socket
import threading

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from weir.bench.training.tcp_server import Client, serve
from weir.bench.training.worker import ServerExchange

WORKERS = 3


def test_every_worker_gets_the_average_of_every_bucket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = threading.Thread(target=serve, args=(listener, WORKERS))
        server.start()
        gradients = [
            [torch.randn(length, generator=torch.Generator().manual_seed(seed)) for length in (100_000, 1, 7)]
            for seed in range(WORKERS)
        ]
        clients = [Client("127.0.0.1", port, rank) for rank in range(WORKERS)]
        waiting = [
            [client.average(bucket) for bucket in own] for client, own in zip(clients, gradients, strict=True)
        ]
        answers = [[future.wait() for future in futures] for futures in waiting]
        for client in clients:
            client.close()
        server.join()
    for bucket, parts in enumerate(zip(*gradients, strict=True)):
        mean = torch.stack(parts).mean(dim=0)
        for own in answers:
            torch.testing.assert_close(own[bucket], mean)
            assert torch.equal(own[bucket], answers[0][bucket])


def test_a_worker_hears_when_the_server_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = Client("127.0.0.1", listener.getsockname()[1], 0)
        connection, _ = listener.accept()
        future = client.average(torch.ones(1000))
        connection.close()
        with pytest.raises(Exception, match="the parameter server is gone"):
            future.wait()
        client.close()


def test_ddp_trains_with_what_the_server_averages() -> None:
    """The other worker of this replica is a script: it sends zeros, so that gradients are halved."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = threading.Thread(target=serve, args=(listener, 2))
            server.start()
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            exchange = ServerExchange(address, 0)
            other = Client("127.0.0.1", listener.getsockname()[1], 1)
            ddp = DistributedDataParallel(torch.nn.Linear(3, 2, bias=False))
            ddp.register_comm_hook(exchange.state, exchange.hook)
            answer = other.average(torch.zeros(6))
            ddp(torch.ones(1, 3)).sum().backward()
            assert torch.equal(ddp.module.weight.grad, torch.full((2, 3), 0.5))
            assert torch.equal(answer.wait(), torch.full((6,), 0.5))
            exchange.finish([])
            other.close()
            server.join()
    finally:
        dist.destroy_process_group()
