# SPDX-License-Identifier: Apache-2.0
"""Programs as older compilers wrote them: the same frames through BMv2 and the soft switch."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from softp4.switch import Switch
from tests.aged import aged, aged_program, with_own_metadata
from tests.harness.bmv2_stream import Bmv2Stream
from tests.programs import raw
from tests.test_traffic import (
    CLONE_IN,
    CLONE_OUT,
    DROPPED,
    MULTICAST,
    ONLY_CLONE,
    PAYLOAD,
    RECIRCULATE,
    RESUBMIT,
    SEEN,
    TRUNCATE,
    UNICAST,
    order,
)

pytestmark = pytest.mark.bmv2

P4INFO = 'pkg_info {\n  arch: "v1model"\n}\n'  # of a program that no controller writes to
COPIES = [(1, 10), (2, 11), (2, 12), (3, 13)]
STAMP = SEEN[-1] // 8  # bytes of the time that egress saw, at the end of its report
REPORT = sum(SEEN) // 8


@pytest.fixture(scope="module")
def bmv2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bmv2Stream]:
    folder: Path = tmp_path_factory.mktemp("older")
    program, info = folder / "traffic.json", folder / "traffic.p4info.txtpb"
    program.write_text(json.dumps(with_own_metadata(aged(raw("traffic")))))
    info.write_text(P4INFO)
    stream = Bmv2Stream(program, info)
    stream.control.set_group(4, COPIES)
    stream.control.set_session(6, [(9, 21)])
    yield stream
    stream.close()


@pytest.fixture(scope="module")
def soft() -> Iterator[Switch]:
    with Switch(aged_program("traffic")) as made:
        made.multicast_groups.set(4, COPIES)
        made.clone_sessions.set(6, [(9, 21)])
        yield made


@pytest.mark.parametrize(
    "frame",
    [
        order(UNICAST, 300),
        order(UNICAST, 511),
        order(MULTICAST, 4),
        order(MULTICAST, 5),
        order(DROPPED, 4),
        order(CLONE_IN, 6, 3),
        order(ONLY_CLONE, 6),
        order(CLONE_OUT, 6),
        order(RESUBMIT, 0, 1),
        order(RECIRCULATE, 0, 3),
        order(TRUNCATE, 21),
    ],
    ids=lambda frame: frame.hex(),
)
def test_what_leaves_is_what_leaves_bmv2(bmv2: Bmv2Stream, soft: Switch, frame: bytes) -> None:
    [theirs] = bmv2.process([(5, frame + PAYLOAD)])
    ours = soft.process(5, frame + PAYLOAD, 0)
    assert _timeless(ours) == _timeless(theirs)


def _timeless(sent: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return what left without the time, in an order of its own: BMv2's copies run side by side."""
    return sorted((port, frame[: REPORT - STAMP] + frame[REPORT:]) for port, frame in sent)
