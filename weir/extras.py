# SPDX-License-Identifier: Apache-2.0
"""The packages that a plain ``pip install weir-ina`` lacks, and the extra that brings each."""

import importlib.util
from typing import Final

_BRINGS: Final = {
    "train": ("sklearn", "matplotlib", "scapy", "pyroute2"),
}


class MissingExtraError(RuntimeError):
    """Packages of an extra are not installed; the message says how to install them."""


def require(what: str, *extras: str) -> None:
    """Raise MissingExtraError, in the name of ``what``, unless these extras are installed."""
    missing = [
        extra for extra in extras if any(importlib.util.find_spec(name) is None for name in _BRINGS[extra])
    ]
    if missing:
        raise MissingExtraError(
            f"{what} needs additional packages: pip install 'weir-ina[{','.join(missing)}]'"
        )
