# SPDX-License-Identifier: Apache-2.0
"""Any bytes are a frame: nothing crashes, nothing is read out of bounds, and no packet sees another's."""

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softp4.codegen.module import generate
from softp4.native.build import DIALECT, compiler
from softp4.runtime.compiler import RUNTIME
from softp4.runtime.queueing import Queueing
from softp4.switch import MAX_FRAME, Switch
from tests import test_unions, test_varbits
from tests.fuzzing.sanitized import run_worker, runtime
from tests.harness.effort import effort, examples
from tests.programs import FOLDER, NAMES, pack, program
from tests.state import test_value_sets

SANITIZE = "-fsanitize=address,undefined"
FRAMES = effort(1_500, 4_000)

# What makes each program do most: a header with every interesting first byte.
CORPUS = {
    "expressions": [bytes(range(34)) + b"\xff"],
    "wide": [bytes(range(160)) + bytes(768)],
    "externs": [bytes([what]) + bytes(68 + 36 * 2) for what in range(20)],
    "parsing": [
        pack([(4, 4), (flags, 12), (following, 8)]) + tail
        for following, flags in [(1, 0), (1, 1), (1, 2), (2, 0x801), (2, 3), (3, 0), (9, 0)]
        for tail in (b"\x02\x04\x07" + bytes(30), b"\x02\x04\x06\x08\x0a" + bytes(30))
    ],
    "matching": [bytes([table]) + bytes(29) for table in range(9)],
    "traffic": [bytes([what, 0, argument, 3]) + b"payload" for what in range(10) for argument in (1, 3, 21)],
    "state": [bytes([what | extra]) + bytes(14) + b"\1\2\3\4" for what in range(15) for extra in (0, 0x80)],
    "queues": [
        pack([(what, 8), (port, 8), (0, 8), (port, 8), (0, 32), (9, 32)]) + b"payload"
        for what in range(32)
        for port in (1, 2)
    ],
    "kinds": [bytes([table]) + bytes(10) + bytes([kind]) for table in range(7) for kind in (1, 5, 7)],
    "profiles": [
        bytes([table]) + bytes(6) + bytes([high]) + bytes(10) for table in range(5) for high in (0, 1)
    ],
    "meters": [
        pack([(what, 8), (index, 16), (7, 48), (0, 8), (0, 8), (0, 8)]) + b"payload"
        for what in range(32)
        for index in (0, 9)
    ],
    "unions": test_unions.frames(40),
    "varbits": test_varbits.frames(40),
    "value_sets": test_value_sets.frames(40),
    "shards": [bytes([what, flow, 0, 9]) + bytes(8) for what in (0, 1, 200) for flow in (1, 255)],
    "chains": [
        pack([(count << 2 | what, 8), (base, 32), (first, 32), (0x20, 32)]) + bytes(range(4 * count))
        for what in range(4)
        for base in (0, 60)
        for first in (0, 1, 0x80000, 0xFFFFFFFF)
        for count in (0, 20)
    ],
    "loops": [
        bytes([what, 1]) + base.to_bytes(4, "big") + b"\xff" * 4 + bytes(range(64)) + bytes(44)
        for what in range(12)
        for base in (0, 50, 60, 0xFFFFFFF8)
    ],
}


# All others are left to ``python -m tests.fuzzing``: they take long to compile.
_QUICK = tuple(name for name in NAMES if name not in ("wide", "externs", "matching", "kinds"))


