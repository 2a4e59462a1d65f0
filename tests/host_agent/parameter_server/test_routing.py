# SPDX-License-Identifier: Apache-2.0
"""Routing tables, terms and commands: every element on one server, and what is said is what is heard."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.effort import examples
from weir.host_agent.parameter_server.commands import COMMAND_LANES, Command, Kind, pack, rest_of, unpack
from weir.host_agent.parameter_server.routing import CUT, ParameterInfo, Table, Units
from weir.host_agent.parameter_server.terms import Method, OptimizerSpec, Terms

SHAPES = st.lists(st.lists(st.integers(1, 60), max_size=3).map(tuple), min_size=1, max_size=12)


@given(SHAPES, st.integers(1, 8), st.integers(1, 5000))
def test_every_element_is_on_one_server(shapes: list[tuple[int, ...]], servers: int, bucket: int) -> None:
    parameters = [ParameterInfo(f"p{index}", shape) for index, shape in enumerate(shapes)]
    try:
        table = Table.shares(parameters, servers)
    except ValueError:
        assert sum(parameter.size for parameter in parameters) < 2 * CUT * servers
        return
    offset = 0
    for piece in table.pieces:
        assert piece.offset == offset
        assert piece.start % CUT == 0
        offset += piece.length
    by_parameter = itertools.groupby(table.pieces, lambda piece: piece.name)
    assert [(name, sum(piece.length for piece in pieces)) for name, pieces in by_parameter] == [
        (parameter.name, parameter.size) for parameter in parameters
    ]
    sizes = [sum(piece.length for piece in table.of_server(server)) for server in range(servers)]
    assert max(sizes) - min(sizes) <= 2 * CUT
    assert len({piece.title for piece in table.pieces}) == len(table.pieces)
    assert list(itertools.chain(*table.buckets(bucket))) == list(reversed(table.pieces))


@pytest.mark.parametrize("servers", [0, 2])
def test_a_model_that_cannot_be_cut_is_refused(servers: int) -> None:
    with pytest.raises(ValueError, match=f"cannot be cut for {servers} servers"):
        Table.shares([ParameterInfo("p", (100,))], servers)


def test_a_placement_that_does_not_fit_is_refused() -> None:
    units = Units.of([ParameterInfo("p", (600,))])
    for owner in ([0, 1], [0, 1, 2], [0, -1, 0]):
        with pytest.raises(ValueError, match="the model has 3 units, and there are 2 servers"):
            Table.placed(units, 2, owner)


def test_moves_of_several_epochs_lead_to_the_latest_table() -> None:
    """Also for who was away while a unit went and came back, and tells others."""
    first = Table.placed(Units.of([ParameterInfo("p", (8, 4), row=4)]), 3, [0, 1, 2, 0, 1, 2, 0, 1])
    second = first.moved(np.array([[0, 2], [3, 1]]), 1)
    third = second.moved(np.array([[0, 0], [5, 1]]), 2)
    away = first.moved(third.since(0), 2)
    told = second.moved(away.since(1), 2)
    for table in (away, told):
        assert table.owner.tolist() == third.owner.tolist() == [0, 1, 2, 1, 1, 1, 0, 1]
        assert table.epoch == 2


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(1, 300_000), st.integers(0, 1 << 20), st.floats(0, 1), st.booleans())
def test_lists_of_units_come_back(count: int, seed: int, density: float, together: bool) -> None:
    units = Units.of([ParameterInfo("p", (count,), row=1)])
    chosen = np.flatnonzero(np.random.default_rng(seed).random(count) < density**4)
    if together:
        chosen = np.arange(count // 3, count)
        assert units.encode(chosen).size <= 4
    np.testing.assert_array_equal(units.decode(units.encode(chosen)), chosen)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.sampled_from(Kind), st.dictionaries(st.text(), JSON))
def test_a_command_is_heard_as_it_was_said(kind: Kind, body: dict[str, object]) -> None:
    first, rest = pack(Command(kind, body))
    assert first.size == COMMAND_LANES
    assert rest.size == rest_of(first)
    assert unpack(first, rest) == Command(kind, body)


def test_terms_are_heard_as_they_were_said() -> None:
    terms = Terms(
        workers=3,
        servers=2,
        parameters=(ParameterInfo("weight", (300, 10), 1), ParameterInfo("bias", (10,))),
        optimizer=OptimizerSpec("Adam", ({"lr": 0.1, "betas": [0.9, 0.999]}, {"lr": 1e-5})),
        method=Method("dfs", exclude=("1d",), lane_bits=16),
        max_norm=0.25,
    )
    assert Terms.from_json(terms.to_json()) == terms


def test_an_optimizer_that_servers_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="RMSprop: servers have SGD, Adam, AdamW"):
        OptimizerSpec("RMSprop", ())
