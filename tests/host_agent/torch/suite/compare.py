# SPDX-License-Identifier: Apache-2.0
"""Run torch's tests on Gloo, on Weir or on both, and print what becomes of each.

python -m tests.host_agent.torch.suite.compare [--backend gloo] [--matching PATTERN]
"""

import argparse
import re

import weir
from tests.host_agent.torch.suite.ranks import PASSED, SIZE, SKIPPED, Ranks, names


def main() -> None:
    """Print a line a test and backend: seconds, backend, outcome, name, and the error's last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", action="append", choices=["gloo", "weir"])
    parser.add_argument("--matching", default="")
    options = parser.parse_args()
    chosen = [name for name in names() if re.search(options.matching, name)]
    for backend in options.backend or ["gloo", "weir"]:
        with weir.local_cluster(workers=2 * SIZE) as cluster:
            ranks = Ranks(backend, cluster.environment)
            for name in chosen:
                found = ranks.run(name)
                why = "" if found.state in (PASSED, SKIPPED) else f": {found.last_line}"
                print(f"{found.seconds:6.1f} {backend} {found.state} {name}{why}", flush=True)
            ranks.close()


if __name__ == "__main__":
    main()
