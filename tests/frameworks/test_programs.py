# SPDX-License-Identifier: Apache-2.0
"""Frameworks train over Weir as frameworks.md says, by its own lines, in the versions of its table.

They are heavy, so an extra installs them; the test of one that is not installed is skipped.
"""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.frameworks.sections import PAGE
from tests.harness.source import ROOT, source_path

PROGRAMS = Path(__file__).parent / "programs"


class Framework(NamedTuple):
    """A framework with its program; by itself: torchrun does not start that."""

    distribution: str
    program: str
    by_itself: bool = False


FRAMEWORKS = [
    Framework("lightning", "lightning_ddp"),
    Framework("accelerate", "accelerate_loop"),
    Framework("transformers", "trainer"),
    Framework("torchao", "torchao_fsdp2"),
    Framework("ray", "ray_train", by_itself=True),
    Framework("torchft", "torchft_replicas", by_itself=True),
]


def pins() -> dict[str, str]:
    """Return the versions in the extra."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return dict(re.fullmatch(r"(\w+)(?:\[\w+\])?==(\S+)", one).groups() for one in extras["frameworks"])  # type: ignore[union-attr, misc]


def test_the_page_names_the_versions_that_are_installed() -> None:
    rows = re.findall(r"^\| \[(.*?)\]\(.*?\)[^|]*\| (\S+) \|", PAGE.read_text(), re.MULTILINE)
    named = {words.split()[0].removesuffix("'").removesuffix("s'").lower(): number for words, number in rows}
    assert {name: number for name, number in named.items() if name in pins()} == pins()
    assert pins().keys() == {framework.distribution for framework in FRAMEWORKS}


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.distribution)
def test_it_trains(framework: Framework, tmp_path: Path) -> None:
    try:
        version(framework.distribution)
    except PackageNotFoundError:
        pytest.skip(f"{framework.distribution} is not installed: pip install 'weir-ina[frameworks]'")
    assert "weir" in entry_points(group="torch.backends").names, "install Weir: the programs do not import it"
    program = PROGRAMS / f"{framework.program}.py"
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = [sys.executable, *(() if framework.by_itself else torchrun), str(program)]
    dropped = {"WEIR_CONTROLLER", "WEIR_HOST", "WEIR_LINK", "WEIR_LOCAL"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**kept, "PYTHONPATH": source_path(), "HF_HUB_OFFLINE": "1", "RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-10000:]
    assert "trained over weir" in done.stdout, done.stderr[-10000:]
