# SPDX-License-Identifier: Apache-2.0
"""``weir bench gpu``: sums of gradients on a GPU, over Weir and over Gloo; all ranks share the card."""

import math
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

from weir.bench.gpu_allreduce import CONTENDERS, AllreduceItem
from weir.bench.gpu_copy import CopyItem
from weir.bench.gpu_exchange import SPARSIFIERS, ExchangeItem
from weir.bench.gpu_place import Item
from weir.bench.gpu_ranks import outcomes
from weir.bench.gpu_tables import Row, brief, complete, report, rows_of
from weir.bench.gpu_train import WAYS, TrainItem
from weir.bench.table import command_line
from weir.train.folder import write_json

CASES: Final = ("copy", "allreduce", "exchange", "train")
_LEAST_THREADED: Final = 1_000_000  # elements: smaller sums do not fill one thread of the switch
console = Console(stderr=True)


@dataclass(frozen=True)
class Plan:
    """The measurements to be made.

    Attributes:
        cases: of ``CASES``.
        device: "cuda" or "cpu".
        workers: ranks, which share the device.
        elements: lengths of the tensors of all-reduces.
        repeats: of copies and all-reduces. seconds: that a contender's all-reduces of one size may take.
        threads: of the switch; with one thread, everything is measured, with others, large all-reduces.
        reference: all-reduces and exchanges of tensors in host memory are measured, too, the latter over the
            switch alone.
        model: of the exchanges and of the training, see ``gpu_model.SHAPES``.
        batch, length: of the training: sequences of a rank and step, and their tokens.
        steps, warmup: of the training, and of exchanges: as many, 5 and 2 at most.
        density: of sparsifiers.
        ways: of the training, see ``gpu_train.WAYS``.
        limit_s: that a single measurement may take.
        copy_bytes: of a copy.
    """

    cases: tuple[str, ...] = CASES
    device: str = "cuda"
    workers: int = 4
    elements: tuple[int, ...] = (16_000, 250_000, 1_000_000, 4_000_000, 11_500_000, 64_000_000)
    repeats: int = 7
    seconds: float = 1.0
    threads: tuple[int, ...] = (1, 2, 4)
    reference: bool = True
    model: str = "gpt2"
    batch: int = 4
    length: int = 512
    steps: int = 10
    warmup: int = 3
    density: float = 0.01
    ways: tuple[str, ...] = tuple(WAYS)
    limit_s: float = 40.0
    copy_bytes: int = 256_000_000

    def items(self, threads: int) -> list[Item]:
        """Return the measurements over a switch of this many threads, those in host memory last."""
        if threads > 1:
            least = min(_LEAST_THREADED, max(self.elements))
            sizes = [size for size in self.elements if size >= least and "allreduce" in self.cases]
            return [self._sum(self.device, size, ("gloo", "weir"), threads) for size in sizes]
        found = [item for case in self.cases for item in self._items(case, self.device)]
        if self.reference and self.device != "cpu":
            cases = (case for case in self.cases if case in ("allreduce", "exchange"))
            found += (item for case in cases for item in self._items(case, "cpu"))
        return found

    def _items(self, case: str, device: str) -> Iterator[Item]:
        """Yield the measurements of one case, over a switch of one thread."""
        if case == "copy":
            for together in (False, True):
                yield CopyItem(device, together, self.copy_bytes, self.repeats)
        elif case == "allreduce":
            for size in self.elements:
                yield self._sum(device, size, tuple(CONTENDERS), 1)
        elif case == "exchange":
            steps, warmup = min(self.steps, 5), min(self.warmup, 2)
            for sparsifier in SPARSIFIERS:
                for local in (False, True) if device == self.device else (False,):
                    yield ExchangeItem(device, sparsifier, self.density, self.model, steps, warmup, local)
        else:
            extent = (self.batch, self.length, self.steps, self.warmup)
            for way in self.ways:
                yield TrainItem(device, way, self.model, *extent, self.density)

    def _sum(self, device: str, elements: int, contenders: tuple[str, ...], threads: int) -> AllreduceItem:
        return AllreduceItem(device, elements, contenders, self.repeats, self.seconds, threads)


def run(plan: Plan, out: Path) -> list[Row]:
    """Measure, print and write; the file has all rows that there are, after each measurement.

    Returns:
        the rows.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    began = time.monotonic()
    for threads in sorted(plan.threads):
        items = plan.items(threads)
        last = {(item.case, item.device): item for item in items}
        section: list[Row] = []
        for outcome in outcomes(items, plan.workers, threads, plan.limit_s):
            ended = {"threads": threads, "ended_s": time.monotonic() - began, "command": command_line()}
            section += ({**row, **ended} for row in rows_of(outcome))
            complete(rows + section)
            for row in section[-len(rows_of(outcome)) :]:
                console.print(f"{row['ended_s']:4.0f} s  {brief(row)}", highlight=False, markup=False)
            _write(rows + section, plan, out)
            if outcome.item is last[outcome.item.case, outcome.item.device]:
                report(outcome.item.case, section)
                rows, section = rows + section, []
    Console().print(f"written: {out}", style="dim", highlight=False)
    return rows


def _write(rows: Sequence[Row], plan: Plan, out: Path) -> None:
    cuda = plan.device == "cuda"
    machine = {
        "device": torch.cuda.get_device_name() if cuda else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "workers": plan.workers,
    }
    write_json(out, _finite({"command": command_line(), "machine": machine, "results": rows}))


def _finite(value: Any) -> Any:
    """Return a value with None in place of the numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
