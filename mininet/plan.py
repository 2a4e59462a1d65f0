# SPDX-License-Identifier: Apache-2.0
"""``plan.py JSON``: names everything of a network, as JSON, for the scripts of this folder.

They run under the system's Python, which has Mininet; this file under Weir's own, which knows topologies. A
network that cannot be is refused with exit status 2 and a sentence.
"""

import json
import sys

from softp4.runtime.queueing import parse_rate
from weir.controller.topology import TopologyError
from weir.network import NetworkSpec, Shape, incast, make_plan


def main() -> None:
    """Read the wish, print the plan."""
    wish = json.loads(sys.argv[1])
    try:
        spec = NetworkSpec(
            shape=Shape(wish["racks"], wish["spines"]),
            rate_bps=parse_rate(wish["rate"]) if wish["rate"] else None,
            loss=wish["loss"],
            background="incast" if wish["background_load"] else "none",
            load=wish["background_load"] or NetworkSpec.load,
        )
        folder, target = wish["folder"], wish["switch"]
        plan = make_plan(
            spec, wish["hosts"] * wish["racks"], grpc=lambda name: f"unix:{folder}/{name}.sock", target=target
        )
    except (ValueError, TopologyError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    traffic = {host.name: incast(plan, only=host.name) for host in plan.background}
    made = {
        "topology": plan.topology.model_dump(mode="json", exclude_none=True),
        "workers": [host.model_dump(mode="json", exclude_none=True) for host in plan.workers],
        "background": {name: own.model_dump_json() for name, own in traffic.items() if own is not None},
        "rate_bps": spec.rate_bps,
        "depth": spec.depth,
        "port_options": spec.port_options,
    }
    print(json.dumps(made))


if __name__ == "__main__":
    main()
