# SPDX-License-Identifier: Apache-2.0
"""Makes calls to a running switch."""

import json
import os
import socket
from pathlib import Path
from typing import Any, Final

from softp4.native.json_text import parse_object
from softp4.native.ownership import is_trusted_user, peer, user_name

_TIMEOUT: Final = 30.0  # seconds


class CallFailedError(Exception):
    """The switch refused a call, or cannot be reached. The message says why."""


def call(path: Path, name: str, **arguments: Any) -> Any:
    """Make one call over a connection of its own and return the answer. Raises CallFailedError."""
    request = json.dumps({"call": name, "args": arguments}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(os.fspath(path))
            if not is_trusted_user(served_by := peer(connection)):
                raise CallFailedError(f"{path} is served by {user_name(served_by)}: nothing was sent there")
            connection.sendall(request)
            with connection.makefile("rb") as stream:
                answer = stream.readline()
    except OSError as error:
        raise CallFailedError(f"no switch answers at {path}: {error.strerror or error}") from error
    if not answer.endswith(b"\n"):
        raise CallFailedError(f"the switch at {path} ended the connection")
    try:
        found = parse_object(answer)
        if "error" in found:
            raise CallFailedError(str(found["error"]))
        return found["result"]
    except (ValueError, KeyError) as error:
        raise CallFailedError(f"the process at {path} is not a switch of this version: {error}") from None
