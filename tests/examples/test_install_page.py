# SPDX-License-Identifier: Apache-2.0
"""The script of docs/start/install.md prints what the page says."""

import re
from pathlib import Path

from tests.examples.test_examples import EXAMPLES
from tests.harness.forked import run_ranks

PAGE = (EXAMPLES.parent / "docs" / "start" / "install.md").read_text(encoding="utf-8")


def test_the_first_sum_is_what_the_page_says(tmp_path: Path) -> None:
    script = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "first_sum.py"
    path.write_text(script)
    rank = r"rank \d: \[[^]]*\]"  # both ranks may print into one line
    assert sorted(re.findall(rank, run_ranks(2, path))) == re.findall(rank, shown)
