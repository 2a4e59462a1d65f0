# SPDX-License-Identifier: Apache-2.0
"""Compile and assemble the program for Tofino, and report what it takes of the chip.

``python p4src/build_tna.py`` runs p4lang's open compiler, ``p4c-barefoot`` and ``bfas``, and writes
``tna/resources.json``: per stage what is used, containers, parser states, and the SHA-256 of every
source; ``tna/bfrt.json``: those of the program's tables that the controller uses, as BfRuntime has them; and
``tna/weir_tna.bfa.gz``, the assembly, which tests execute. They are checked in, so that they can be used
without the compiler; neither configuration nor binary is. With
``--check`` it compiles nothing: it exits 1 and names the sources that they are not of. With ``--out`` it
leaves what a switch is loaded with, as bf_switchd wants it.
"""

import argparse
import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from weir.p4src.manifest import differences, hashes

P4SRC: Final = Path(__file__).resolve().parent
PROGRAM: Final = "weir_tna"
REPORT: Final = P4SRC / "tna" / "resources.json"
SCHEMA: Final = P4SRC / "tna" / "bfrt.json"
ASSEMBLY: Final = P4SRC / "tna" / f"{PROGRAM}.bfa.gz"
COMPILER: Final = "p4c-barefoot"
ASSEMBLER: Final = "bfas"
STAGES: Final = 12
# What there is of each in one stage of Tofino 1.
PER_STAGE: Final = {"srams": 80, "tcams": 24, "stateful_alus": 4, "logical_tables": 16, "vliw": 32}
# Tables that a controller fills or reads; the rest are constant, or for debugging.
_CONTROLLED: Final = {"MatchAction_Direct", "Counter", "Register"}
_SAID: Final = ("name", "id", "table_type", "size", "key", "action_specs", "data")
# The hash of a register's index is called for each of its actions, which nobody wants to change at run time.
_HARMLESS: Final = re.compile(
    r"^\S+ warning: Expected single call to get for hash instance '\S+'\.Control plane API is not generated "
    r"for this hash call\n.*\n *\^+\n|^0 errors, \d+ warnings? generated\.\n",
    re.MULTILINE,
)
CONTAINERS: Final = {"normal": {8: 64, 16: 96, 32: 64}, "tagalong": {8: 32, 16: 48, 32: 32}}


class BuildError(Exception):
    """The compiler or the assembler is missing, or one of them refused the program or warned about it."""


def sources(p4src: Path = P4SRC) -> dict[str, Path]:
    """Return every P4 file that the program is made of, by its path below ``p4src``."""
    found = [p4src / f"{PROGRAM}.p4", *sorted(p4src.glob("shared/*.p4")), *sorted(p4src.glob("tna/*.p4"))]
    return {path.relative_to(p4src).as_posix(): path for path in found if path.is_file()}


def build(p4src: Path = P4SRC, folder: Path | None = None) -> tuple[dict[str, Any], str, str]:
    """Compile and assemble the program; return report, tables that the controller uses, and assembly.

    Args:
        folder: for what a switch is loaded with; None: that is not kept.

    Raises:
        BuildError: a tool is missing, fails or warns; with its own words.
    """
    for tool in (COMPILER, ASSEMBLER):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} is not on PATH: tofino.md says how to build p4c's Tofino back end")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        tables = out / "bf-rt.json"
        options = ("--target", "tofino", "--arch", "tna", "-g", "-o", scratch, "--bf-rt-schema", str(tables))
        _run([COMPILER, *options, f"{PROGRAM}.p4"], p4src)
        (out / "asm" / "logs").mkdir(parents=True)
        _run([ASSEMBLER, "--target", "tofino", "-o", f"{out}/asm", f"{out}/pipe/{PROGRAM}.bfa"], p4src)
        if not (out / "asm" / "tofino.bin").is_file():
            raise BuildError(f"{ASSEMBLER} wrote no binary")
        logs = out / "pipe" / "logs"
        used = json.loads((logs / "resources.json").read_text())["resources"]
        phv = json.loads((logs / "phv.json").read_text())
        schema = _controlled(json.loads(tables.read_text()))
        # The number of the compiler's run is another each time.
        assembly = re.sub(r'^  run_id: "\w+"\n', "", (out / f"pipe/{PROGRAM}.bfa").read_text(), flags=re.M)
        if folder is not None:
            keep(out, folder)
    report = {
        "compiler": _version(),
        "stages": [_stage(stage) for stage in used["mau"]["mau_stages"]],
        "parser_states": {parser["gress"]: len(parser["states"]) for parser in used["parser"]["parsers"]},
        "containers": _containers(phv),
        "tables": hashlib.sha256(schema.encode()).hexdigest(),
        "assembly": hashlib.sha256(assembly.encode()).hexdigest(),
        "sources": hashes(sources(p4src)),
    }
    return report, schema, assembly


