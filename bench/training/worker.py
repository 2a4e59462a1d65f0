# SPDX-License-Identifier: Apache-2.0
"""A worker of the training benchmarks: one of ``weir train``, which may also use a parameter server.

This module must not postpone the evaluation of annotations: DDP looks at the hook's.
"""

import os
from collections.abc import Iterable

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from weir.bench.training.tcp_server import Client
from weir.bench.training.ways import SERVER
from weir.train.backends import Exchange
from weir.train.exchange import make_exchange
from weir.train.messages import Sent, WorkerSpec
from weir.train.wirebytes import TcpMeter
from weir.train.worker import main as run


class ServerExchange(Exchange):
    """Averages gradients on a parameter server; all else (starting values, accuracy) goes over Gloo."""

    def __init__(self, server: str, rank: int) -> None:
        address, port = server.rsplit(":", 1)
        self._client = Client(address, int(port), rank)
        self.hook = self._average
        self.meter = TcpMeter()

    def sent(self) -> Sent:
        """Return that everything was sent."""
        return Sent()

    def finish(self, _inputs: Iterable[torch.Tensor]) -> None:
        """Hang up."""
        self._client.close()

    def _average(self, _state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return self._client.average(bucket.buffer())


def choose_exchange(spec: WorkerSpec, ddp: DistributedDataParallel) -> Exchange:
    """Return the parameter server's if there is one, else as in ``weir train``."""
    if server := os.environ.get(SERVER):
        return ServerExchange(server, int(os.environ["RANK"]))
    return make_exchange(spec, ddp)


def main() -> None:
    """Run the worker."""
    run(choose_exchange)


if __name__ == "__main__":
    main()
