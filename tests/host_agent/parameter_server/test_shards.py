# SPDX-License-Identifier: Apache-2.0
"""Shards, terms and commands: every element on one server, and what is said is what is heard."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.host_agent.parameter_server.commands import COMMAND_LANES, Command, Kind, pack, rest_of, unpack
from weir.host_agent.parameter_server.shards import CUT, ParameterInfo, Shards
from weir.host_agent.parameter_server.terms import Method, OptimizerSpec, Terms

SHAPES = st.lists(st.lists(st.integers(1, 60), max_size=3).map(tuple), min_size=1, max_size=12)


@given(SHAPES, st.integers(1, 8), st.integers(1, 5000))
def test_every_element_is_on_one_server(shapes: list[tuple[int, ...]], servers: int, bucket: int) -> None:
    parameters = [ParameterInfo(f"p{index}", shape) for index, shape in enumerate(shapes)]
    try:
        shards = Shards.of(parameters, servers)
    except ValueError:
        assert sum(parameter.size for parameter in parameters) < 2 * CUT * servers
        return
    offset = 0
    for piece in shards.pieces:
        assert piece.offset == offset
        assert piece.start % CUT == 0
        offset += piece.length
    by_parameter = itertools.groupby(shards.pieces, lambda piece: piece.name)
    assert [(name, sum(piece.length for piece in pieces)) for name, pieces in by_parameter] == [
        (parameter.name, parameter.size) for parameter in parameters
    ]
    sizes = [sum(piece.length for piece in shards.of_server(server)) for server in range(servers)]
    assert max(sizes) - min(sizes) <= 2 * CUT
    assert len({piece.title for piece in shards.pieces}) == len(shards.pieces)
    assert list(itertools.chain(*shards.buckets(bucket))) == list(reversed(shards.pieces))


@pytest.mark.parametrize("servers", [0, 2])
def test_a_model_that_cannot_be_cut_is_refused(servers: int) -> None:
    with pytest.raises(ValueError, match=f"cannot be cut for {servers} servers"):
        Shards.of([ParameterInfo("p", (100,))], servers)


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
