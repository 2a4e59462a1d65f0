# SPDX-License-Identifier: Apache-2.0
"""``make help`` says what each target does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("words", [["make"], ["make", "help"]])
def test_help_lists_every_target(words: list[str]) -> None:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    [phony] = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    lines = re.findall(r"^  make (\w+) +(.+)$", done.stdout, re.MULTILINE)
    assert sorted(name for name, _ in lines) == sorted(phony.split())
    assert all(len(what) > 10 for _, what in lines)
