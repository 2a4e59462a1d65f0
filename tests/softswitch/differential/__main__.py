# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.softswitch.differential`` compares the soft switch with BMv2 on random frames.

Needs p4c-bm2-ss and simple_switch_grpc on PATH. Each round is a program with new random entries and frames;
what differs is printed with the seed that makes it again. Exits with 1 when something differs. With --record,
what BMv2 does in one round is written down instead, for the tests that run without it.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from native.build import CompileError
from softswitch.errors import ProgramError
from tests.conformance.cases import NotCompiledError
from tests.softswitch.differential.compare import differences
from tests.softswitch.differential.play import DeadlyFramesError, on_bmv2, on_soft
from tests.softswitch.differential.recording import Recording, digest, path_of, save
from tests.softswitch.differential.scenario import ScenarioMaker
from tests.softswitch.differential.subjects import OURS, WEIR, Subject, compiled

_SHOWN = 3  # differences of one round
_DEATHS = 5  # of BMv2 in one round
FRAMES = {WEIR: 150, "loops": 150}  # that are recorded: those of these programs are long


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.softswitch.differential")
    parser.add_argument(
        "sources", nargs="*", type=Path, metavar="SOURCE.p4", help="instead of our own programs"
    )
    parser.add_argument("--only", help="only this one of our programs")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (1); 0: each program once")
    parser.add_argument("--frames", type=int, default=2000, help="frames of a round (2000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first round (1)")
    parser.add_argument("--record", action="store_true", help="record our own programs")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    different = 0
    with tempfile.TemporaryDirectory(prefix="weir-differential-") as scratch:
        wanted: list[Path | str] = options.sources or ([options.only] if options.only else [*OURS, WEIR])
        subjects = list(_subjects(wanted, Path(scratch)))
        if options.record:
            for each in subjects:
                record(each, options.seed)
            return
        deadline = time.monotonic() + 60 * options.minutes
        for seed, each in _rounds(subjects, options.seed, deadline):
            found = compare(each, seed, options.frames)
            total[each.name] += options.frames
            different += len(found)
            for text in found[:_SHOWN]:
                print(f"{each.name}, seed {seed}: {text}")
            if len(found) > _SHOWN:
                print(f"{each.name}, seed {seed}: and {len(found) - _SHOWN} more")
    for name, frames in total.items():
        print(f"{name}: {frames} frames")
    print(f"{sum(total.values())} frames compared, {different} differences")
    sys.exit(1 if different else 0)


def _subjects(wanted: Sequence[Path | str], scratch: Path) -> Iterator[Subject]:
    for source in wanted:
        try:
            yield compiled(source, scratch)
        except NotCompiledError as error:
            print(f"{source}: {error}")


def _rounds(subjects: Sequence[Subject], seed: int, deadline: float) -> Iterator[tuple[int, Subject]]:
    """Every program once, and again with the next seed while there is time."""
    while True:
        for each in subjects:
            yield seed, each
        seed += 1
        if deadline < time.monotonic():
            return


def record(each: Subject, seed: int) -> None:
    """Write down what BMv2 does with a scenario of a size that suits the program."""
    scenario = ScenarioMaker(each, seed).scenario(FRAMES.get(each.name, 300))
    played = on_bmv2(each.bmv2, each.p4info, each.json, scenario, each.one_by_one)
    save(path_of(each.name), Recording(digest(each.json), scenario, played))
    print(f"{path_of(each.name)}: {path_of(each.name).stat().st_size} bytes")


def compare(each: Subject, seed: int, frames: int) -> list[str]:
    """One round: what differs, in words. Frames that BMv2 does not survive are left out, and named."""
    scenario = ScenarioMaker(each, seed).scenario(frames)
    try:
        soft = on_soft(each.soft, each.json, scenario)
    except ProgramError as error:
        return [f"refused: {error}"]
    except CompileError as error:
        return [f"generated code: {' '.join(str(error).split())}"]
    deadly: list[str] = []
    for _ in range(_DEATHS):
        try:
            bmv2 = on_bmv2(each.bmv2, each.p4info, each.json, scenario, each.one_by_one)
            return [*deadly, *differences(each.json, scenario, bmv2, soft)]
        except DeadlyFramesError as error:
            deadly.append(f"BMv2 does not survive one of {error.count} frames: {error}"[:500])
            survivors = scenario.frames[: error.first] + scenario.frames[error.first + error.count :]
            scenario = replace(scenario, frames=survivors)
            soft = on_soft(each.soft, each.json, scenario)
        except RuntimeError as error:
            return [f"BMv2: {' '.join(str(error).split())[:500]}"]
    return deadly


if __name__ == "__main__":
    main()
