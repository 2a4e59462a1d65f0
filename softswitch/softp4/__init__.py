# SPDX-License-Identifier: Apache-2.0
"""The soft switch: runs any v1model program, as BMv2's JSON has it, and serves P4Runtime.

`switch.Switch` is a program that runs, without ports; `device.Device` is a whole switch with ports and
servers, `serving` and `cli` start one. The rooms, from the bottom: `program`, `codegen`, `runtime`,
`state`, `tracing` and `dataplane`; on top of a `Switch`, `p4rt`; on top of a `Device`, `control`.
"""

import sys

if sys.platform != "linux":
    raise ImportError(
        f"softp4 runs on Linux only, not on {sys.platform}: use a virtual machine, a container or WSL 2"
    )
