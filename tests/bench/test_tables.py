# SPDX-License-Identifier: Apache-2.0
"""Large tables: on sizes too small to say anything."""

import pytest

from softp4.switch import Switch
from tests.programs import compiled
from weir.bench.switch.rate import PROGRAM
from weir.bench.switch.rules import PORTS, filtered, filters, routed, routes
from weir.bench.switch.tables import (
    ACL,
    LENGTH,
    P4,
    ROUTER,
    Lookups,
    compare,
    declared_bytes,
    held_bytes,
)


@pytest.mark.p4c
@pytest.mark.parametrize("name", ["router", "acl", "flows"])
def test_compiled_programs_are_current(name: str) -> None:
    """They are compiled as those of softswitch/tests/p4 are."""
    assert compiled(name, P4)[f"{name}.json"] == (P4 / f"{name}.json").read_text()


def test_every_packet_meets_its_entry() -> None:
    """So that no lookup that is timed is a cheap miss."""
    entries = routes(200, 1)
    packets = routed(entries, 300, 2)
    with Switch(ROUTER.program) as switch:
        for entry in entries:
            switch.table(ROUTER.table).insert(entry)
        for packet in packets:
            ((port, frame),) = switch.process(1, packet.frame(LENGTH), 0)
            assert 0 <= port < PORTS
            assert frame[22] == 63, "the TTL"
            assert sum(int.from_bytes(frame[at : at + 2], "big") for at in range(14, 34, 2)) % 0xFFFF == 0
    rules = filters(200, 1)
    with Switch(ACL.program) as switch:
        for entry in rules:
            switch.table(ACL.table).insert(entry)
        for packet in filtered(rules, 300, 2):
            assert len(switch.process(1, packet.frame(LENGTH), 0)) == 1


@pytest.mark.simple_switch
@pytest.mark.parametrize("case", [ROUTER, ACL], ids=["router", "acl"])
def test_bmv2_takes_part(case: Lookups) -> None:
    rates = compare(case, 30, 5000, repeats=1)
    assert {name: len(found) for name, found in rates.items()} == {"soft switch": 1, "BMv2": 1}
    assert min(rates["soft switch"] + rates["BMv2"]) > 0, "frames left both"


def test_what_weirs_program_declares_is_a_part_of_what_the_switch_holds() -> None:
    assert 1 << 20 < declared_bytes(PROGRAM) < held_bytes(PROGRAM)["RssAnon"]
