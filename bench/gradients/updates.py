# SPDX-License-Identifier: Apache-2.0
"""A step of compressed updates as a share of the backward pass of the same model.

In processor time, on one thread. Only what one worker computes is timed: nothing is sent, and every sum that
it waits for is at once what it has put in itself. The first step, in which all of the mean gradient is
sampled, does not count.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from weir.bench.case import ParameterError, Run, parameter
from weir.bench.results import Column, Row, Table, share
from weir.host_agent.collectives.communicator import Audience, Communicator
from weir.host_agent.collectives.dtypes import Lanes
from weir.host_agent.compression.updates.layout import UpdateLayout
from weir.host_agent.compression.updates.rules import OPTIONS, RuleName
from weir.host_agent.compression.updates.stage import UpdateSettings, UpdateStage
from weir.host_agent.transport.report import NOTHING, ReduceReport, none_returned
from weir.host_agent.transport.service_class import LOSSLESS, ServiceClass
from weir.train.models.gpt import SHAPES, Gpt
from weir.wire.definition import SLOT_LANES, Op

_WARM: Final = 2
_NONE: Final = np.empty(0, np.uint64)
_OPTIONS: Final = {
    "lr": 1e-4,
    "momentum": 0.9,
    "dampening": 0.0,
    "nesterov": 0.0,
    "weight_decay": 0.01,
    "beta1": 0.9,
    "beta2": 0.999,
    "eps": 1e-8,
    "decoupled": 1.0,
}
_STEPS: Final[dict[str, tuple[RuleName, UpdateSettings]]] = {
    "compress, AdamW": ("adam", UpdateSettings(sample_whole_steps=1)),
    "compress, AdamW, mean clipped": ("adam", UpdateSettings(sample_whole_steps=1, clip_norm=1.0)),
    "compress, AdamW, a third in turn": ("adam", UpdateSettings(sample_whole_steps=1, share=0.32)),
    "compress, SGD with momentum": ("sgd", UpdateSettings()),
}


class Unsent(Communicator):
    """A worker of a group who gets its own lanes back."""

    def reduce_lanes(
        self,
        lanes: Lanes,
        op: Op,
        block: int = SLOT_LANES,
        service: ServiceClass = LOSSLESS,
        audience: Audience | None = None,
    ) -> ReduceReport:
        """Leave ``lanes`` as they are."""
        self.exchanged = True
        return ReduceReport(
            op=op,
            lanes=lanes.size,
            block=block,
            window=0,
            refused={},
            entered=NOTHING,
            included=NOTHING,
            returned=NOTHING,
            applied=NOTHING,
            given_back=none_returned(block),
            missing=_NONE,
            budgets=_NONE,
        )


@dataclass(frozen=True)
class Parameters:
    """The model and its batch."""

    model: str = parameter("gpt2", "that is trained", choices=SHAPES)
    batch: int = parameter(8, "sequences", least=1)
    length: int = parameter(128, "tokens of a sequence", least=1)
    workers: int = parameter(4, "of whom one is timed", least=1, most=64)

    def __post_init__(self) -> None:
        if self.length > SHAPES[self.model].context:
            raise ParameterError(f"length: {self.model} has {SHAPES[self.model].context} positions")


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Measure the backward pass, the optimizers that torch has, and compressed steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield _measured(parameters, run)
    finally:
        torch.set_num_threads(threads)


def _measured(parameters: Parameters, run: Run) -> Table:
    model = Gpt(SHAPES[parameters.model])
    weights = list(model.parameters())
    seconds = {"backward pass": _backward(model, parameters, run.repeats)}
    peers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "torch's AdamW": lambda: torch.optim.AdamW(weights),
        "torch's SGD with momentum": lambda: torch.optim.SGD(weights, momentum=0.9),
    }
    for words, make in peers.items():
        seconds[words] = _times(make().step, run.repeats)
    for words, (rule, settings) in _STEPS.items():
        seconds[words] = _times(_step(weights, rule, settings, parameters.workers), run.repeats)
    count, backward = sum(one.numel() for one in weights), median(seconds["backward pass"])
    return Table(
        f"Own time of compressed updates, {parameters.model} ({count / 1e6:.1f} million parameters)",
        (
            Column("ms", lambda n: f"{n:.1f}"),
            Column("ns a parameter", lambda n: f"{n:.2f}"),
            Column("of backward", share),
        ),
        tuple(
            Row(
                words,
                {
                    "ms": [1e3 * each for each in found],
                    "ns a parameter": 1e9 * median(found) / count,
                    "of backward": median(found) / backward,
                },
            )
            for words, found in seconds.items()
        ),
        notes=(
            f"one of {parameters.workers} workers; batch {parameters.batch} x {parameters.length}, float32; "
            "one thread, processor time",
        ),
    )


def _times(call: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of a call, after some that do not count."""
    found = []
    for _ in range(_WARM + repeats):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return found[_WARM:]


def _backward(model: Gpt, parameters: Parameters, repeats: int) -> list[float]:
    """Return the seconds of backward passes, of random tokens; the last one's gradients stay."""
    size = (parameters.batch, parameters.length + 1)
    text = torch.randint(SHAPES[parameters.model].vocabulary, size)
    found = []
    for _ in range(_WARM + repeats):
        model.zero_grad()
        loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        began = time.process_time()
        loss.backward()  # type: ignore[no-untyped-call]
        found.append(time.process_time() - began)
    return found[_WARM:]


def _step(
    parameters: list[torch.nn.Parameter], rule: RuleName, settings: UpdateSettings, workers: int
) -> Callable[[], None]:
    """Return a compressed step of one worker."""
    weights = [one.detach() for one in parameters]
    layout = UpdateLayout([str(index) for index in range(len(weights))], [one.shape for one in weights])
    stage = UpdateStage(layout, settings, rule, workers)
    stage.begin_from(weights)
    options = {
        name: torch.full((len(weights),), _OPTIONS[name], dtype=torch.float64) for name in OPTIONS[rule]
    }
    communicator, gradients = Unsent(0, workers), [one.grad for one in parameters]
    return lambda: stage.step(communicator, weights, gradients, options)
