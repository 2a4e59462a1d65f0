# SPDX-License-Identifier: Apache-2.0
"""The compiled programs these tests run are what p4c makes of their sources."""

from pathlib import Path

import pytest

from tests.harness.effort import effort
from tests.programs import BENCH, CONTROLLED, FOLDER, MEASURED, NAMES, compiled


@pytest.mark.p4c
@pytest.mark.parametrize(
    ("folder", "name"),
    [*((FOLDER, name) for name in (*NAMES, *CONTROLLED)), *((BENCH, name) for name in MEASURED)][
        :: effort(4, 1)
    ],
    ids=lambda value: value if isinstance(value, str) else value.parent.name,
)
def test_compiled_programs_are_current(folder: Path, name: str) -> None:
    for file, text in compiled(name, folder).items():
        if (folder / file).exists() or file.endswith(".json"):
            assert text == (folder / file).read_text(), "python -m tests.programs compiles them again"
