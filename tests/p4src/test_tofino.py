# SPDX-License-Identifier: Apache-2.0
"""The program for Tofino is placed by p4lang's open compiler, and the report that is checked in is of it."""

import gzip
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from weir.p4src.build_tna import (
    ASSEMBLY,
    PER_STAGE,
    REPORT,
    SCHEMA,
    STAGES,
    BuildError,
    build,
    sources,
    stale,
)

P4SRC = Path(__file__).resolve().parents[2] / "p4src"


def test_the_report_is_of_these_sources(tmp_path: Path) -> None:
    assert stale(P4SRC) == []
    copy = Path(shutil.copytree(P4SRC, tmp_path / "p4src"))
    with (copy / "tna" / "cells.p4").open("a") as source:
        source.write("// changed\n")
    (copy / "tna" / "extra.p4").write_text("// new\n")
    assert stale(copy) == ["source tna/cells.p4 has changed", "source tna/extra.p4 is new"]
    (copy / "tna" / "extra.p4").unlink()
    with (copy / "tna" / SCHEMA.name).open("a") as tables:
        tables.write(" ")
    (copy / "tna" / ASSEMBLY.name).write_bytes(gzip.compress(b"another"))
    assert stale(copy) == [
        "source tna/cells.p4 has changed",
        *(f"output tna/{made} has changed" for made in ("bfrt.json", "weir_tna.bfa.gz")),
    ]
    (copy / "tna" / REPORT.name).unlink()
    (problem,) = stale(copy)
    assert "cannot be read" in problem


def test_the_program_is_made_of_what_it_includes() -> None:
    included = {
        line.split('"')[1]
        for line in (P4SRC / "weir_tna.p4").read_text().splitlines()
        if line.startswith('#include "')
    }
    assert set(sources()) == included | {"weir_tna.p4"}


def test_it_fits() -> None:
    report = json.loads(REPORT.read_text())
    assert len(report["stages"]) == STAGES
    for stage in report["stages"]:
        assert all(stage[what] <= most for what, most in PER_STAGE.items())
    registers = [name for stage in report["stages"] for name in stage["registers"]]
    assert len(registers) == len(set(registers)) == 8 + 32  # none is in two stages


@pytest.mark.tofino
@pytest.mark.timeout(900)
def test_it_compiles_without_a_warning_to_what_the_report_says(tmp_path: Path) -> None:
    """As docs/guides/deploy-tofino.md has it, in a copy of the sources."""
    copy = Path(shutil.copytree(P4SRC, tmp_path / "p4src"))
    for made in (REPORT, SCHEMA, ASSEMBLY):
        (copy / "tna" / made.name).unlink()
    page = (P4SRC.parent / "docs/guides/deploy-tofino.md").read_text()
    (typed,) = re.findall(r"^python p4src/build_tna.py .*$", page, re.MULTILINE)
    script, option, _ = typed.split()[1:]
    subprocess.run([sys.executable, script, option, str(tmp_path)], cwd=tmp_path, check=True)
    for made in (REPORT, SCHEMA):
        assert (copy / "tna" / made.name).read_text() == made.read_text()
    assert gzip.decompress((copy / "tna" / ASSEMBLY.name).read_bytes()) == gzip.decompress(
        ASSEMBLY.read_bytes()
    )
    (device,) = json.loads((tmp_path / "weir_tna.conf").read_text())["p4_devices"]
    (program,) = device["p4_programs"]
    (pipeline,) = program["p4_pipelines"]
    for named in (program["bfrt-config"], pipeline["context"], pipeline["config"]):
        assert Path(named).stat().st_size > 0


@pytest.mark.tofino
@pytest.mark.timeout(900)
def test_a_program_that_the_compiler_refuses_is_an_error_in_its_words(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(P4SRC, tmp_path / "p4src"))
    parser = copy / "tna" / "parser.p4"
    parser.write_text(parser.read_text().replace("ETHERTYPE_ARP: arp;", "ETHERTYPE_ARP: nowhere;"))
    with pytest.raises(BuildError, match="nowhere"):
        build(copy)
