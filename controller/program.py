# SPDX-License-Identifier: Apache-2.0
"""A compiled P4 program as the controller pushes it: what p4c made, checked against its sources.

``p4src/build/<name>.json`` (BMv2 JSON) and ``<name>.p4info.txtpb`` (P4Info). Where the manifest beside them
says that the sources are others by now, pushing them would program a switch with something other than what
the reader of the sources sees: that is refused.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from softp4.p4runtime.schema import p4info_pb2
from weir.p4src import BUILD
from weir.p4src.manifest import stale

SLOT_REGISTER = "WeirIngress.slots.owners"
VERSIONS = 2  # cells per slot


class ProgramError(Exception):
    """A compiled program that is missing, unreadable or stale. The message says which file and what to do."""


@dataclass(frozen=True)
class CompiledProgram:
    """The program as a switch is given it: P4Info, the target's own configuration, and a cookie that names
    the pair.
    """

    name: str
    serialized_p4info: bytes
    device_config: bytes
    cookie: int
    slots: int

    @property
    def p4info(self) -> Any:
        """Return the P4Info, the caller's own: switches have threads, and protobuf's messages are not to be
        shared among any.
        """
        return p4info_pb2.P4Info.FromString(self.serialized_p4info)


def load_program(name: str, directory: Path | None = None) -> CompiledProgram:
    """Read a compiled program.

    Args:
        name: as in the topology, e.g. ``weir_v1model``.
        directory: what p4c's output was written to; this installation's own if None.

    Raises:
        ProgramError: a file is missing or unreadable, or the manifest does not match.
    """
    directory = directory or BUILD
    json_path, info_path = directory / f"{name}.json", directory / f"{name}.p4info.txtpb"
    try:
        device_config, info = json_path.read_bytes(), info_path.read_bytes()
    except OSError as error:
        raise ProgramError(
            f"cannot read compiled P4 program {error.filename}: {error.strerror}; compile it with "
            f"'python p4src/build.py', or say where it is with --p4-dir"
        ) from None
    if problems := stale(directory, [name]):
        raise ProgramError(
            f"compiled P4 program {name} is stale: {'; '.join(problems)}; run 'python p4src/build.py' again"
        )
    p4info = p4info_pb2.P4Info()
    try:
        text_format.Parse(info.decode(), p4info, allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise ProgramError(f"{info_path} is not a P4Info text file: {error}") from None
    digest = hashlib.sha256(device_config + info).digest()
    return CompiledProgram(
        name=name,
        serialized_p4info=p4info.SerializeToString(),
        device_config=device_config,
        cookie=int.from_bytes(digest[:8], "big") or 1,
        slots=_slots(p4info, info_path),
    )


def _slots(p4info: Any, path: Path) -> int:
    for register in p4info.registers:
        if register.preamble.name == SLOT_REGISTER:
            return int(register.size) // VERSIONS
    raise ProgramError(f"{path} has no register {SLOT_REGISTER}: it is not a Weir program")
