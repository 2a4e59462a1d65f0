# SPDX-License-Identifier: Apache-2.0
"""Weir against Gloo: the same tensors in the same processes, taking turns; MPI in processes of its own.

Over shared memory, where Gloo talks TCP over loopback; over shaped links, where it has a kernel bridge; and
with tensors on a GPU that all ranks share. Every sum is compared with Gloo's.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import Final

import torch
import torch.distributed as dist

from weir.bench.case import Run, UnavailableError
from weir.bench.collectives import mpi
from weir.bench.collectives.copy import Copies
from weir.bench.collectives.samples import BLOCK, Parameters, Sample, Spec, tensor
from weir.bench.peers import CONTENDERS, Contender, all_reduce
from weir.bench.rank import Place
from weir.bench.ranks import BRIDGED, Links, every_network, least_seconds, run_ranks
from weir.bench.results import Column, Row, Table
from weir.host_agent.collectives.packing import lane_format
from weir.network import parse_shape
from weir.process.child import ChildError
from weir.process.processor import ProcessorTime
from weir.train.wirebytes import TCP_PAYLOAD, WEIR_PAYLOAD

_LARGEST: Final = 6.7  # of 2^34 normal numbers, about
_LEAST_REPEATS: Final = 3
_FRAME: Final = 1514
_COMPARED: Final = 1 << 24  # values at a time: a comparison takes several times their memory


@dataclass(frozen=True)
class Measured:
    """Results of a rank: samples by density and contender, and seconds of copies, if it has a GPU."""

    samples: dict[float, dict[str, list[Sample]]]
    copies: list[float]


def run(given: Parameters, run: Run) -> Iterator[Table]:
    """Measure every size on every network."""
    if "cuda" in given.devices and not torch.cuda.is_available():
        raise UnavailableError(
            "devices: torch finds no cuda here; devices=cpu tries the case out without one"
        )
    rows: list[Row] = []
    failed: list[str] = []
    shape = parse_shape(given.topology)
    threads = given.threads if shape.single else ()
    for links in every_network(given.workers, given.rates, run.say, threads, ip=given.ip, shape=shape):
        for device, size in product(given.devices, given.megabytes):
            run.say(f"{links.name}, {size:g} MB, {device} ...")
            spec = Spec(round(size * 1e6 / 4), given, run.repeats, links.switches)
            try:
                rows += _rows(run_ranks(measure, spec, links, device, given.limit), spec, links, device)
                rows += _mpi_rows(spec, links, device, run)
            except ChildError as error:
                failed.append(f"{links.name}, {size:g} MB, {device}: {error}")
                run.say(failed[-1])
    yield _table(rows, given)
    if failed:
        raise ChildError("\n".join(failed))


def _table(rows: Sequence[Row], given: Parameters) -> Table:
    processor = "processor seconds for each GB of the tensor, of"
    found = {row.contender for row in rows}
    return Table(
        f"All-reduce of float32, {given.workers} workers",
        (
            Column("ms", note="the slowest rank's, from a common start until the sum is where the tensor is"),
            Column("GB/s", note="of one rank's tensor"),
            Column("worker", "{:.1f}".format, f"{processor} one rank"),
            Column("switch", "{:.1f}".format, f"{processor} the switch"),
            Column(
                "machine",
                "{:.1f}".format,
                f"{processor} all that ran: other load, too, and softirqs that no process paid for",
            ),
        ),
        tuple(rows),
        peers=tuple(each.words for each in CONTENDERS.values() if each.peer and each.words in found),
        floor="of the least",
        notes=(
            "every sum was compared with Gloo's, MPI's with one that each rank makes itself",
            "Weir 16, Weir 8: values of this many bits, precision.md",
            BRIDGED,
            "of the least: the least time over the time; over links, what their payload rate allows: the "
            "rate without the headers of full packets, from Ethernet up "
            f"({TCP_PAYLOAD:.1%} of it for TCP, {WEIR_PAYLOAD:.1%} for Weir); on a GPU, copies of the tensor "
            "in both directions at once, by all ranks",
        ),
    )


def _rows(ranks: Sequence[Measured], spec: Spec, links: Links, device: str) -> Iterator[Row]:
    copies = [max(together) for together in zip(*(rank.copies for rank in ranks), strict=True)]
    for density, contenders in ranks[0].samples.items():
        setting = _setting(spec, links, device, density)
        for name in contenders:
            floor = median(copies) if copies else least_of(CONTENDERS[name], spec.elements, links, density)
            samples = [rank.samples[density][name] for rank in ranks]
            made = row(name, samples, spec.elements, setting, floor)
            yield replace(made, counts=_batches(links)) if name == "gloo" else made


def _batches(links: Links) -> dict[str, float]:
    """Return how many frames Gloo's link has carried at a time; 0 without segmentation offloads."""
    return {} if links.gloo_frame is None else {"frames at a time": links.gloo_frame() // _FRAME}


def _setting(spec: Spec, links: Links, device: str, density: float) -> dict[str, str]:
    return {
        "links": links.name,
        "device": "" if device == "cpu" else device,
        "size": f"{4 * spec.elements / 1e6:g} MB" if len(spec.given.megabytes) > 1 else "",
        "density": f"{density:.0%}",
    }


def _mpi_rows(spec: Spec, links: Links, device: str, run: Run) -> Iterator[Row]:
    """Yield the rows of Open MPI and MPICH, or say why there are none."""
    for name in spec.given.contenders:
        if name not in mpi.LIBRARIES:
            continue
        reason = "tensors on a GPU" if device == "cuda" else mpi.why_not(name)
        if reason:
            run.say(f"{links.name}: {CONTENDERS[name].words} not measured: {reason}")
            continue
        ranks = mpi.measure(name, spec, links, spec.given.limit)
        for density in spec.given.densities:
            samples = [rank[density] for rank in ranks]
            floor = least_of(CONTENDERS[name], spec.elements, links, density)
            yield row(name, samples, spec.elements, _setting(spec, links, device, density), floor)


def row(
    name: str, ranks: Sequence[Sequence[Sample]], elements: int, setting: dict[str, str], floor: float | None
) -> Row:
    """Return a contender's figures: the slowest rank's times, the ranks' mean processor time, and what the
    first one saw of the rest.
    """
    together = list(zip(*ranks, strict=True))
    seconds = [max(sample.seconds for sample in each) for each in together]
    gigabytes = 4 * elements / 1e9
    return Row(
        CONTENDERS[name].words,
        {
            "ms": [1e3 * each for each in seconds],
            "GB/s": [gigabytes / each for each in seconds],
            "worker": [sum(one.worker for one in each) / len(ranks) / gigabytes for each in together],
            "switch": [each[0].switch / gigabytes for each in together],
            "machine": [each[0].machine / gigabytes for each in together],
        },
        setting,
        floor=None if floor is None else 1e3 * floor,
    )


def least_of(contender: Contender, elements: int, links: Links, density: float) -> float | None:
    """Return the least time that the line allows; None without a line, or where not all values travel.

    Gloo and MPI do not look at the values, so all of them travel; packed lanes carry several values each.
    """
    ring = contender.peer
    if links.rate is None or (density < 1 and not ring):
        return None
    lanes = 1.0 if ring else lane_format(contender.lane_bits, 0.0, links.workers).lanes(BLOCK) / BLOCK
    return least_seconds(elements * lanes, links.workers, links.rate, ring=ring)


def measure(place: Place, spec: Spec) -> Measured:
    """Time the all-reduces on one rank."""
    for name in _in_turn(spec):  # which makes the groups
        all_reduce(torch.ones(1024, device=place.device), CONTENDERS[name], place)
    samples = {density: _turns(place, spec, density) for density in spec.given.densities}
    copies: list[float] = []
    if place.device == "cuda":
        both = Copies(place.device, 4 * spec.elements)
        for repeat in range(spec.repeats + 1):
            began = place.begin()
            both.run("both")
            if repeat:  # the first one warms up
                copies.append(place.since(began))
    return Measured(samples, copies)


def _turns(place: Place, spec: Spec, density: float) -> dict[str, list[Sample]]:
    """Return samples by contender; of one that is slow, fewer."""
    names = ["gloo", *(name for name in _in_turn(spec) if name != "gloo")]
    taken: dict[str, list[Sample]] = {name: [] for name in names}
    wanted = dict.fromkeys(names, spec.repeats)
    for turn in range(spec.repeats + 1):
        if turn > max(wanted.values()):
            break
        peer = torch.empty(0)
        for name in names:
            if turn > wanted[name] and name != "gloo":  # whose sum the others are compared with
                continue
            # made again each time, so that a large tensor exists twice and not three times
            data = tensor(spec, density, place.rank).to(place.device)
            sample = _timed(data, CONTENDERS[name], place, spec.switches)
            if turn == 0 and spec.given.seconds:
                fit = int(spec.given.seconds / place.most(sample.seconds))
                wanted[name] = min(spec.repeats, max(_LEAST_REPEATS, fit))
            elif 0 < turn <= wanted[name]:  # the first one warms up
                taken[name].append(sample)
            if name == "gloo":
                peer = data
            else:
                check(data, peer, CONTENDERS[name], place.size)
    return {name: taken[name] for name in _in_turn(spec)}


def _in_turn(spec: Spec) -> list[str]:
    """Return the contenders that alternate in the same processes: all but MPI."""
    return [name for name in spec.given.contenders if name not in mpi.LIBRARIES]


def _timed(data: torch.Tensor, contender: Contender, place: Place, switches: tuple[int, ...]) -> Sample:
    """Measure one all-reduce of the tensor, in place."""
    place.begin()
    before, began = ProcessorTime.now(switches), time.perf_counter()
    all_reduce(data, contender, place)
    seconds = place.since(began)
    worker = (ProcessorTime.now() - before).own
    dist.barrier()
    used = ProcessorTime.now(switches) - before
    return Sample(seconds, worker, used.others, used.machine)


def check(ours: torch.Tensor, theirs: torch.Tensor, contender: Contender, workers: int) -> None:
    """Raise AssertionError unless a sum is right, within what values of this many bits lose."""
    lost = lane_format(contender.lane_bits, 0.0, workers).error * workers * _LARGEST
    for mine, other in zip(torch.split(ours, _COMPARED), torch.split(theirs, _COMPARED), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=max(1e-5, lost))
