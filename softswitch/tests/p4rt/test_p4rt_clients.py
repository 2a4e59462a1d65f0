# SPDX-License-Identifier: Apache-2.0
"""Other people's controllers drive both switches: p4runtime-shell and finsy, in environments of their own."""

from collections.abc import Iterator

import pytest

from tests.harness.bmv2_ports import Bmv2WithPorts
from tests.harness.environments import environment
from tests.p4rt.client_rig import FINSY, SCRIPTS, SHELL, run, soft_lab


@pytest.fixture
def soft() -> Iterator[list[str]]:
    with soft_lab() as lab:
        yield lab


def test_p4runtime_shell(soft: list[str]) -> None:
    run(environment(SHELL), SCRIPTS / "shell.py", "control", soft)


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("finsy_controller.py", "control"),
        ("finsy_meters.py", "meters"),
        ("finsy_profiles.py", "profiles"),
    ],
)
def test_finsy(soft: list[str], script: str, program: str) -> None:
    run(environment(FINSY), SCRIPTS / script, program, soft)


@pytest.mark.root
@pytest.mark.bmv2
@pytest.mark.parametrize(("client", "script"), [(SHELL, "shell.py"), (FINSY, "finsy_controller.py")])
def test_either_drives_bmv2(client: str, script: str) -> None:
    python = environment(client)
    with Bmv2WithPorts(3) as bmv2:
        run(python, SCRIPTS / script, "control", [bmv2.address, *bmv2.hosts], bmv2.inside)
