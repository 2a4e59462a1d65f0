# SPDX-License-Identifier: Apache-2.0
"""What collectives cost, as docs/internals/collectives.md has it, against counted bytes."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.host_agent.torch.worlds import World
from weir.wire.definition import COLUMN, MAX_COLUMNS, WEIR

SIZE, ROOT = 4, 1
COUNT = 100_352  # float32 values of one rank's tensor or part: 392 blocks
HEADERS = 42 + WEIR.size + COLUMN.size  # of a packet of one block
MORE_COLUMNS = COLUMN.size * (MAX_COLUMNS - 1)  # of one of small blocks

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "collectives.md"


def formulas(collective: str) -> list[list[str]]:
    """Return the formulas of a row of the table, up and down: of any rank, and the root's if it differs."""
    (row,) = (line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{collective}` "))
    return [re.findall(r"`([^`]*)`", cell) for cell in row.split("|")[3:5]]


def lanes(formula: str) -> float:
    """Return the value of a formula, in which factors stand side by side."""
    product = re.sub(r"(?<=[nvL)])(?=[vL(])", "*", formula)
    return float(eval(product, {"n": SIZE, "v": COUNT, "L": COUNT, "b": 256}))


def cost(call: Callable[[], Any]) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Return (bytes, packets) that a call made this rank send, and receive; and repetitions."""
    stats = [dist.group.WORLD._get_backend(torch.device("cpu")).connection.stats]
    call()
    stats.append(dist.group.WORLD._get_backend(torch.device("cpu")).connection.stats)
    before, after = stats
    return (
        (after.bytes_up - before.bytes_up, after.packets_up - before.packets_up),
        (after.bytes_down - before.bytes_down, after.packets_down - before.packets_down),
        sum(getattr(after, what) - getattr(before, what) for what in ("retransmissions", "probes")),
    )


def counted(collective: str) -> tuple[tuple[int, int], tuple[int, int], int]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    own = torch.randn(COUNT, generator=generator)
    parts = [torch.randn(COUNT, generator=generator) for _ in range(SIZE)]
    outputs = [torch.empty(COUNT) for _ in range(SIZE)]
    at_root = dist.get_rank() == ROOT
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(own),
        "reduce": lambda: dist.reduce(own, ROOT),
        "reduce_scatter": lambda: dist.reduce_scatter(outputs[0], parts),
        "broadcast": lambda: dist.broadcast(own, ROOT),
        "all_gather": lambda: dist.all_gather(outputs, own),
        "gather": lambda: dist.gather(own, outputs if at_root else None, ROOT),
        "scatter": lambda: dist.scatter(own, parts if at_root else None, ROOT),
        "all_to_all": lambda: dist.all_to_all(outputs, parts),
        "barrier": dist.barrier,
    }
    dist.barrier()
    return cost(calls[collective])


def round_trips() -> dict[str, int]:
    """Return how many reductions each collective of a few values is made of."""
    rank, root = dist.get_rank(), dist.get_rank() == ROOT
    own, parts = torch.ones(4), [torch.ones(4) for _ in range(SIZE)]
    calls: dict[str, Callable[[], Any]] = {
        "reduce": lambda: dist.reduce(own, ROOT),
        "reduce_scatter": lambda: dist.reduce_scatter(own, parts),
        "broadcast": lambda: dist.broadcast(own, ROOT),
        "gather": lambda: dist.gather(own, parts if root else None, ROOT),
        "scatter": lambda: dist.scatter(own, parts if root else None, ROOT),
    }
    found = {}
    for name, call in calls.items():
        stats = dist.group.WORLD.connection.stats
        call()
        after = dist.group.WORLD.connection.stats
        found[name] = after.reduces - stats.reduces
        assert after.packets_up - stats.packets_up <= 2 + after.retransmissions + after.probes, (rank, name)
    return found


def test_collectives_of_a_few_values_take_one_round_trip(world: World) -> None:
    for found in world.run(round_trips):
        assert set(found.values()) == {1}, found


@pytest.mark.parametrize(
    "collective",
    [
        "all_reduce",
        "reduce",
        "reduce_scatter",
        "broadcast",
        "all_gather",
        "gather",
        "scatter",
        "all_to_all",
        "barrier",
    ],
)
def test_ranks_send_and_receive_what_the_page_says(world: World, collective: str) -> None:
    """Within 5 % of it plus the headers of all packets."""
    expected = formulas(collective)
    for rank, (*ways, repeated) in enumerate(world.run(counted, collective)):
        for (size, packets), formula in zip(ways, expected, strict=True):
            wanted = 4 * lanes(formula[-1 if rank == ROOT else 0])
            excess = size - HEADERS * packets - wanted
            slack = 0.05 * wanted + 1100 * repeated  # a busy machine's repetitions
            assert -0.05 * wanted - MORE_COLUMNS <= excess <= slack + MORE_COLUMNS * packets / 16 + 1024
