# SPDX-License-Identifier: Apache-2.0
"""All-reduces that are measured: the tensors, and one repetition as a rank saw it."""

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from weir.bench.case import parameter
from weir.bench.peers import CONTENDERS
from weir.bench.ranks import RATES, check_rates
from weir.network import parse_shape

BLOCK: Final = 256


@dataclass(frozen=True)
class Parameters:
    """The tensors, and where they are summed."""

    workers: int = parameter(4, "Number of workers.", least=1, most=32)
    megabytes: tuple[float, ...] = parameter(
        (46.0,), "Sizes of the float32 tensor.", unit="MB", least=0.001, most=4096
    )
    densities: tuple[float, ...] = parameter(
        (1.0, 0.1, 0.01), "Shares of blocks of 256 that are not zero, chosen by each rank.", above=0, most=1
    )
    contenders: tuple[str, ...] = parameter(("gloo", "weir"), "Who takes part.", choices=CONTENDERS)
    rates: tuple[str, ...] = parameter(("200mbit",), RATES)
    threads: tuple[int, ...] = parameter((1,), "Threads of the switch, over shared memory.", least=1, most=64)
    devices: tuple[str, ...] = parameter(
        ("cpu",), "Where the tensors are; all ranks share the GPU.", choices=("cpu", "cuda")
    )
    ip: bool = parameter(False, "Over shaped links, also with ports that are claimed over IP.")
    topology: str = parameter("single", "Of shaped links: single, or leaf-spine-RxS: racks and spines.")
    seconds: float = parameter(
        0.0, "A contender has fewer repetitions, 3 at least, where they take longer; 0: never.", least=0
    )
    limit: float = parameter(600.0, "After which a measurement fails.", unit="s", least=1)

    def __post_init__(self) -> None:
        check_rates(self.rates)
        if "gloo" not in self.contenders:
            raise ValueError("contenders: gloo is among them, as sums are compared with its own")
        if self.ip and not parse_shape(self.topology).single:
            raise ValueError("ip: only a single switch has ports that are claimed over IP")


@dataclass(frozen=True)
class Spec:
    """All-reduces of one size. elements: of the tensor. switches: process ids."""

    elements: int
    given: Parameters
    repeats: int
    switches: tuple[int, ...]


class Sample(NamedTuple):
    """One repetition as one rank saw it.

    seconds: from a common start to this rank's end. worker, switch, machine: seconds of processor time, of
    this rank until its end, and of all switches and of the whole machine until the last rank's.
    """

    seconds: float
    worker: float
    switch: float
    machine: float


def tensor(spec: Spec, density: float, rank: int) -> torch.Tensor:
    """Return normal numbers in a ``density`` share of the blocks, zeros elsewhere."""
    choice = torch.Generator().manual_seed(1 + rank)
    values = torch.Generator().manual_seed(100 + rank)
    blocks = -(-spec.elements // BLOCK)
    keep = torch.zeros(blocks)
    keep[torch.randperm(blocks, generator=choice)[: max(1, round(density * blocks))]] = 1
    data = torch.randn(blocks, BLOCK, generator=values).mul_(keep[:, None])
    return data.flatten()[: spec.elements]
