# SPDX-License-Identifier: Apache-2.0
"""A device's ports and its programs: groups avoid members whose port is down, whichever program runs."""

from collections.abc import Iterator

import pytest

from softp4.dataplane.port_spec import Pcap, PortSpec
from softp4.dataplane.ports import PortError
from softp4.device import Device
from tests.p4rt.p4rt_client import TIMEOUT, Controller
from tests.p4rt.test_p4rt_action_profiles import INFO, PROGRAM, entry, one_shot
from tests.programs import unpack
from tests.state.test_action_profiles import CHOSEN, frame

_ASKS, _WATCHED = 3, 5  # the program answers at port 3


@pytest.fixture
def device(device: Device) -> Iterator[Device]:
    device.loop.add_queue(_ASKS, "asks")
    device.add_port(PortSpec(_WATCHED, Pcap(None, None)))
    return device


@pytest.fixture
def controller(device: Device, empty: Controller) -> Controller:
    push(empty)
    return empty


def push(controller: Controller) -> None:
    """The program, with one entry: 1 while port 5 works, or 2."""
    controller.push(PROGRAM, INFO)
    update = entry("INSERT", "chosen", 0, action_profile_action_set=one_shot([(1, 1), (2, 1)]))
    actions = update.entity.table_entry.action.action_profile_action_set.action_profile_actions
    actions[0].watch_port = bytes([_WATCHED])
    controller.session.write([update])


def answers(device: Device) -> set[int]:
    """Return what the program says to 16 frames of different hashes."""
    found = set()
    for port in range(16):
        device.loop.inject(_ASKS, frame(CHOSEN, port=port))
        answer = device.loop.receive(_ASKS, TIMEOUT)
        assert answer is not None
        found.add(unpack(answer, (8, 8, 32, 128))[2])
    return found


def test_a_port_that_goes_down_up_or_away_moves_what_watches_it(
    device: Device, controller: Controller
) -> None:
    assert answers(device) == {1, 2}
    device.set_port_up(_WATCHED, False)
    assert answers(device) == {2}
    device.set_port_up(_WATCHED, True)
    assert answers(device) == {1, 2}
    device.remove_port(_WATCHED)
    assert answers(device) == {2}
    device.add_port(PortSpec(_WATCHED, Pcap(None, None)))
    assert answers(device) == {1, 2}


def test_a_program_that_follows_knows_which_ports_are_down(device: Device, controller: Controller) -> None:
    device.set_port_up(_WATCHED, False)
    push(controller)
    assert answers(device) == {2}
    device.set_port_up(_WATCHED, True)
    assert answers(device) == {1, 2}


def test_a_port_that_is_not_there_has_no_state(device: Device, controller: Controller) -> None:
    with pytest.raises(PortError, match="there is no such port: 9"):
        device.set_port_up(9, False)
    with pytest.raises(PortError, match="port 510 leads to the controller"):
        device.remove_port(510)
    assert answers(device) == {1, 2}
