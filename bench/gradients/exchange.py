# SPDX-License-Identifier: Apache-2.0
"""The gradient exchange of Weir's hook alone, with buckets as DDP makes them and random gradients."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

import weir.torch
from weir.bench.case import Run, parameter
from weir.bench.rank import Place
from weir.bench.ranks import in_memory, run_ranks
from weir.bench.results import Column, Row, Table
from weir.bench.training.gpt import DEVICES
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.torch.staging import devices_of
from weir.report.words import byte_count, duration
from weir.train.models.gpt import SHAPES, Gpt

_FIRST_BYTES: Final = 1024**2  # of DDP's first bucket; the others have _BUCKET_BYTES at least
_BUCKET_BYTES: Final = 25 * 1024**2
_SHIFT: Final = 1009  # elements by which gradients move from step to step


@dataclass(frozen=True)
class Parameters:
    """Gradients, and who exchanges them."""

    device: str = parameter("cuda", "cuda, or cpu", choices=DEVICES)
    model: str = parameter("gpt2", "whose gradients have their shapes", choices=SHAPES)
    workers: int = parameter(4, "ranks that share the device", least=1, most=32)
    sparsifiers: tuple[str, ...] = parameter(("dense", "dfs", "topk-block", "exdyna"), "methods")
    density: float = parameter(0.01, "share of the values to send", above=0, most=1)
    warmup: int = parameter(2, "steps before those that count", least=0)
    limit: float = parameter(300.0, "after which the measurement fails", unit="s", least=1)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Measure every sparsifier, over the switch and in the host's memory."""
    with in_memory(parameters.workers) as links:
        ranks = run_ranks(exchanges, (parameters, run.repeats), links, parameters.device, parameters.limit)
    rows = []
    for name in ranks[0]:
        slowest = [max(each) for each in zip(*(rank[name]["step"] for rank in ranks), strict=True)]
        rows.append(Row(name, {**ranks[0][name], "step": slowest}, {"device": parameters.device}))
    yield Table(
        f"Exchange of {parameters.model}'s gradients by Weir's hook, {parameters.workers} ranks",
        (
            Column("step", duration, "of the slowest rank"),
            *(Column(name, duration, "of the last step, rank 0") for name in ("choice", "sum", "hook")),
            *(Column(name, byte_count, "of a rank and step") for name in ("up", "down")),
            *(Column(name, lambda n: f"{n:,.0f}") for name in ("sent", "union")),
        ),
        tuple(rows),
        peers=("dense",),
        notes=("sent, union: elements that rank 0 and that all ranks chose; random gradients, one machine",),
    )


def exchanges(place: Place, spec: tuple[Parameters, int]) -> dict[str, dict[str, Any]]:
    """Return what every sparsifier takes, by name; "local": ranks reduce in the host's memory."""
    given, steps = spec
    return {
        f"{sparsifier}{' local' if local else ''}": _exchange_steps(place, given, steps, sparsifier, local)
        for sparsifier in given.sparsifiers
        for local in (False, True)
    }


def _exchange_steps(
    place: Place, given: Parameters, steps: int, sparsifier: str, local: bool
) -> dict[str, Any]:
    """Return the seconds of every step, and counts of the last one."""
    with torch.device("meta"):
        model: nn.Module = Gpt(SHAPES[given.model])
    model = model.to_empty(device=given.device)
    group = place.weir(local=local)
    state = weir.torch.HookState(model, process_group=group, sparsifier=sparsifier, density=given.density)
    layouts = list(buckets(list(model.named_parameters())))
    generator = torch.Generator(given.device).manual_seed(100 + place.rank)
    gradients = [torch.randn(layout.elements, generator=generator, device=given.device) for layout in layouts]
    seconds = []
    for step in range(given.warmup + steps):
        parts = [gradient.roll(_SHIFT * step) for gradient in gradients]
        began = place.begin()
        works = [
            group.submit(
                functools.partial(state.average_bucket, layout, part, layout is layouts[-1]),
                devices=devices_of(part),
            )
            for layout, part in zip(layouts, parts, strict=True)
        ]
        for work in works:
            work.wait()
        seconds.append(place.since(began))
    stats = state.last_step
    assert stats is not None
    return {
        "step": seconds[given.warmup :],
        "choice": stats.selection_seconds,
        "sum": stats.reduce_seconds,
        "hook": stats.seconds,
        "up": stats.bytes_up,
        "down": stats.bytes_down,
        "sent": stats.sent_elements,
        "union": stats.union_elements,
    }


def buckets(named: Sequence[tuple[str, nn.Parameter]]) -> Iterator[BucketLayout]:
    """Yield the layouts of DDP's buckets: from the last parameter to the first, the first bucket small."""
    index, names, parameters, size = 0, list[str](), list[nn.Parameter](), 0
    for name, one in reversed(named):
        names.append(name)
        parameters.append(one)
        size += 4 * one.numel()
        if size >= (_BUCKET_BYTES if index else _FIRST_BYTES):
            yield BucketLayout.of(index, names, parameters, SCALE_BLOCK)
            index, names, parameters, size = index + 1, [], [], 0
    if names:
        yield BucketLayout.of(index, names, parameters, SCALE_BLOCK)
