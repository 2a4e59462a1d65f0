# SPDX-License-Identifier: Apache-2.0
"""The cache of generated C: nothing that decides the text is left out of its key."""

import subprocess
import sys
from pathlib import Path

import pytest

from softp4.native import build
from softp4.program.loader import load_program
from softp4.runtime import compiler
from softp4.runtime.compiler import RUNTIME
from softp4.runtime.kept_files import generator_sources
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
    text = compiler.program_text(program)
    (kept,) = tmp_path.glob("*.c")
    whole = kept.read_bytes()
    assert compiler.program_text(program) == text
    assert kept.read_bytes() == whole
    kept.write_bytes(whole[: len(whole) // 2] if spoilt is None else spoilt)
    assert compiler.program_text(program) == text
    assert kept.read_bytes() == whole


def test_a_text_that_a_wheel_brought_is_not_generated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = load_program(CONTROL)
    folder = tmp_path / "package" / build.COMPILED
    folder.mkdir(parents=True)
    (folder / compiler.text_name(program)).write_text("int brought;\n")
    monkeypatch.setattr(build, "_BESIDE", tmp_path)
    monkeypatch.setenv("SOFTP4_CACHE", str(tmp_path / "cache"))
    build._compiled_folders.cache_clear()
    try:
        assert compiler.program_text(program) == "int brought;\n"
        assert compiler.program_text(program, trace=True) != "int brought;\n"
    finally:
        monkeypatch.undo()
        build._compiled_folders.cache_clear()
    assert len(list((tmp_path / "cache").glob("*.c"))) == 1  # the one with tracepoints