def _build(objects: list[Path], output: Path, *flags: str) -> None:
    """Compile or link with sanitizers."""
    common = [*DIALECT, "-O0", "-g1", SANITIZE, "-fno-sanitize-recover=all", "-fno-strict-aliasing"]
    command = [
        *compiler(),
        *common,
        *flags,
        f"-I{RUNTIME}",
        *map(str, objects),
        "-o",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode and "asan" in done.stderr:
        pytest.skip("this compiler has no sanitizer libraries")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the runtime and the harness, compiled: the same for all programs."""
    folder = tmp_path_factory.mktemp("sanitized")
    sources = [*sorted(RUNTIME.glob("*.c")), Path(__file__).parent / "fuzz.c"]
    objects = [folder / f"{source.stem}.o" for source in sources]
    for source, made in zip(sources, objects, strict=True):
        _build([source], made, "-c")
    return objects


@pytest.mark.parametrize("name", _QUICK[:: effort(6, 1)])
def test_frames_under_sanitizers(name: str, harness: list[Path], tmp_path: Path) -> None:
    """AddressSanitizer and UBSan on generated code and runtime; each frame in a block of its own size."""
    (tmp_path / "program.c").write_text(generate(program(name)))
    binary = tmp_path / "fuzz"
    _build([tmp_path / "program.c", *harness], binary)
    corpus = "\n".join(frame.hex() for frame in CORPUS[name])
    runs = [
        subprocess.run(
            [str(binary), "1", str(FRAMES), "1", "2", "13"],
            input=corpus,
            capture_output=True,
            text=True,
            check=False,
        )
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr[-4000:]
    assert runs[0].stdout == runs[1].stdout, "the same frames must give the same answers"


@pytest.mark.parametrize(("name", "trace"), [("matching", False), ("queues", True)])
def test_any_control_under_sanitizers(name: str, trace: bool) -> None:
    """Entries, groups, queues, cells and traces change at random between frames made for the parser.

    ``python -m tests.fuzzing`` does so for all programs, and for spoiled ones.
    """
    if runtime() is None:
        pytest.skip("this compiler has no sanitizer libraries")
    report = run_worker(FOLDER / f"{name}.json", 1, effort(300, 1000), trace=trace)
    assert not report.bad, report.output
    assert "frames left" in report.output


@pytest.fixture(scope="module")
def switches() -> Iterator[list[Switch]]:
    """Programs that keep nothing from one packet to the next."""
    made = [Switch(program(name)) for name in ("expressions", "parsing", "matching", "traffic")]
    for switch in made:
        switch.multicast_groups.set(3, [(1, 1), (2, 2)])
        switch.clone_sessions.set(3, [(4, 4)])
    yield made
    for switch in made:
        switch.close()


@settings(max_examples=examples(60))
@given(st.binary(max_size=MAX_FRAME), st.integers(0, 511), st.randoms(use_true_random=False))
def test_packets_do_not_see_one_another(
    switches: list[Switch], frame: bytes, port: int, rng: random.Random
) -> None:
    for switch, name in zip(switches, ("expressions", "parsing", "matching", "traffic"), strict=True):
        before = switch.process(port, frame, 0)
        for _ in range(3):
            switch.process(rng.randrange(512), rng.choice(CORPUS[name]) + rng.randbytes(rng.randrange(40)), 0)
        assert switch.process(port, frame, 0) == before


# The program `state` counts how often it is asked, `queues` reports what it sees of its queue.
_SAME = ("expressions", "parsing", "matching", "traffic", "loops")


@pytest.fixture(scope="module")
def pairs() -> Iterator[dict[str, tuple[Switch, Switch]]]:
    """Yield each program twice: once as it is, once with queues at all ports that hold up nothing."""
    made = {name: (Switch(program(name)), Switch(program(name))) for name in _SAME}
    for plain, limited in made.values():
        for switch in (plain, limited):
            switch.multicast_groups.set(3, [(1, 1), (2, 2), (600, 3)])
            switch.clone_sessions.set(3, [(4, 4), (5, 5)], packet_length=30)
        for port in range(512):
            limited.queues(port).set(Queueing(depth_packets=1000))
    yield made
    for pair in made.values():
        for switch in pair:
            switch.close()


@settings(max_examples=examples(100))
@given(st.sampled_from(_SAME), st.integers(0, 2**32), st.binary(max_size=200), st.integers(0, 511))
def test_queues_change_no_packet(
    pairs: dict[str, tuple[Switch, Switch]], name: str, choice: int, tail: bytes, port: int
) -> None:
    plain, limited = pairs[name]
    frame = CORPUS[name][choice % len(CORPUS[name])] + tail
    assert sorted(plain.process(port, frame, 5000)) == sorted(limited.process(port, frame, 5000))
    assert limited.deadline() is None
    assert plain.statistics() == limited.statistics()
