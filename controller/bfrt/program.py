# SPDX-License-Identifier: Apache-2.0
"""The program for Tofino, as far as a client must know it.

It is not pushed: a binary comes from the owner's compiler, and ``bf_switchd`` loads it. What is checked in is
the part of p4c-barefoot's ``bf-rt.json`` that the controller uses, with which the switch's own is compared.
"""

from dataclasses import dataclass

from weir.controller.bfrt.schema import Schema
from weir.controller.program import ProgramError
from weir.controller.tables import tofino
from weir.controller.wiring import BFRT_PROGRAM
from weir.p4src import BUILD

_VERSIONS = 2  # cells per slot


@dataclass(frozen=True)
class TofinoProgram:
    """The program: its name at the switch, its tables, and how many slots it has."""

    name: str
    schema: Schema
    slots: int


def load_tofino_program() -> TofinoProgram:
    """Read the program's tables.

    Raises:
        ProgramError: they cannot be read.
    """
    path = BUILD.parent / "tna" / "bfrt.json"
    try:
        schema = Schema.parse(path.read_bytes())
        cells = schema.table(tofino.CELLS).size
    except (OSError, ValueError, LookupError) as error:
        raise ProgramError(f"cannot read {path}: {error}; python p4src/build_tna.py makes it") from None
    return TofinoProgram(BFRT_PROGRAM, schema, cells // _VERSIONS)
