# SPDX-License-Identifier: Apache-2.0
"""A trainer that publishes its weights, and engines that follow, on one machine.

    python examples/weights.py

Starts a soft switch, a trainer and two engines. After each optimizer step the trainer sends the values that
changed, once; the switch makes a copy for each engine. All end with the same weights, bit for bit.
"""

import argparse
import os
import subprocess
import sys

import torch

import weir
import weir.torch

ENGINES = 2


def network() -> torch.nn.Module:
    """Return the network that the trainer trains and the engines serve."""
    return torch.nn.Sequential(
        torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512)
    ).bfloat16()


def train(steps: int) -> None:
    """Train, and publish each version."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with weir.torch.publish(model, "policy") as publication:
        for _ in range(steps):
            model(torch.randn(32, 64).bfloat16()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            publication.update()
        print(f"trainer: version {publication.version}, {publication.digest[:16]}", flush=True)
        sys.stdin.readline()  # until the engines have it
        stats = publication.stats
        weights = sum(tensor.numel() for tensor in model.state_dict().values())
        changed = stats.changed / (steps * weights)
        sent = f"{stats.payload_bytes:,} bytes sent, snapshots included"
        print(f"trainer: {changed:.1%} of the values changed in a step, {sent}")


def serve(versions: int) -> None:
    """Follow the trainer; where a real engine serves requests, this one waits for the next version."""
    model = network()
    with weir.torch.subscribe(model, "policy") as subscription:
        while subscription.version < versions:
            subscription.wait(subscription.version + 1)
            subscription.swap()  # no forward pass runs now
        assert subscription.digest == weir.torch.weights_digest(model)
        name = os.environ["WEIR_HOST"]
        print(f"engine {name}: version {subscription.version}, {subscription.digest[:16]}", flush=True)


def main() -> None:
    """Start the cluster and all processes; or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument("--role", choices=("trainer", "engine"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role == "trainer":
        train(arguments.steps)
    elif arguments.role == "engine":
        serve(arguments.steps + 1)  # version 1 is the start
    else:
        start(arguments.steps)


def start(steps: int) -> None:
    """Run a trainer and engines on a cluster of their own."""
    with weir.local_cluster(workers=1 + ENGINES) as cluster:

        def process(rank: int, role: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, __file__, "--steps", str(steps), "--role", role]
            environment = {**os.environ, **cluster.environment(rank)}
            return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)

        trainer = process(0, "trainer")
        engines = [process(rank, "engine") for rank in range(1, 1 + ENGINES)]
        ends = [engine.wait() for engine in engines]
        trainer.communicate(b"\n")
    if any(ends) or trainer.returncode:
        sys.exit("a process failed")


if __name__ == "__main__":
    main()
