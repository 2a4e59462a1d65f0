# SPDX-License-Identifier: Apache-2.0
"""Jobs leave a lost spine in two steps, so that at no moment two spines could end the same round."""

from hypothesis import given
from hypothesis import strategies as st

from tests.controller.helpers import job
from weir.controller.desired import desired_state
from weir.controller.entries import SwitchState
from weir.controller.failover import Failover
from weir.controller.jobs import Job
from weir.controller.qos import Qos
from weir.controller.tables import admission, tree
from weir.controller.topology import leaf_spine, leaf_spine_core

SPINES = ("spine1", "spine2", "spine3")
RACKS = leaf_spine(2, 3, 1)
LEAVES = ("leaf1", "leaf2")


def wide() -> Job:
    return job("wide", RACKS, size=2)


def test_first_nobody_hears_the_spine_then_nobody_sends_to_it() -> None:
    running, failover = wide(), Failover()
    failover.update([running], SPINES, RACKS)
    assert running.parents == running.uplinks == set(SPINES)
    assert failover.fence({"spine1", "spine3"})
    failover.fenced({"leaf1": 7, "leaf2": 4}.__getitem__)
    assert (running.parents, running.uplinks) == ({"spine1", "spine3"}, set(SPINES))
    assert not failover.fence({"spine1", "spine3"})
    assert failover.move(lambda leaf, version: leaf == "leaf1" and version <= 7) == []
    assert running.uplinks == set(SPINES)
    assert failover.move(lambda leaf, version: {"leaf1": 7, "leaf2": 4}[leaf] >= version) == [running]
    assert running.uplinks == {"spine1", "spine3"}
    assert failover.move(lambda _leaf, _version: True) == []


def test_a_spine_that_is_back_is_for_new_jobs_only() -> None:
    old, new, failover = wide(), wide(), Failover()
    failover.update([old], SPINES, RACKS)
    failover.fence({"spine2"})
    failover.fenced(lambda _leaf: 1)
    failover.move(lambda _leaf, _version: True)
    assert not failover.fence(SPINES)
    new.id = 2
    failover.update([old, new], SPINES, RACKS)
    assert old.parents == old.uplinks == {"spine2"}
    assert new.parents == set(SPINES)


def test_the_last_spine_is_kept_until_another_one_of_the_jobs_is_back() -> None:
    running, failover = wide(), Failover()
    failover.update([running], ["spine1", "spine2"], RACKS)
    assert not failover.fence(["spine3"])
    assert not failover.fence([])
    assert failover.fence(["spine2", "spine3"])
    assert running.parents == {"spine2"}
    assert not failover.fence(["spine1"])


def test_where_paths_are_hashed_a_job_has_one_spine_by_its_name() -> None:
    hashed, used = RACKS.model_copy(update={"qos": Qos(spray="hash")}), set()
    for number in range(20):
        running, failover = job(f"job-{number * number:x}", RACKS, size=2), Failover()
        failover.update([running], ["spine1", "spine3"], hashed)
        assert running.parents is not None and len(running.parents) == 1
        assert running.parents == running.uplinks <= {"spine1", "spine3"}
        used |= running.parents
    assert used == {"spine1", "spine3"}


def test_a_job_within_a_rack_has_no_spines() -> None:
    home, failover = job("home", RACKS, size=1), Failover()
    failover.update([home], SPINES, RACKS)
    assert home.parents is None
    assert not failover.fence(["spine1"])


def test_a_job_that_was_taken_over_between_the_steps_takes_the_second_one() -> None:
    running, failover = wide(), Failover()
    running.parents, running.uplinks = frozenset({"spine1"}), frozenset({"spine1", "spine2"})
    failover.update([running], SPINES, RACKS)
    failover.fenced(lambda _leaf: 1)
    assert failover.move(lambda _leaf, _version: True) == [running]
    assert running.uplinks == {"spine1"}


def test_a_core_is_left_once_no_spine_hears_it() -> None:
    pods = leaf_spine_core(2, 1, 2, 2, 1)
    running, failover = job("pods", pods, size=2), Failover()
    every = {"spine1", "spine2", "spine3", "spine4", "core1", "core2"}
    failover.update([running], every, pods)
    assert running.parents == every
    failover.fence(every - {"core1"})
    failover.fenced(lambda _switch: 1)
    for late in ("leaf2", "spine3"):
        assert failover.move(lambda switch, _version, late=late: switch != late) == []
    assert running.uplinks == every
    assert failover.move(lambda _switch, _version: True) == [running]
    assert running.uplinks == every - {"core1"}
    assert not failover.fence({"spine3", "spine4"})  # of each kind the last ones are kept
    assert failover.fence({"spine1", "spine3", "spine4"})
    assert running.parents == every - {"core1", "spine2"}


_STEPS = st.lists(
    st.one_of(
        st.sets(st.sampled_from(SPINES)).map(lambda alive: ("alive", alive)),
        st.sampled_from(LEAVES).map(lambda leaf: ("written", leaf)),
        st.just(("look", None)),
    ),
    max_size=40,
)


@given(_STEPS)
def test_no_slot_ever_has_two_spines_that_leaves_hear(steps: list[tuple[str, object]]) -> None:
    """Switches are written at any time, in any order; a spine may live on though it is given up.

    Once one leaf sends a class of slots to a spine, no leaf accepts results from a spine that any leaf sent
    them to before.
    """
    running, failover, alive = wide(), Failover(), frozenset(SPINES)
    failover.update([running], alive, RACKS)
    by_name = {switch.name: switch for switch in RACKS.switches}
    wanted: dict[str, list[SwitchState]] = {leaf: [] for leaf in LEAVES}
    held: dict[str, int] = {}

    def want() -> None:
        for leaf in LEAVES:
            state = desired_state(RACKS, by_name[leaf], [running], alive)
            if not wanted[leaf] or wanted[leaf][-1] != state:
                wanted[leaf].append(state)

    want()
    held = dict.fromkeys(LEAVES, 0)
    former: dict[int, set[int]] = {c: set() for c in range(16)}  # ports that a class was sent to and left
    now = {leaf: _ports(wanted[leaf][0]) for leaf in LEAVES}
    for step, what in steps:
        if step == "alive":
            alive = frozenset(what)  # type: ignore[call-overload]
        elif step == "written":
            held[str(what)] = len(wanted[str(what)]) - 1
        else:
            if failover.fence(alive):
                want()
            failover.fenced(lambda leaf: len(wanted[leaf]) - 1)
            if failover.move(lambda leaf, version: held[leaf] >= version):
                want()
        for leaf in LEAVES:
            ports = _ports(wanted[leaf][held[leaf]])
            for c in range(16):
                if ports[c] != now[leaf][c]:
                    former[c].add(now[leaf][c])
            now[leaf] = ports
        for leaf in LEAVES:
            holds = wanted[leaf][held[leaf]].entries
            accepted = {dict(entry.match)["port"] for entry in holds if entry.table == admission.PARENTS}
            assert accepted
            for c in range(16):
                assert not accepted & former[c]


def _ports(state: SwitchState) -> dict[int, int]:
    """Return where a leaf sends each class of slots."""
    return {
        int(str(dict(entry.match)["spine_class"])): dict(entry.params)["port"]
        for entry in state.entries
        if entry.table == tree.UPLINKS
    }
