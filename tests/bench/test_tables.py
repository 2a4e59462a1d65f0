# SPDX-License-Identifier: Apache-2.0
"""Memory of a switch with Weir's program."""

from weir.bench.switch.tables import declared_bytes, held_bytes
from weir.p4src import PROGRAM


def test_what_weirs_program_declares_is_a_part_of_what_the_switch_holds() -> None:
    assert 1 << 20 < declared_bytes(PROGRAM) < held_bytes(PROGRAM)["RssAnon"]
