# SPDX-License-Identifier: Apache-2.0
"""A program is pushed only if it is what its sources say; otherwise the person is told what to do."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from weir.controller.program import ProgramError, load_program
from weir.p4src import BUILD

NAME = "weir_v1model"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of ``p4src`` that may be spoiled."""
    shutil.copytree(BUILD.parent, tmp_path / "p4src")
    return tmp_path / "p4src"


def test_the_programs_of_this_installation_are_current() -> None:
    program = load_program(NAME)
    assert program.slots == 1024
    assert program.device_config.startswith(b"{")
    assert 0 < program.cookie < 1 << 64


def test_a_different_program_has_a_different_cookie(checkout: Path) -> None:
    (checkout / "build" / "manifest.json").unlink()
    _remove_sources(checkout)
    output = checkout / "build" / f"{NAME}.json"
    output.write_text(output.read_text() + " ")
    assert load_program(NAME, checkout / "build").cookie != load_program(NAME).cookie


def _edit_source(checkout: Path) -> str:
    source = checkout / "v1model" / "slots.p4"
    source.write_text(source.read_text() + "\n// changed\n")
    return "source v1model/slots.p4 has changed"


def _add_source(checkout: Path) -> str:
    (checkout / "v1model" / "extra.p4").write_text("")
    return "source v1model/extra.p4 is new"


def _remove_source(checkout: Path) -> str:
    (checkout / "v1model" / "slots.p4").unlink()
    return "source v1model/slots.p4 is gone"


def _edit_output(checkout: Path) -> str:
    output = checkout / "build" / f"{NAME}.json"
    output.write_text(output.read_text() + " ")
    return f"output {NAME}.json has changed"


def _lose_manifest(checkout: Path) -> str:
    (checkout / "build" / "manifest.json").unlink()
    return "manifest.json cannot be read"


def _spoil_manifest(checkout: Path) -> str:
    (checkout / "build" / "manifest.json").write_text("[]")
    return "manifest.json cannot be read"


@pytest.mark.parametrize(
    "spoil", [_edit_source, _add_source, _remove_source, _edit_output, _lose_manifest, _spoil_manifest]
)
def test_a_stale_program_is_refused(checkout: Path, spoil: Callable[[Path], str]) -> None:
    says = spoil(checkout)
    with pytest.raises(ProgramError) as caught:
        load_program(NAME, checkout / "build")
    assert says in str(caught.value)
    assert "run 'python p4src/build.py' again" in str(caught.value)


def test_without_sources_there_is_nothing_to_disagree_with(checkout: Path) -> None:
    _remove_sources(checkout)
    assert load_program(NAME, checkout / "build").cookie == load_program(NAME).cookie


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"cannot read compiled P4 program .*nothing.json: No such file"):
        load_program("nothing", tmp_path)


def test_a_program_that_is_not_weirs(checkout: Path) -> None:
    _remove_sources(checkout)
    (checkout / "build" / "manifest.json").unlink()
    (checkout / "build" / f"{NAME}.p4info.txtpb").write_text('pkg_info { arch: "v1model" }')
    with pytest.raises(ProgramError, match="it is not a Weir program"):
        load_program(NAME, checkout / "build")


def _remove_sources(checkout: Path) -> None:
    for path in checkout.glob("**/*.p4"):
        path.unlink()
