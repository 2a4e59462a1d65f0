# SPDX-License-Identifier: Apache-2.0
"""P4Runtime to real switches: what is written is read back, and what is refused is reported with a "
"message."""

import socket
import time
from collections.abc import Iterator

import pytest

from tests.controller.helpers import job, until
from tests.harness.switch_process import SwitchProcess
from weir.controller.desired import desired_state
from weir.controller.entries import SwitchState
from weir.controller.program import load_program
from weir.controller.qos import Loss, Qos
from weir.controller.switch_client import SwitchClient, SwitchError
from weir.controller.sync import plan
from weir.controller.tables import admission, queueing, results, spraying
from weir.controller.tables.events import COUNTERS
from weir.controller.topology import leaf_spine, single_switch
from weir.controller.wiring import Switch, SwitchTls
from weir.wire.definition import MAX_CHILDREN, Event, Treatment

PROGRAM = load_program("weir_v1model")


def election_id() -> int:
    """Return the id of a controller that starts now: above those of all before, and below those of all later
    ones, for the switch remembers it.
    """
    return time.time_ns() // 1_000_000


@pytest.fixture
def client(any_switch: SwitchProcess) -> Iterator[SwitchClient]:
    """Yield a session that holds the switch, which runs the program and is empty."""
    made = SwitchClient(Switch(name="s1", grpc=any_switch.address), election_id())
    made.ensure_program(PROGRAM)
    made.write(plan(made.read(), SwitchState()))
    yield made
    made.close()


def test_a_full_job_is_read_back_as_written_and_removed_again(client: SwitchClient) -> None:
    topology = single_switch(MAX_CHILDREN, client.switch.grpc)
    wanted = desired_state(
        topology, topology.switches[0], [job("big", topology, size=MAX_CHILDREN, job_id=1 << 31)]
    )
    client.write(plan(client.read(), wanted))
    assert client.read() == wanted
    client.write(plan(wanted, SwitchState()))
    assert client.read() == SwitchState()


def test_a_leaf_and_a_spine_are_read_back_as_written_whatever_changes(client: SwitchClient) -> None:
    """Ternary matches with priorities, prefixes, sprayed routes; a spine goes, settings change."""
    losses = (
        Loss(switch="leaf1", port=1, probability=0.5),
        Loss(switch="leaf1", port=1, dscp=8, probability=0.25),
        Loss(switch="leaf1", port=1, dscp=8, direction="ingress", probability=1),
    )
    racks = leaf_spine(2, 3, 2)
    busy = racks.model_copy(update={"qos": Qos(priorities=False, spray="least_loaded", losses=losses)})
    jobs = [job("wide", racks, size=4)]
    for switch in (racks.leaves[0], racks.spines[2]):
        steps = ((racks, None), (busy, None), (busy, ["spine2"]), (racks, ["spine1", "spine3"]))
        for topology, alive in steps:
            wanted = desired_state(topology, switch, jobs, alive)
            client.write(plan(client.read(), wanted))
            assert client.read() == wanted


def test_a_job_that_changes_is_modified(client: SwitchClient) -> None:
    topology = single_switch(4, client.switch.grpc)
    for size, base in ((2, 0), (4, 0), (3, 64)):
        wanted = desired_state(
            topology, topology.switches[0], [job("one", topology, size=size, slot_base=base)]
        )
        client.write(plan(client.read(), wanted))
        assert client.read() == wanted


def test_counters_cover_every_event_and_every_entry(client: SwitchClient) -> None:
    topology = leaf_spine(2, 2, 2)
    wanted = desired_state(topology, topology.switches[0], [job("one", topology, size=2)])
    client.write(plan(client.read(), wanted))
    for name in COUNTERS:
        assert len(client.read_counter(name)) >= len(Event)
    for name in queueing.PER_HOP_BEHAVIOURS:
        assert len(client.read_counter(name)) == len(Treatment) * queueing.QUEUES
    for table in (admission.WORKERS, results.RECEIVERS, queueing.CLASSES, spraying.PATHS):
        assert set(client.read_table_counts(table)) == {e for e in wanted.entries if e.table == table}


def test_a_refused_write_names_each_refused_update(client: SwitchClient) -> None:
    topology = single_switch(1, client.switch.grpc)
    wanted = desired_state(topology, topology.switches[0], [])
    (groups, entries) = plan(SwitchState(), wanted)
    client.write([groups, entries[:1]])
    with pytest.raises(SwitchError) as caught:
        client.write([entries])
    message = str(caught.value)
    assert message.startswith(f"switch s1 at {client.switch.grpc} refuses a write: insert WeirIngress.")
    assert "ALREADY_EXISTS" in message
    assert message.count("insert ") == 1


def test_a_program_is_pushed_only_when_the_switch_runs_another(client: SwitchClient) -> None:
    assert not client.ensure_program(PROGRAM)
    assert PROGRAM.slots == 1024


def test_the_controller_that_came_last_has_the_switch(client: SwitchClient) -> None:
    assert client.primary
    later = SwitchClient(client.switch, election_id())
    assert later.primary
    until(lambda: not client.primary)
    later.close()
    until(lambda: client.primary)


def test_who_is_not_primary_is_refused(client: SwitchClient) -> None:
    backup = SwitchClient(client.switch, 1)
    try:
        assert not backup.primary
        backup.ensure_program(PROGRAM)
        topology = single_switch(1, client.switch.grpc)
        with pytest.raises(SwitchError, match="refuses a write: PERMISSION_DENIED"):
            backup.write(plan(SwitchState(), desired_state(topology, topology.switches[0], [])))
    finally:
        backup.close()


def test_nobody_there() -> None:
    with pytest.raises(SwitchError, match=r"switch s1 at 127.0.0.1:1 cannot be reached: UNAVAILABLE"):
        SwitchClient(Switch(name="s1", grpc="127.0.0.1:1"), 1)


def test_somebody_there_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.controller.switch_client.HANDSHAKE_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SwitchError, match=f"switch s1 at {address} cannot be reached"):
            SwitchClient(Switch(name="s1", grpc=address), 1)


def test_a_certificate_that_is_not_there() -> None:
    switch = Switch(name="s1", grpc="127.0.0.1:1", tls=SwitchTls(ca="/nowhere/ca.pem"))
    with pytest.raises(SwitchError, match=r"cannot read /nowhere/ca.pem: No such file"):
        SwitchClient(switch, 1)
