# SPDX-License-Identifier: Apache-2.0
"""The plan leads from any state to any other, by writes a switch accepts, through safe states only."""

from hypothesis import given
from hypothesis import strategies as st

from tests.controller.helpers import job
from weir.controller.desired import desired_state
from weir.controller.entries import Replica, SwitchState, TableEntry, Ternary
from weir.controller.sync import Batch, EntryUpdate, Verb, plan
from weir.controller.tables import TABLES, admission, results, spraying, tree
from weir.controller.topology import leaf_spine, single_switch
from weir.wire.definition import SPINE_CLASSES

_ENTRIES = st.builds(
    lambda table, key, value, priority: TableEntry(
        table, (("key", key),), "action", (("value", value),), priority
    ),
    st.sampled_from(TABLES),
    st.integers(0, 5) | st.builds(Ternary, st.just(4), st.sampled_from([4, 5])),
    st.integers(0, 2),
    st.integers(0, 2),
)
_STATES = st.builds(
    lambda entries, groups: SwitchState(frozenset({e.key: e for e in entries}.values()), groups),
    st.lists(_ENTRIES, max_size=25),
    st.dictionaries(
        st.integers(1, 4), st.frozensets(st.builds(Replica, st.integers(1, 3), st.integers(0, 3)))
    ),
)


def _apply(state: SwitchState, batch: Batch) -> SwitchState:
    """Return what a P4Runtime server does, errors as assertions."""
    entries = {entry.key: entry for entry in state.entries}
    groups = dict(state.groups)
    for update in batch:
        if isinstance(update, EntryUpdate):
            key, value, held = update.entry.key, update.entry, entries
        else:
            key, value, held = update.group, update.replicas, groups  # type: ignore[assignment]
        assert (key in held) == (update.verb is not Verb.INSERT)
        if update.verb is Verb.DELETE:
            del held[key]
        else:
            held[key] = value
    return SwitchState(frozenset(entries.values()), groups)


@given(_STATES, _STATES)
def test_plan_reaches_the_desired_state_and_nothing_is_left_to_do(
    actual: SwitchState, desired: SwitchState
) -> None:
    state = actual
    for batch in plan(actual, desired):
        assert batch
        state = _apply(state, batch)
    assert state == desired
    assert plan(desired, desired) == []


@given(st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_who_is_admitted_has_somewhere_to_get_results(before: set[int], after: set[int]) -> None:
    """Between any two batches, every admitted worker has its receiver entry and its multicast group."""
    topology = single_switch(4, "127.0.0.1:1")
    jobs = [job(f"job{i}", topology, size=1 + i % 4, job_id=i + 1, slot_base=64 * (i % 3)) for i in range(5)]
    states = [
        desired_state(topology, topology.switches[0], _disjoint(jobs[i] for i in sorted(numbers)))
        for numbers in (before, after)
    ]
    state = states[0]
    for batch in plan(*states):
        state = _apply(state, batch)
        _assert_safe(state)


_SPINES = st.sampled_from(
    [(), ("spine1",), ("spine2",), ("spine1", "spine3"), ("spine1", "spine2", "spine3")]
)


@given(st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)), _SPINES, _SPINES)
def test_who_is_admitted_at_a_leaf_has_a_way_up_to_a_spine_that_is_or_was_alive(
    before: set[int], after: set[int], spines_before: tuple[str, ...], spines_after: tuple[str, ...]
) -> None:
    """And every choice of a spray group finds a path, so that no packet is lost while things change."""
    topology = leaf_spine(2, 3, 2)
    jobs = [job(f"job{i}", topology, size=3 + i % 2, job_id=i + 1, slot_base=64 * (i % 3)) for i in range(5)]
    for switch in topology.switches:
        states = [
            desired_state(topology, switch, _disjoint(jobs[i] for i in sorted(numbers)), alive)
            for numbers, alive in ((before, spines_before), (after, spines_after))
        ]
        state = states[0]
        for batch in plan(*states):
            state = _apply(state, batch)
            _assert_safe(state)
            if topology.tiers()[switch.name] == 0:
                _assert_ways(state)
        assert state == states[1]


def _assert_ways(state: SwitchState) -> None:
    matches = {table: {e.match for e in state.entries if e.table == table} for table in TABLES}
    admitted = {dict(match)["job"] for gate in admission.GATES for match in matches[gate]}
    ways = {(("job", job_id), ("spine_class", c)) for job_id in admitted for c in range(SPINE_CLASSES)}
    assert ways <= matches[tree.UPLINKS]
    (group,) = (entry for entry in state.entries if entry.table == spraying.GROUPS)
    for index in range(dict(group.params)["count"]):
        assert (("index", index),) in matches[spraying.PATHS]


def _disjoint(jobs):  # type: ignore[no-untyped-def]
    """Jobs in order, without those whose slots an earlier one has."""
    taken: set[int] = set()
    for one in jobs:
        if one.slots.base not in taken:
            taken.add(one.slots.base)
            yield one


def _assert_safe(state: SwitchState) -> None:
    receivers = {entry.match for entry in state.entries if entry.table == results.RECEIVERS}
    bases: dict[int, int] = {}
    for entry in state.entries:
        if entry.table == admission.WORKERS:
            match, params = dict(entry.match), dict(entry.params)
            who = (("job", match["job"]), ("worker", match["worker"]), ("port", match["port"]))
            assert who in receivers
            rid = int(str(match["worker"])) + 1
            assert rid in {replica.rid for replica in state.groups[params["group"]]}
            assert bases.setdefault(params["slot_base"], match["job"]) == match["job"]  # type: ignore[arg-type]
