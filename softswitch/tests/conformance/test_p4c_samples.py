# SPDX-License-Identifier: Apache-2.0
"""What BMv2 passes of p4c's own tests, the soft switch passes. SOFTP4_P4C_TESTDATA names p4c's samples."""

import os
from pathlib import Path

import pytest

from tests.conformance.cases import Case, NotCompiledError, compile_case, find
from tests.conformance.run import Verdict, run

FOLDER = os.environ.get("SOFTP4_P4C_TESTDATA")
if FOLDER is None:
    pytest.skip("needs p4c's testdata/p4_16_samples in SOFTP4_P4C_TESTDATA", allow_module_level=True)
CASES = list(find(Path(FOLDER)))


def test_there_are_samples() -> None:
    assert CASES, f"no test of a v1model program under {FOLDER}"


@pytest.mark.p4c
@pytest.mark.bmv2
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_bmv2_passes_passes_here(case: Case, tmp_path: Path) -> None:
    try:
        compiled = compile_case(case, tmp_path)
    except NotCompiledError as error:
        pytest.skip(f"p4c: {error}")
    soft = run(case, compiled, "soft")
    if soft.verdict is not Verdict.PASS:
        bmv2 = run(case, compiled, "bmv2")
        assert bmv2.verdict is not Verdict.PASS, f"soft switch: {soft.verdict.value}, {soft.reason}"
