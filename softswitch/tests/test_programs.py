# SPDX-License-Identifier: Apache-2.0
"""The compiled programs these tests run are what p4c makes of their sources."""

import pytest

from tests.programs import CONTROLLED, FOLDER, NAMES, compiled


@pytest.mark.p4c
@pytest.mark.parametrize("name", (*NAMES, *CONTROLLED))
def test_compiled_programs_are_current(name: str) -> None:
    for file, text in compiled(name).items():
        assert text == (FOLDER / file).read_text(), "python -m tests.programs compiles them again"
