# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.differential`` compares the soft switch with BMv2 on random frames.

Needs p4c-bm2-ss and simple_switch_grpc on PATH. Each round is a program with new random entries and frames;
what differs is printed with the seed that makes it again. Exits with 1 when something differs. With --record,
what BMv2 does in one round is written down instead, for the tests that run without it. With --threads, the
soft switch with this many threads is compared with itself with one, and BMv2 is not needed.
"""

import argparse
import functools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from softp4.program.errors import ProgramError
from tests import shared
from tests.conformance.cases import NotCompiledError
from tests.differential.compare import differences
from tests.differential.generate import program
from tests.differential.play import DeadlyFramesError, Played, fill, on_bmv2, on_soft
from tests.differential.recording import Recording, digest, save
from tests.differential.scenario import Scenario, ScenarioMaker, batches
from tests.differential.subjects import OURS, Subject, compiled

Own = Callable[[Path], Subject]  # a program, its files in a folder
OWN: Mapping[str, Own] = {name: functools.partial(compiled, name) for name in OURS}

_SHOWN = 3  # differences of one round
_DEATHS = 12  # of BMv2 in one round
_BATCH = 200  # frames that threads are given together


def main(prog: str = "python -m tests.differential", own: Mapping[str, Own] = OWN) -> None:
    """Run the command, for programs of one's own by their names."""
    parser = argparse.ArgumentParser(description=__doc__, prog=prog)
    parser.add_argument(
        "sources", nargs="*", type=Path, metavar="SOURCE.p4", help="instead of our own programs"
    )
    parser.add_argument("--only", choices=own, help="only this one of our programs")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (1); 0: each program once")
    parser.add_argument("--frames", type=int, default=2000, help="frames of a round (2000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (1)")
    parser.add_argument("--generate", action="store_true", help="random programs, a new one each round")
    parser.add_argument("--threads", type=int, help="compare these with one thread, instead of with BMv2")
    parser.add_argument("--record", action="store_true", help="record our own programs")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    different = 0
    with tempfile.TemporaryDirectory(prefix="softp4-differential-") as scratch:
        wanted: list[Path | str] = options.sources or ([options.only] if options.only else list(own))
        subjects = [] if options.generate else list(_subjects(wanted, own, Path(scratch)))
        if options.record:
            for each in subjects:
                record(each, options.seed)
            return
        deadline = time.monotonic() + 60 * options.minutes
        rounds = _rounds(subjects, options.seed, deadline)
        if options.generate:
            rounds = _generated(Path(scratch), options.seed, deadline)
        for seed, each in rounds:
            compared, found, deaths = (
                compare_threads(each, seed, options.frames, options.threads)
                if options.threads
                else compare(each, seed, options.frames)
            )
            total[each.name] += compared
            different += len(found)
            for text in deaths:
                print(f"{each.name}, seed {seed}: {text}")
            for text in found[:_SHOWN]:
                print(f"{each.name}, seed {seed}: {text}")
            if len(found) > _SHOWN:
                print(f"{each.name}, seed {seed}: and {len(found) - _SHOWN} more")
    for name, frames in total.items():
        print(f"{name}: {frames} frames")
    print(f"{sum(total.values())} frames compared, {different} differences")
    sys.exit(1 if different else 0)


def _subjects(wanted: Sequence[Path | str], own: Mapping[str, Own], scratch: Path) -> Iterator[Subject]:
    for source in wanted:
        try:
            yield own[source](scratch) if isinstance(source, str) else compiled(source, scratch)
        except NotCompiledError as error:
            print(f"{source}: {error}")


def _rounds(subjects: Sequence[Subject], seed: int, deadline: float) -> Iterator[tuple[int, Subject]]:
    """Yield every program once, and again with the next seed while there is time."""
    while True:
        for each in subjects:
            yield seed, each
        seed += 1
        if deadline < time.monotonic():
            return


def _generated(scratch: Path, seed: int, deadline: float) -> Iterator[tuple[int, Subject]]:
    """Yield a program of each seed, while there is time."""
    while True:
        source = scratch / f"generated{seed}.p4"
        source.write_text(program(seed))
        for each in _subjects([source], {}, scratch):
            yield seed, each
        seed += 1
        if deadline < time.monotonic():
            return


def record(each: Subject, seed: int) -> None:
    """Write down what BMv2 does with a scenario of a size that suits the program."""
    scenario = ScenarioMaker(each, seed).scenario(each.recorded_frames)
    scenario, played, _ = survive(each, scenario)
    save(each.recording, Recording(digest(each.json), scenario, played))
    print(f"{each.recording}: {each.recording.stat().st_size} bytes")


def survive(each: Subject, scenario: Scenario) -> tuple[Scenario, Played, list[str]]:
    """Return what BMv2 does with a scenario, less the frames that it does not survive; and of what it
    died.
    """
    deaths: list[str] = []
    while True:
        try:
            return scenario, on_bmv2(each.bmv2, each.p4info, each.json, scenario, each.one_by_one), deaths
        except DeadlyFramesError as error:
            deaths.append(f"BMv2 does not survive one of {error.count} frames: {error}"[:500])
            if len(deaths) > _DEATHS:
                raise RuntimeError(f"died {len(deaths)} times: {error}") from error
            kept = scenario.frames[: error.first] + scenario.frames[error.first + error.count :]
            scenario = replace(scenario, frames=kept)


def compare_threads(each: Subject, seed: int, frames: int, threads: int) -> tuple[int, list[str], list[str]]:
    """Return the same of the soft switch with threads beside itself with one, and by what they share."""
    scenario = ScenarioMaker(each, seed).scenario(frames)
    try:
        by = shared.compare(
            each.soft, lambda switch: fill(switch, scenario), batches(scenario.frames, _BATCH), threads
        )
    except ProgramError as error:
        return 0, [f"refused: {error}"], []
    except AssertionError as error:
        return len(scenario.frames), [str(error)[:500]], []
    return len(scenario.frames), [], [f"shared by {by}"] if by else []


def compare(each: Subject, seed: int, frames: int) -> tuple[int, list[str], list[str]]:
    """Return one round: how many frames were compared; as text, what differs, and what BMv2 died of."""
    scenario = ScenarioMaker(each, seed).scenario(frames)
    try:
        on_soft(each.soft, each.json, scenario)  # with every frame, to see that it survives
    except ProgramError as error:
        return 0, [f"refused: {error}"], []
    try:
        scenario, bmv2, deaths = survive(each, scenario)
    except RuntimeError as error:
        return 0, [], [f"BMv2: {' '.join(str(error).split())[:500]}"]
    soft = on_soft(each.soft, each.json, scenario)
    return len(scenario.frames), list(differences(each.json, scenario, bmv2, soft)), deaths


if __name__ == "__main__":
    main()