def stale(p4src: Path = P4SRC) -> list[str]:
    """Return which sources have changed since the report, one line each."""
    report = p4src / "tna" / REPORT.name
    try:
        said = json.loads(report.read_text())
        recorded = dict(said["sources"])
        outputs = {
            SCHEMA.name: (said["tables"], (p4src / "tna" / SCHEMA.name).read_bytes()),
            ASSEMBLY.name: (said["assembly"], gzip.decompress((p4src / "tna" / ASSEMBLY.name).read_bytes())),
        }
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        return [f"{report} cannot be read: {error!r}"]
    edited = [
        f"output tna/{name} has changed"
        for name, (hash, content) in outputs.items()
        if hashlib.sha256(content).hexdigest() != hash
    ]
    return [*differences("source", recorded, hashes(sources(p4src))), *edited]


def _controlled(tables: dict[str, Any]) -> str:
    """Return the tables of ``bf-rt.json`` that the controller uses, one a line."""
    kept = [
        {key: table[key] for key in _SAID if key in table}
        for table in tables["tables"]
        if table["table_type"] in _CONTROLLED and "ConstTable" not in table.get("attributes", ())
        # One without a key has no entries.
        if table["key"]
    ]
    lines = (json.dumps(_without_notes(table), separators=(",", ":")) for table in kept)
    return '{"tables":[\n' + ",\n".join(lines) + "\n]}\n"


def _without_notes(value: Any) -> Any:
    """Return JSON without annotations."""
    if isinstance(value, dict):
        return {key: _without_notes(one) for key, one in value.items() if key != "annotations"}
    return [_without_notes(one) for one in value] if isinstance(value, list) else value


def keep(out: Path, folder: Path) -> None:
    """Copy what bf_switchd loads from a build to ``folder``, and write the .conf that names it."""
    folder = folder.resolve()
    pipe = folder / PROGRAM / "pipe"
    pipe.mkdir(parents=True, exist_ok=True)
    shutil.copy(out / "bf-rt.json", pipe.parent)
    for name in ("context.json", "tofino.bin"):
        shutil.copy(out / "asm" / name, pipe)
    chip = {
        "id": "asic-0",
        "chip_family": "Tofino",
        "instance": 0,
        "pcie_sysfs_prefix": "/sys/devices/pci0000:00/0000:00:03.0/0000:05:00.0",
        "pcie_int_mode": 1,
        "sds_fw_path": "share/tofino_sds_fw/avago/firmware",
    }
    pipeline = {
        "p4_pipeline_name": "pipe",
        "context": str(pipe / "context.json"),
        "config": str(pipe / "tofino.bin"),
        "pipe_scope": [0, 1, 2, 3],
        "path": str(pipe.parent),
    }
    program = {
        "program-name": PROGRAM,
        "bfrt-config": str(pipe.parent / "bf-rt.json"),
        "p4_pipelines": [pipeline],
    }
    device = {"device-id": 0, "p4_programs": [program], "agent0": "lib/libpltfm_mgr.so"}
    conf = {"chip_list": [chip], "instance": 0, "p4_devices": [device]}
    (folder / f"{PROGRAM}.conf").write_text(json.dumps(conf, indent=4) + "\n")


def _run(command: list[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    said = _HARMLESS.sub("", done.stdout + done.stderr).strip()
    if done.returncode or said:
        raise BuildError(f"{command[0]} says of {command[-1]}:\n{said or f'exit status {done.returncode}'}")


def _stage(stage: dict[str, Any]) -> dict[str, Any]:
    """Return what is used in one stage, and of the stateful ALUs by which registers."""
    registers = sorted(
        {
            use["used_by"].removeprefix("WeirIngress.")
            for alu in stage["meter_alus"]["meters"]
            for use in alu["usages"]
        }
    )
    return {
        "srams": len(stage["rams"]["srams"]),
        "tcams": len(stage["tcams"]["tcams"]),
        "stateful_alus": len(stage["meter_alus"]["meters"]),
        "logical_tables": len(stage["logical_tables"]["ids"]),
        "vliw": len(stage["vliw"]["instructions"]),
        "hash_bits": len(stage["hash_bits"]["bits"]),
        "registers": registers,
    }


def _containers(phv: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return how many containers are used, of each kind and width."""
    found: dict[str, Counter[int]] = {kind: Counter() for kind in CONTAINERS}
    for container in phv["containers"]:
        if container["slices"]:
            found[container["container_type"]][container["bit_width"]] += 1
    return {kind: {str(width): counts[width] for width in CONTAINERS[kind]} for kind, counts in found.items()}


def _version() -> str:
    done = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"Version\s+(\S+)", done.stdout + done.stderr)
    return found[1] if found else done.stdout.strip()


def main() -> None:
    """Compile, or check with ``--check``: the command line."""
    parser = argparse.ArgumentParser(description="Compile the program for Tofino and write its report.")
    parser.add_argument("--check", action="store_true", help="exit 1 when the report is of other sources")
    parser.add_argument("--out", type=Path, help="folder for the files that bf_switchd loads")
    options = parser.parse_args()
    if options.check:
        if lines := stale():
            sys.exit(f"{REPORT} is stale:\n" + "\n".join(f"  {line}" for line in lines))
        return
    try:
        report, schema, assembly = build(folder=options.out)
    except BuildError as error:
        sys.exit(str(error))
    REPORT.write_text(json.dumps(report, indent=1) + "\n")
    SCHEMA.write_text(schema)
    ASSEMBLY.write_bytes(gzip.compress(assembly.encode(), mtime=0))


if __name__ == "__main__":
    main()
