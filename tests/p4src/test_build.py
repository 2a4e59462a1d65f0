# SPDX-License-Identifier: Apache-2.0
"""What is checked in under p4src/build is what the sources compile to."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

P4SRC = Path(__file__).resolve().parents[2] / "p4src"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of p4src that a test may spoil."""
    return Path(shutil.copytree(P4SRC, tmp_path / "p4src"))


def build(p4src: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(p4src / "build.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_checked_in_build_is_up_to_date() -> None:
    done = build(P4SRC, "--check")
    assert done.returncode == 0, done.stderr


def test_a_changed_source_makes_it_stale(copy: Path) -> None:
    with (copy / "v1model" / "slots.p4").open("a") as source:
        source.write("// changed\n")
    (copy / "v1model" / "extra.p4").write_text("// new\n")
    (copy / "v1model" / "arp.p4").unlink()
    done = build(copy, "--check")
    assert done.returncode == 1
    assert "run `python p4src/build.py`" in done.stderr
    assert "source v1model/slots.p4 has changed" in done.stderr
    assert "source v1model/extra.p4 is new" in done.stderr
    assert "source v1model/arp.p4 is gone" in done.stderr
    assert done.stderr.count("source ") == 3


def test_an_edited_or_missing_output_makes_it_stale(copy: Path) -> None:
    with (copy / "build" / "weir_v1model.p4info.txtpb").open("a") as output:
        output.write("# by hand\n")
    (copy / "build" / "weir_v1model.json").unlink()
    done = build(copy, "--check")
    assert done.returncode == 1
    assert "output weir_v1model.p4info.txtpb has changed" in done.stderr
    assert "output weir_v1model.json is gone" in done.stderr


@pytest.mark.parametrize("text", [None, "", "{}", '{"sources": 1, "outputs": {}}'])
def test_a_broken_manifest_is_named(copy: Path, text: str | None) -> None:
    manifest = copy / "build" / "manifest.json"
    manifest.unlink() if text is None else manifest.write_text(text)
    done = build(copy, "--check")
    assert done.returncode == 1
    assert "build/manifest.json cannot be read" in done.stderr


def test_without_the_compiler_the_error_says_what_to_do(
    copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = build(copy)
    assert done.returncode == 1
    assert "p4c-bm2-ss is not on PATH: install p4c" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_path_of_a_machine_is_in_the_outputs() -> None:
    for output in (P4SRC / "build").iterdir():
        text = output.read_text()
        assert "source_info" not in text
        assert not any(place in text for place in ("/home/", "/opt/", "/tmp/", "/usr/", "/root/", str(P4SRC)))


@pytest.mark.p4c
@pytest.mark.long
def test_the_sources_compile_to_what_is_checked_in(copy: Path) -> None:
    """Without a warning; and byte by byte, when the compiler is the one that the manifest names."""
    done = build(copy)
    assert done.returncode == 0, done.stderr
    theirs = json.loads((P4SRC / "build" / "manifest.json").read_text())
    ours = json.loads((copy / "build" / "manifest.json").read_text())
    assert ours["sources"] == theirs["sources"]
    if ours["p4c"] == theirs["p4c"]:
        assert ours == theirs


SMALL = """
#include <core.p4>
#include <v1model.p4>
struct none {}
const bit<8> NEVER_USED = 1;
parser P(packet_in p, out none h, inout none m, inout standard_metadata_t s) {
    state start { transition accept; }
}
control C(inout none h, inout none m) { apply {} }
control I(inout none h, inout none m, inout standard_metadata_t s) { apply {} }
control D(packet_out p, in none h) { apply {} }
V1Switch(P(), C(), I(), I(), C(), D()) main;
"""


@pytest.mark.p4c
def test_a_warning_fails_the_build(copy: Path) -> None:
    (copy / "weir_v1model.p4").write_text(SMALL)
    done = build(copy)
    assert done.returncode == 1
    assert "weir_v1model: p4c-bm2-ss says:" in done.stderr
    assert "'NEVER_USED' is unused" in done.stderr
    assert build(copy, "--check").stderr.count("source ") == 1  # the build is as it was
