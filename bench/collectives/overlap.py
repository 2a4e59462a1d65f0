# SPDX-License-Identifier: Apache-2.0
"""Time of a step with LayersFirst, over slow links, beside DDP alone on them.

DDP sums its buckets while the backward pass runs, in the order in which they are ready; a third job sums all
after it. All are the same job: the same model from the same seed on the same links through the same switch,
in the same processes, taking turns. How much there is to gain depends on how long computing takes beside
summing: most where both take as long. So what computing alone takes stands beside it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from softp4.bench.contenders import take_turns
from weir.bench.case import Run, parameter
from weir.bench.rank import Place
from weir.bench.ranks import RATES, Links, check_rates, every_network, run_ranks
from weir.bench.results import Column, Row, Table, share
from weir.train.config import Model, make_config
from weir.train.data import share as share_of
from weir.train.task import make_task, mean_loss

_WHOLE: Final = 1e4  # MB: one bucket
AFTER: Final = "all summed after the backward pass"
DDP: Final = "DDP"
FIRST: Final = "LayersFirst"


@dataclass(frozen=True)
class Parameters:
    """The training and the links."""

    models: tuple[Model, ...] = parameter(("resnet18", "lm"), "Of weir train.", choices=("resnet18", "lm"))
    workers: int = parameter(2, "Number of workers.", least=2, most=32)
    rates: tuple[str, ...] = parameter(("200mbit",), RATES)
    batch: int = parameter(8, "Samples of a worker and step.", least=1)
    steps: int = parameter(5, "Steps in a repetition.", least=2)
    bucket: float = parameter(0.0, "Size of DDP's buckets; 0: DDP's own.", unit="MB", least=0)
    piece: int = parameter(512, "Size of LayersFirst's pieces.", unit="KiB", least=8)
    accelerator: tuple[float, ...] = parameter(
        (),
        "Let the passes of a step take so long, as on an accelerator, which leaves the processors to switch "
        "and transport; one for each model.",
        unit="ms",
        above=0,
    )

    def __post_init__(self) -> None:
        check_rates(self.rates)
        if self.accelerator and len(self.accelerator) != len(self.models):
            raise ValueError(f"accelerator: one for each of {', '.join(self.models)}")


@dataclass(frozen=True)
class Spec:
    """Steps that each rank is to time. accelerator: seconds of a step; 0: they take what they take here."""

    model: Model
    accelerator: float
    given: Parameters
    repeats: int


@dataclass(frozen=True)
class Turns:
    """Seconds of a step in each turn, by contender, and of a step without a network.

    overlapped, overtaken: forward passes that began before all was summed, and pieces that overtook others.
    """

    seconds: dict[str, list[float]]
    overlapped: int
    overtaken: int


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure each model on links of each rate."""
    rows: list[Row] = []
    for links in every_network(given.workers, given.rates, run.say, () if given.rates else (1,)):
        for model, milliseconds in zip_longest(given.models, given.accelerator, fillvalue=0.0):
            assert isinstance(model, str) and isinstance(milliseconds, float)
            run.say(f"{model} over {links.name} ...")
            spec = Spec(model, milliseconds / 1000, given, run.repeats)
            rows += rows_of(run_ranks(measure, spec, links), spec, links)
    yield Table(
        f"A step with LayersFirst and with DDP alone, {given.workers} workers",
        (
            Column(
                "ms", note="of a step, of several from a common start to the last one's end; slowest rank's"
            ),
            Column("saved of DDP", share, "of a step's time, in turns that follow each other"),
            Column("saved of after", share, f"the same, of {AFTER}"),
        ),
        tuple(rows),
        peers=(DDP,),
        floor="computing",
        notes=(
            "DDP and LayersFirst end with the same parameters, bit for bit",
            "computing: forward and backward pass without a network, as a share of the step"
            + ("; they wait as long as an accelerator would compute" if given.accelerator else ""),
            "overlapped: share of forward passes that began before all was summed; passed: pieces in a step "
            "that were summed before others that were issued earlier",
        ),
    )


def rows_of(ranks: Sequence[Turns], spec: Spec, links: Links) -> Iterator[Row]:
    """Return the rows of one model: the slowest rank's time of every turn."""
    milliseconds = {
        name: [1e3 * max(times) for times in zip(*(rank.seconds[name] for rank in ranks), strict=True)]
        for name in ranks[0].seconds
    }
    floor = median(milliseconds.pop("compute"))
    accelerator = f"accelerator {1000 * spec.accelerator:g} ms" if spec.accelerator else ""
    setting = {"model": spec.model, "links": links.name, "accelerator": accelerator}
    steps = spec.given.steps * (spec.repeats + 1)
    counts = {"overlapped": ranks[0].overlapped / steps, "passed": ranks[0].overtaken / steps}

    def saved(than: str) -> list[float]:
        return [1 - one / other for one, other in zip(milliseconds[FIRST], milliseconds[than], strict=True)]

    for name, times in milliseconds.items():
        if name == FIRST:
            values = {"ms": times, "saved of DDP": saved(DDP), "saved of after": saved(AFTER)}
            yield Row(name, values, setting, twin=DDP, counts=counts, floor=floor)
        else:
            yield Row(name, {"ms": times}, setting, floor=floor)


