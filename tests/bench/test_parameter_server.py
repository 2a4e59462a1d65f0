# SPDX-License-Identifier: Apache-2.0
"""The dense parameter server: real connections, real threads."""

import socket
import threading

import pytest
import torch

from bench.parameter_server import Client, serve

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
