# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.conformance DIR`` runs p4c's tests in DIR (its testdata/p4_16_samples) on both switches.

Needs p4c-bm2-ss on PATH, and simple_switch_grpc for BMv2. Prints what did not pass, and writes it.
"""

import argparse
import fnmatch
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.conformance.cases import Case, NotCompiledError, compile_case, find
from tests.conformance.report import Row, as_json, as_markdown
from tests.conformance.run import run
from tests.conformance.switches import SWITCHES


def rows(cases: Sequence[Case], switches: Sequence[str]) -> Iterator[Row]:
    """Compile and run each case."""
    with tempfile.TemporaryDirectory(prefix="softp4-conformance-") as scratch:
        for case in cases:
            try:
                compiled = compile_case(case, Path(scratch, case.name))
            except NotCompiledError as error:
                yield Row(case.name, str(error), {})
                continue
            yield Row(case.name, None, {switch: run(case, compiled, switch) for switch in switches})


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.conformance")
    parser.add_argument("folder", type=Path, metavar="DIR", help="p4c's testdata/p4_16_samples")
    parser.add_argument("--switch", choices=sorted(SWITCHES), help="only this one")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only cases with such names")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write table and outcomes there")
    options = parser.parse_args()
    switches = [options.switch] if options.switch else list(SWITCHES)
    if not shutil.which("p4c-bm2-ss"):
        sys.exit("needs p4c-bm2-ss on PATH")
    if "bmv2" in switches and not shutil.which("simple_switch_grpc"):
        sys.exit("needs simple_switch_grpc on PATH (or --switch soft)")
    cases = [case for case in find(options.folder) if fnmatch.fnmatch(case.name, options.only)]
    if not cases:
        sys.exit(f"no tests of v1model programs under {options.folder}")
    made = []
    for number, row in enumerate(rows(cases, switches), 1):
        made.append(row)
        verdicts = [f"{switch} {outcome.verdict.value}" for switch, outcome in row.outcomes.items()]
        print(f"{number}/{len(cases)} {row.case}: {', '.join(verdicts) or 'not compiled'}", file=sys.stderr)
    print(as_markdown(made), end="")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "conformance.md").write_text(as_markdown(made))
        (options.out / "conformance.json").write_text(as_json(made))


if __name__ == "__main__":
    main()
