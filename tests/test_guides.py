# SPDX-License-Identifier: Apache-2.0
"""Each situation of README.md's table has a guide whose commands work as typed, and print what it shows.

By default a stand-in for torchrun forks the ranks; WEIR_TESTS=long types with torchrun itself. Guides of
several machines have tests of their own in tests/deploy.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.effort import LONG
from tests.harness.source import ROOT
from tests.harness.torchrun import stand_in
from tests.harness.typed import blocks, saved, types

# What each guide promises, as patterns of its output.
GUIDES: Final = {
    "docs/start/install.md": (
        r"rank 0: \[3\.0, 3\.0, 3\.0, 3\.0\]",
        r"rank 1: \[3\.0, 3\.0, 3\.0, 3\.0\]",
        r"loss 0\.[0-2]\d",
    ),
    "docs/guides/hook.md": (r"loss 0\.[0-2]\d, [1-5]% of the gradient sent",),
    "docs/guides/compress.md": (r"loss 0\.[0-2]\d, ", r"(?s)weights (\d+\.\d{6}).*weights \1\b"),
    "docs/guides/parameter-server.md": (r"loss 0\.[0-2]\d, ", r"(?s)weights (\d+\.\d{6}).*weights \1\b"),
    "docs/guides/placement.md": (r"by hash\n", r"by refined\n", r"2 epochs in .*accuracy (9\d|100)\."),
    "examples/README.md": (r"3 routes at unix:", r"port 2: 10\.0\.0\.2, next hop 02:00:00:00:00:02, ttl 63"),
}
TYPED_ELSEWHERE: Final = {"docs/guides/hub.md": "tests/deploy/test_hub.py"}


@pytest.fixture(scope="module")
def launchers() -> Iterator[list[Path]]:
    """Yield folders of commands that are found before those of the environment."""
    if LONG:
        yield []
    else:
        with stand_in() as folder:
            yield [folder]


@pytest.mark.parametrize("guide", GUIDES)
def test_it_works_as_typed(guide: str, short_path: Path, launchers: list[Path]) -> None:
    page = ROOT / guide
    for name, text in saved(page).items():
        (short_path / name).write_text(text, encoding="utf-8")
    (short_path / "examples").symlink_to(ROOT / "examples")  # a guide may be typed in a clone
    said = types("\n".join(blocks(page)), short_path, before=launchers)
    for promised in GUIDES[guide]:
        assert re.search(promised, said), said
    for shown in output(page):
        assert re.search(shown, said), (shown, said)


def output(page: Path) -> Iterator[str]:
    """Yield patterns of the lines that a page shows as output: any number stands for each number."""
    for block in blocks(page, "text"):
        for line in block.splitlines():
            yield re.sub(r"\d+(?:\\\.\d+)?", r"\\d+(?:\\.\\d+)?", re.escape(line))


def test_every_situation_of_the_readme_has_a_guide_that_is_typed() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.split("| your situation | expect |")[1].split("\n\n")[0].splitlines()[2:]
    known = GUIDES.keys() | TYPED_ELSEWHERE.keys()
    guides = [{guide for guide in known if f"({guide}" in row} for row in table]
    assert all(guides), [row for row, found in zip(table, guides, strict=True) if not found]
    assert set().union(*guides) == known
