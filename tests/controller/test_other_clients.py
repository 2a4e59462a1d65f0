# SPDX-License-Identifier: Apache-2.0
"""The controller beside other people's software: finsy in its process, and a switch's long error messages."""

import os
from pathlib import Path

import grpc
import pytest

from softp4.device import Device
from tests.harness.environments import environment
from tests.harness.source import source_path
from tests.p4rt.client_rig import FINSY, SCRIPTS, run, soft_lab
from tests.p4rt.p4rt_client import Controller
from weir.controller.entries import TableEntry
from weir.controller.p4rt_errors import describe
from weir.controller.sync import EntryUpdate, Verb

NEEDS = ("numpy", "pydantic", "pyyaml", "rich", "typer")  # of the controller, beside finsy's


def test_finsy_and_the_controller_in_one_process() -> None:
    """finsy programs a switch of its own beside the one that the controller has a job on."""
    script = Path(__file__).with_name("finsy_beside_weir.py")
    path = os.pathsep.join([source_path(), str(SCRIPTS)])
    with soft_lab() as lab:
        run(environment(FINSY, *NEEDS), script, "control", lab, path=path)


def test_a_long_refusal_says_how_many_more() -> None:
    with Device() as device:
        switch = Controller(device.serve("127.0.0.1:0"))
        switch.push()
        with pytest.raises(grpc.RpcError) as caught:
            switch.write_all("DELETE", [switch.station(number) for number in range(1, 401)])
        switch.close()
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    update = EntryUpdate(Verb.DELETE, TableEntry("stations", (("dst", 1),), "forward", ()))
    words = describe(caught.value, [update] * 400)
    assert words.startswith("delete stations [dst=0x1]: NOT_FOUND")
    assert "; and " in words
    assert "400 of 400 failed" in words
    assert len(words) < 1500
