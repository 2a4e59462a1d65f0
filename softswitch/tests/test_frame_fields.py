# SPDX-License-Identifier: Apache-2.0
"""The parser that ends once some headers are settled, by which threads share frames, beside the whole one."""

import random

import pytest

from tests.early_parser import outcomes
from tests.programs import FOLDER, NAMES


def frames(rng: random.Random) -> list[bytes]:
    """Return random frames, most of them of small numbers, which parsers ask for."""
    return [
        bytes(
            rng.choice((0, 1, 2, 3, 4, 5, 8, 255, rng.randrange(256)))
            for _ in range(rng.randrange(rng.choice((120, 1000))))
        )
        for _ in range(600)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_parser_that_ends_early_finds_what_the_whole_one_does(name: str) -> None:
    assert outcomes(FOLDER / f"{name}.json", frames(random.Random(1))) == {1, 2}
