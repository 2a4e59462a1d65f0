# SPDX-License-Identifier: Apache-2.0
"""The limits of the fields of agents' requests, and of the words that go back to them. No I/O."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from google.protobuf.message import DecodeError

from weir.controller.jobs import JobError, Refusal
from weir.controller.wiring import NAME

MOST_REQUEST_BYTES: Final = 1 << 16
MOST_NAME: Final = 128  # characters of a job's name
MOST_ADDRESS: Final = 45
MOST_PROCESS: Final = 64
MOST_TOKEN: Final = 256
MOST_RANKS: Final = 4096  # that one worker stands for
MOST_PAGE_TOKEN: Final = 64
LONGEST_WAIT_S: Final = 86_400.0  # that a join may ask for: until then its job keeps its name
MOST_WORDS: Final = 1500  # characters of a refusal: gRPC carries 8 kB, and three bytes for some of them
_QUOTED: Final = 40

_LOCAL: Final = "this machine"


@dataclass(frozen=True)
class Junk:
    """Bytes that are no request, this many of them."""

    size: int


def parsed(message: Any, data: bytes) -> Any:
    """Return a request, or Junk."""
    try:
        return message.FromString(data)
    except (DecodeError, UnicodeDecodeError, ValueError):
        return Junk(len(data))


def check_join(request: Any) -> None:
    """Raise JobError for a JoinRequest with a field that no job can have, whatever the topology."""
    _name("job", request.job, MOST_NAME)
    if request.host and not re.fullmatch(NAME, request.host):
        raise _refusal(
            f"host {_quoted(request.host)} is not a valid host name: use 1 to 63 letters, digits, '_', '.' "
            f"and '-'"
        )
    _name("ip", request.ip, MOST_ADDRESS)
    _name("process", request.process, MOST_PROCESS)
    check_token(request)
    if len(request.ranks) > MOST_RANKS:
        raise _refusal(f"{len(request.ranks)} ranks in one worker: there may be {MOST_RANKS}")
    if not (0 <= request.timeout_s <= LONGEST_WAIT_S):
        raise _refusal(
            f"timeout_s {request.timeout_s:g}: a join waits 0 (the controller's own time) to "
            f"{LONGEST_WAIT_S:.0f} seconds"
        )


def check_token(request: Any) -> None:
    """Raise JobError for a token that is too long."""
    if len(request.token) > MOST_TOKEN:
        raise _refusal(f"the token has {len(request.token)} characters; the limit is {MOST_TOKEN}")


def shortened(words: str, most: int = MOST_WORDS) -> str:
    """Return words that are short enough, for a status or so: of long ones, the beginning and the end."""
    if len(words) <= most:
        return words
    head, tail = words[: most * 2 // 3], words[-most // 4 :]
    return f"{head} ... ({len(words) - len(head) - len(tail)} characters left out) ... {tail}"


def address_of(peer: str) -> str:
    """Return the address of gRPC's ``peer``, without its port; of IPv6, the /64 that it is in.

    A machine can send to itself from all of 127.0.0.0/8.
    """
    kind, _, place = unquote(peer).partition(":")
    if kind == "ipv4":
        host = place.rpartition(":")[0]
        return "127.0.0.1" if host.startswith("127.") else host
    if kind == "ipv6":
        host = place.rpartition(":")[0].strip("[]").partition("%")[0]
        try:
            return str(ipaddress.IPv6Network(f"{host}/64", strict=False))
        except ValueError:
            return host
    return _LOCAL


def _name(what: str, text: str, most: int) -> None:
    if len(text) > most:
        raise _refusal(f"{what} {_quoted(text)} has {len(text)} characters; the limit is {most}")
    if not text.isprintable():
        raise _refusal(f"{what} {_quoted(text)} has characters that cannot be printed")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "...")


def _refusal(words: str) -> JobError:
    return JobError(Refusal.INVALID, words)