def measure(place: Place, spec: Spec) -> Turns:
    """Time the steps on one rank.

    Raises:
        AssertionError: parameters are not those of DDP alone, bit for bit.
    """
    bucket = spec.given.bucket or None
    after, alone = Trained(place, spec, False, _WHOLE), Trained(place, spec, False, bucket)
    first = Trained(place, spec, True, bucket)
    contenders: dict[str, Callable[[], float]] = {
        AFTER: partial(after.turn, spec),
        DDP: partial(alone.turn, spec),
        FIRST: partial(first.turn, spec),
        "compute": alone.compute,
    }
    seconds = take_turns(contenders, spec.repeats)
    both = zip(alone.ddp.parameters(), first.ddp.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in both), "parameters differ from those of DDP alone"
    assert first.layers is not None
    return Turns(seconds, first.layers.overlapped, first.layers.overtaken)


class Trained:
    """One of several equal models, with its optimizer; with LayersFirst or without.

    bucket: of DDP, in MB; None: its own choice.
    """

    def __init__(self, place: Place, spec: Spec, first: bool, bucket: float | None) -> None:
        config = make_config(model=spec.model, workers=place.size, batch_size=spec.given.batch)
        self.task = make_task(config)
        self.ddp = DistributedDataParallel(
            self.task.model, process_group=place.weir(), forward_sync_buffers=False, bucket_cap_mb=bucket
        )
        if spec.accelerator:
            inputs = self.task.data.train.inputs[: spec.given.batch]
            wait_as_for_a_device(self.task.model, inputs, spec.accelerator)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.01, momentum=0.9)
        piece = 256 * spec.given.piece  # lanes
        self.layers = weir.torch.LayersFirst(self.ddp, self.optimizer, piece=piece) if first else None
        self.batches = share_of(len(self.task.data.train), place.rank, place.size, spec.given.batch, 0, 1)
        self.done = 0

    def turn(self, spec: Spec) -> float:
        """Return the seconds that a step takes, from a common start to the last step's end."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(spec.given.steps):
            self._step(self.ddp)
        if self.layers is not None:
            self.layers.finish()
        return (time.perf_counter() - start) / spec.given.steps

    def compute(self) -> float:
        """Return the seconds of a step's forward and backward pass alone."""
        start = time.perf_counter()
        with self.ddp.no_sync():
            self._loss(self.ddp).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()
        return time.perf_counter() - start

    def _step(self, model: torch.nn.Module) -> None:
        self.optimizer.zero_grad()
        self._loss(model).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.done += 1

    def _loss(self, model: torch.nn.Module) -> torch.Tensor:
        batch = self.batches[self.done % len(self.batches)]
        split = self.task.data.train
        return mean_loss(model(split.inputs[batch]), split.targets[batch])


def wait_as_for_a_device(model: torch.nn.Module, inputs: torch.Tensor, seconds: float) -> None:
    """Make each layer's passes wait as long as an accelerator would compute, which leaves the processor free.

    A layer's share of the time is that of its multiplications; backward takes twice as long as forward.
    """
    work: dict[torch.nn.Module, float] = {}

    def measure(layer: torch.nn.Module, _inputs: Any, output: Any) -> None:
        values = output if isinstance(output, torch.Tensor) else output[0]
        positions = values.numel() / values.shape[1 if isinstance(layer, torch.nn.Conv2d) else -1]
        work[layer] = positions * sum(one.numel() for one in layer.parameters(recurse=False))

    kinds = (torch.nn.Conv2d, torch.nn.Linear, torch.nn.LSTM)
    layers = [layer for layer in model.modules() if isinstance(layer, kinds)]
    handles = [layer.register_forward_hook(measure) for layer in layers]
    with torch.no_grad():
        model.eval()(inputs)
    model.train()
    for handle in handles:
        handle.remove()
    unit = seconds / 3 / sum(work.values())
    for layer in layers:
        layer.register_forward_hook(partial(_wait, unit * work[layer]))
        layer.register_full_backward_hook(partial(_wait, 2 * unit * work[layer]))


def _wait(seconds: float, *_: Any) -> None:
    time.sleep(seconds)
