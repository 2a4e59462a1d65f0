# SPDX-License-Identifier: Apache-2.0
"""Weir's program on the soft switch against BMv2: random jobs, entries and frames into both of them.

``python -m tests.p4src.differential --help`` says how to run it for long and how to record.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.differential.__main__ import main
from tests.differential.subjects import Subject, subject
from tests.harness.target import P4INFO, PROGRAM
from tests.p4src.jobs_traffic import Jobs

COMMAND: Final = "python -m tests.p4src.differential"
_RECORDING: Final = Path(__file__).with_name("recorded_differential.json.xz")


def weir(scratch: Path) -> Subject:
    """Return Weir's program, its files in ``scratch``; by chance alone, no packet of a job is admitted."""
    made = subject(PROGRAM, P4INFO, scratch / "weir", _RECORDING)
    return replace(made, recorded_frames=150, traffic=Jobs)


if __name__ == "__main__":
    main(COMMAND, {"weir": weir})
