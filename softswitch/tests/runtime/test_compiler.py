# SPDX-License-Identifier: Apache-2.0
"""The cache of generated C: nothing that decides the text is left out of its key."""

import subprocess
import sys
from pathlib import Path

import pytest

from softp4.program.loader import load_program
from softp4.runtime import compiler
from softp4.runtime.compiler import RUNTIME, generator_sources
from tests.p4rt.p4rt_client import CONTROL

_IMPORTED = """
import sys
import softp4.codegen.module
for name, module in sys.modules.items():
    if name.startswith("softp4.") and module.__file__:
        print(module.__file__)
"""


def test_every_module_that_generation_imports_counts() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert str(RUNTIME.parent / "codegen" / "module.py") in imported
    assert imported <= {str(path) for path in generator_sources()}


@pytest.mark.parametrize("spoilt", [b"", b"\xff\x00", None])
def test_a_damaged_text_is_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: bytes | None
) -> None:
    monkeypatch.setenv("SOFTP4_CACHE", str(tmp_path))
    program = load_program(CONTROL)
    text = compiler._text(program, trace=False)
    (kept,) = tmp_path.glob("*.c")
    whole = kept.read_bytes()
    assert compiler._text(program, trace=False) == text
    assert kept.read_bytes() == whole
    kept.write_bytes(whole[: len(whole) // 2] if spoilt is None else spoilt)
    assert compiler._text(program, trace=False) == text
    assert kept.read_bytes() == whole
