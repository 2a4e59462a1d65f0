# SPDX-License-Identifier: Apache-2.0
"""The example of docs/internals/flows.md runs as it is printed."""

import subprocess
import sys
from pathlib import Path

from tests.harness.typed import blocks

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "flows.md"


def test_the_example_runs_alone(tmp_path: Path) -> None:
    (example,) = blocks(_PAGE, "python")
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
