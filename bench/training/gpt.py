# SPDX-License-Identifier: Apache-2.0
"""Training of GPT-2 by DDP, its gradients summed in one of many ways: the same seed, the same text.

Its text are the modules of Python's own standard library.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn import functional

from weir.bench.case import ParameterError, Run, parameter
from weir.bench.peers import DDP_CONTENDERS, group_of, parallel
from weir.bench.rank import Place
from weir.bench.ranks import in_memory, run_ranks
from weir.bench.results import Column, Row, Table
from weir.report.words import byte_count, duration
from weir.train.data import pairs_of
from weir.train.models.gpt import SHAPES, Gpt, Shape
from weir.train.peers import DENSE_STEPS

DEVICES: Final = ("cuda", "cpu")
_RATE: Final = 6e-4
_LEAST_BYTES: Final = 4_000_000  # of text, unless the library has less


def parameter_count(shape: Shape) -> int:
    """Return how many parameters a model has."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Gpt(shape).parameters())


def read_tokens(vocabulary: int) -> torch.Tensor:
    """Return a text as int64 tokens, one for each two bytes, the same wherever the same Python runs."""
    text = bytearray()
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text += path.read_bytes()
        if len(text) >= _LEAST_BYTES:
            break
    return pairs_of(bytes(text), vocabulary)


def batches(tokens: torch.Tensor, rank: int, steps: int, batch: int, length: int) -> torch.Tensor:
    """Return a rank's batches: step, sequence, position + 1."""
    generator = torch.Generator().manual_seed(1 + rank)
    starts = torch.randint(len(tokens) - length, (steps, batch), generator=generator)
    return tokens[starts[..., None] + torch.arange(length + 1)]


@dataclass(frozen=True)
class Parameters:
    """The training, and who sums its gradients."""

    device: str = parameter("cuda", "cuda, or cpu to try it out", choices=DEVICES)
    model: str = parameter("gpt2", "the model", choices=("gpt2", "tiny"))
    workers: int = parameter(4, "ranks that share the device", least=1, most=32)
    contenders: tuple[str, ...] = parameter(tuple(DDP_CONTENDERS), "ways to sum", choices=DDP_CONTENDERS)
    batch: int = parameter(4, "sequences of a rank and step", least=1)
    length: int = parameter(512, "tokens of a sequence", least=1, most=1024)
    warmup: int = parameter(3, "steps before those that count", least=DENSE_STEPS)
    density: float = parameter(0.01, "of sparsifiers", above=0, most=1)
    limit: float = parameter(40.0, "after which a measurement fails", unit="s", least=1)

    def __post_init__(self) -> None:
        if self.length > SHAPES[self.model].context:
            raise ParameterError(f"length: {self.model} has {SHAPES[self.model].context} positions")


@dataclass(frozen=True)
class Steps:
    """Steps with one contender."""

    contender: str
    steps: int
    given: Parameters


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Train a few steps with every contender."""
    rows = []
    with in_memory(parameters.workers) as links:
        for name in parameters.contenders:
            words = DDP_CONTENDERS[name].words
            run.say(f"{words} ...")
            spec = Steps(name, run.repeats, parameters)
            ranks = run_ranks(train, spec, links, parameters.device, parameters.limit)
            slowest = [max(each) for each in zip(*(rank["step"] for rank in ranks), strict=True)]
            rows.append(Row(words, {**ranks[0], "step": slowest}))
    yield Table(
        f"Steps of {parameters.model}, {parameters.workers} ranks that share one {parameters.device} device",
        (
            Column("step", duration, "of the slowest rank"),
            Column("first loss", lambda n: f"{n:.4f}", "mean of all ranks, of a step that warms up"),
            Column("loss", lambda n: f"{n:.4f}", "of the last step"),
            Column("up", byte_count, "to the switch, of a rank and step"),
            Column("memory", byte_count, "of the device, of rank 0, at most"),
        ),
        tuple(rows),
        peers=(DDP_CONTENDERS["gloo"].words, DDP_CONTENDERS["alone"].words),
        notes=(
            f"batch {parameters.batch} x {parameters.length} tokens, bfloat16; density "
            f"{parameters.density:g}",
        ),
    )


def train(place: Place, spec: Steps) -> dict[str, Any]:
    """Return the seconds of every step that counts, losses, bytes and memory."""
    given, contender = spec.given, DDP_CONTENDERS[spec.contender]
    shape, count = SHAPES[given.model], given.warmup + spec.steps
    text = batches(read_tokens(shape.vocabulary), place.rank, count, given.batch, given.length)
    if given.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1)  # so that all ranks begin with the same parameters
    with torch.device(given.device):
        model = Gpt(shape)
    ddp = parallel(model, contender, place, given.density)
    optimizer = torch.optim.AdamW(
        model.parameters(), _RATE, (0.9, 0.95), weight_decay=0.1, fused=given.device == "cuda"
    )

    def sent() -> int:
        group = group_of(contender, place)
        return group.connection.stats.bytes_up if contender.group in ("weir", "local") else 0

    seconds, losses, before = list[float](), list[float](), 0
    for step in range(count):
        batch = text[step].to(given.device)
        if step == given.warmup:
            before = sent()
        began = place.begin()
        optimizer.zero_grad()
        with contextlib.nullcontext() if contender.group != "none" else ddp.no_sync():
            with torch.autocast(given.device, torch.bfloat16):
                scores = ddp(batch[:, :-1])
                loss = functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(place.since(began))
        losses.append(float(loss.detach()))
    mean = torch.tensor(losses)
    dist.all_reduce(mean)
    mean /= place.size
    return {
        "step": seconds[given.warmup :],
        "first loss": float(mean[0]),
        "loss": float(mean[-1]),
        "up": (sent() - before) / spec.steps,
        "memory": torch.cuda.max_memory_allocated() if given.device == "cuda" else None,
    }
