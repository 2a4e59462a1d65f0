# SPDX-License-Identifier: Apache-2.0
"""``weir bench overlap``: what a step takes with LayersFirst, over slow links, beside DDP alone on them.

DDP sums its buckets while the backward pass runs, in the order in which they are ready; a third job sums all
after it. All are the same job: the same model from the same seed on the same links through the same switch,
in the same processes, taking turns. How much there is to gain depends on how long computing takes beside
summing: most where both take as long. So the share of the step that computing alone takes stands beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console

from weir.bench.overlap_worker import OverlapSpec, Turns
from weir.bench.ranks import run_ranks
from weir.bench.table import show, spread
from weir.netns.cluster import network_cluster
from weir.netns.namespace import NamespaceError, gain_root

console = Console(stderr=True)


class NothingOverlappedError(RuntimeError):
    """No forward pass began before all was summed, or nothing passed what was in its way: a mechanism did
    nothing.
    """


@dataclass(frozen=True)
class Measured:
    """One model on links of one rate; of every turn the slowest rank's times."""

    spec: OverlapSpec
    rate: str
    turns: Turns

    def saved(self, than: Sequence[float]) -> float:
        """Return the share of a step's time that LayersFirst saves: the median of turns that follow each
        other.
        """
        return median(1 - first / other for other, first in zip(than, self.turns.first, strict=True))


def run(specs: Sequence[OverlapSpec], workers: int, rates: Sequence[str]) -> None:
    """Measure and print all; NamespaceError where there are no network namespaces to be had."""
    if (reason := gain_root()) is not None:
        raise NamespaceError(f"links cannot be shaped here: {reason}")
    results = []
    for rate in rates:
        for spec in specs:
            console.print(f"{spec.model} over {rate} ...")
            results.append(measure(spec, workers, rate))
    _print(results, workers)


def measure(spec: OverlapSpec, workers: int, rate: str) -> Measured:
    """Return one model's figures on links of a rate.

    Raises:
        NothingOverlappedError: see there.
        AssertionError: parameters are not those of DDP alone, bit for bit.
    """
    with network_cluster(workers, rate=rate) as cluster:

        def start(rank: int) -> tuple[list[str], dict[str, str]]:
            return cluster.lab.at_host(rank), {**cluster.environment(rank), **cluster.lab.environment()}

        ranks = [Turns(**one) for one in run_ranks("weir.bench.overlap_worker", spec.json(), workers, start)]
    return judged(spec, rate, ranks)


def judged(spec: OverlapSpec, rate: str, ranks: Sequence[Turns]) -> Measured:
    """Return what all ranks measured, or raise as ``measure`` does."""
    if not all(one.same for one in ranks):
        raise AssertionError(f"{spec.model}: parameters differ from those of DDP alone")
    if not ranks[0].overlapped:
        raise NothingOverlappedError(
            f"{spec.model} over {rate}: every forward pass began when all was summed"
        )
    if not ranks[0].overtaken:
        raise NothingOverlappedError(
            f"{spec.model} over {rate}: no piece of a front layer was summed before others issued earlier"
        )
    return Measured(spec, rate, _slowest(ranks))


def _slowest(ranks: Sequence[Turns]) -> Turns:
    """Return the slowest rank's time of every turn."""

    def most(lists: Sequence[Sequence[float]]) -> list[float]:
        return [max(times) for times in zip(*lists, strict=True)]

    return Turns(
        most([one.after for one in ranks]),
        most([one.alone for one in ranks]),
        most([one.first for one in ranks]),
        most([one.compute for one in ranks]),
        ranks[0].overlapped,
        ranks[0].overtaken,
        True,
    )


def _print(results: Sequence[Measured], workers: int) -> None:
    show(
        f"A step with LayersFirst and with DDP alone, {workers} workers",
        (
            "",
            "after",
            "DDP",
            "LayersFirst",
            "saved of after",
            "saved of DDP",
            "computing",
            "overlapped",
            "passed",
        ),
        [
            (
                f"{one.spec.model}, {one.rate}"
                + (f", accelerator {1000 * one.spec.device:g} ms" if one.spec.device else ""),
                *(
                    f"{1000 * median(times):,.0f} ms {spread(times)}"
                    for times in (one.turns.after, one.turns.alone, one.turns.first)
                ),
                f"{one.saved(one.turns.after):.1%}",
                f"{one.saved(one.turns.alone):.1%}",
                f"{median(one.turns.compute) / median(one.turns.alone):.0%}",
                f"{one.turns.overlapped / (one.spec.steps * (one.spec.repeats + 1)):.0%}",
                f"{one.turns.overtaken / (one.spec.steps * (one.spec.repeats + 1)):.1f}",
            )
            for one in results
        ],
        [
            "medians of turns, each of several steps, from a common start until the last one is made; the "
            "slowest rank's; DDP and LayersFirst end with the same parameters, bit for bit",
            "after: all is summed after the backward pass",
            "saved: of a step's time, median of turns that follow one another",
            "computing: forward and backward pass without a network, as a share of DDP's step",
            *(
                ["accelerator: passes wait as long as one would compute, and leave the processors free"]
                if any(one.spec.device for one in results)
                else []
            ),
            "overlapped: forward passes that began before all was summed",
            "passed: pieces in a step that were summed before others that were issued earlier",
        ],
    )
