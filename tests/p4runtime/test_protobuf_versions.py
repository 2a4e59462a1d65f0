# SPDX-License-Identifier: Apache-2.0
"""Everything that speaks protobuf works with any of its versions, old and new.

The oldest and the newest are tried on a few tests; with ``WEIR_TESTS=long`` all of them, on every test of
P4Runtime and of the controller.
"""

import os
import subprocess
import sys

import pytest

from tests.harness.effort import effort
from tests.harness.environments import libraries
from tests.harness.source import ROOT, source_path

VERSIONS = ("3.20.3", "4.25.9", "6.33.6", "7.36.2")
FEW = (
    "softswitch/tests/p4rt/test_p4rt_unknown.py",
    "tests/controller/test_switch_client.py",
    "tests/controller/test_service.py::test_everybody_gets_what_a_worker_needs_and_the_switch_is_programmed",
)
EVERY = ("softswitch/tests/p4rt", "tests/controller", "tests/agent_service")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", effort((VERSIONS[0], VERSIONS[-1]), VERSIONS))
def test_p4runtime_and_the_agent_service_with_protobuf(version: str) -> None:
    path = os.pathsep.join([str(libraries(f"protobuf=={version}")), source_path()])
    variables = {**os.environ, "PYTHONPATH": path}
    for name in ("PYTEST_XDIST_WORKER", "WEIR_TESTS", "SOFTP4_TESTS"):
        variables.pop(name, None)
    shown = "import google.protobuf; print(google.protobuf.__version__)"
    used = subprocess.run(
        [sys.executable, "-c", shown], env=variables, capture_output=True, text=True, check=True
    )
    assert used.stdout.strip() == version
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *effort(FEW, EVERY)]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
