# SPDX-License-Identifier: Apache-2.0
"""Starts of a switch: the benchmark really starts it, and its larger programs really are larger."""

import json
import os
from pathlib import Path

from softp4.program.loader import load_program
from softp4.state.entry import Entry, Exact
from softp4.switch import Switch
from tests.p4rt.p4rt_client import CONTROL
from weir.bench.switch.start import start, with_actions


def test_copies_of_actions_are_actions_of_their_own() -> None:
    base = json.loads(CONTROL.read_text())
    program = load_program(json.dumps(with_actions(base, 3)).encode())
    assert len(program.actions) == 3 * len(base["actions"])
    with Switch(program) as switch:
        switch.table("ControlIngress.stations").insert(Entry((Exact(1),), "ControlIngress.forward_2", (7,)))
        frame = (1).to_bytes(6, "big") + bytes(54)
        assert switch.process(1, frame, now=0) == [(7, frame)]


def test_a_start_is_measured_to_the_first_packet(tmp_path: Path) -> None:
    measured = start(CONTROL, tmp_path, Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"))
    assert measured.wall > 0
    assert measured.cpu > 0
