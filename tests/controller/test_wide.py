# SPDX-License-Identifier: Apache-2.0
"""Which jobs may send wide packets: those whose every switch and way takes them."""

import pytest
from pydantic import ValidationError

from weir.controller.topology import Topology, leaf_spine, single_switch
from weir.controller.wiring import WIDE_BYTES, WIDE_PROGRAM, Switch


def rack(shm: str | None = "/dev/shm/s1", *, wide: bool = True, mtu: int = 1500) -> Topology:
    made = single_switch(3, "127.0.0.1:1", shm, target="soft", wide=wide)
    return Topology.model_validate({**made.model_dump(), "mtu": mtu})


def test_shared_memory_takes_them_and_links_by_their_mtu() -> None:
    for topology, expected in [
        (rack(), True),
        (rack(wide=False), False),
        (rack(None), False),
        (rack(None, mtu=WIDE_BYTES - 1), False),
        (rack(None, mtu=WIDE_BYTES), True),
        (rack(None, mtu=9000, wide=False), False),
    ]:
        assert topology.wide(topology.hosts) is expected


def test_one_host_without_shared_memory_is_on_a_link() -> None:
    topology = rack()
    hosts = (*topology.hosts[:2], topology.hosts[2].model_copy(update={"shm": None}))
    assert topology.wide(hosts[:2])
    assert not topology.wide(hosts)


def test_between_racks_every_switch_and_link_counts() -> None:
    made = leaf_spine(2, 1, 2, grpc=lambda name: f"unix:/{name}", shm=lambda name: f"/{name}", target="soft")

    def racks(mtu: int, *programs: str) -> Topology:
        switches = tuple(
            switch.model_copy(update={"program": program})
            for switch, program in zip(made.switches, programs, strict=True)
        )
        return Topology.model_validate({**made.model_dump(), "switches": switches, "mtu": mtu})

    every = (WIDE_PROGRAM,) * 3
    assert racks(9000, *every).wide(made.hosts)
    assert not racks(1500, *every).wide(made.hosts)
    assert not racks(9000, *every[:2], "weir_v1model").wide(made.hosts)


@pytest.mark.parametrize("target", ["bmv2", "tofino"])
def test_the_program_is_for_the_soft_switch(target: str) -> None:
    with pytest.raises(ValidationError, match="program weir_v1model_wide is for target soft, not"):
        Switch.model_validate(
            {"name": "s1", "grpc": "127.0.0.1:1", "program": WIDE_PROGRAM, "target": target}
        )
