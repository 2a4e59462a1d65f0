# SPDX-License-Identifier: Apache-2.0
"""The choice between workers that share memory with the switch, and hosts in network namespaces."""

import os

from weir.netns import gain_root
from weir.train.config import ConfigError


def choose_hosts(wanted: str) -> tuple[str, str]:
    """Return the kind of hosts to train on, and a remark for the user, mostly empty.

    Call it before anything is started: where namespaces need a user namespace, this program starts again in
    one, and the call does not return.

    Args:
        wanted: "processes", "namespaces", or "auto": namespaces where they are to be had.

    Raises:
        ConfigError: there are no namespaces to be had, and nothing else would do.
    """
    if wanted not in ("auto", "namespaces"):
        return wanted, ""
    if "RANK" in os.environ:
        raise ConfigError(f"--hosts {wanted}: this worker (RANK is set) is on a host already")
    reason = gain_root()
    if reason is None:
        return "namespaces", ""
    if wanted == "namespaces":
        raise ConfigError(f"--hosts namespaces: {reason}")
    return "processes", (
        f"No network namespaces here: {reason}.\n"
        "So the workers share memory with the switch, whose ports keep to the links' rate, and Gloo runs "
        "over loopback at any rate: compare accuracy and bytes, not times."
    )
