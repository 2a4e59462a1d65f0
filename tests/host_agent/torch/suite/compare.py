# SPDX-License-Identifier: Apache-2.0
"""Run torch's tests on Gloo, on Weir or on both, and print what becomes of each.

python -m tests.host_agent.torch.suite.compare [--backend gloo] [--matching PATTERN] [--files]
"""

import argparse
import re

import weir
from tests.host_agent.torch.suite import pytorch_files, ranks
from tests.host_agent.torch.suite.ranks import PASSED, SIZE, SKIPPED, Ranks


def main() -> None:
    """Print a line a test and backend: seconds, backend, outcome, name, and the error's last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", action="append", choices=["gloo", "weir"])
    parser.add_argument("--matching", default="")
    parser.add_argument("--files", action="store_true", help="the tests in the folder WEIR_PYTORCH_TESTS")
    options = parser.parse_args()
    suite = pytorch_files if options.files else ranks
    chosen = [name for name in suite.names() if re.search(options.matching, name)]
    for backend in options.backend or ["gloo", "weir"]:
        with weir.local_cluster(workers=2 * SIZE) as cluster:
            four = Ranks(backend, cluster.environment, suite.run_here)
            for name in chosen:
                found = four.run(name)
                why = "" if found.state in (PASSED, SKIPPED) else f": {found.last_line}"
                print(f"{found.seconds:6.1f} {backend} {found.state} {name}{why}", flush=True)
            four.close()


if __name__ == "__main__":
    main()
