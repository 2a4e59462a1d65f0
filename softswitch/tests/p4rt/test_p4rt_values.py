# SPDX-License-Identifier: Apache-2.0
"""Byte strings, by the specification's own tables of valid and invalid ones (8.4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softp4.errors import Code, ControlError
from softp4.p4rt.values import decode, decode_signed, encode, encode_signed

VALID = [
    (8, 99, "63"),
    (16, 99, "0063"),
    (16, 99, "63"),
    (16, 12388, "3064"),
    (16, 12388, "003064"),
    (12, 99, "0063"),
    (12, 99, "63"),
    (12, 99, "000063"),
]
INVALID = [(8, "0163"), (8, ""), (16, "010063"), (12, "1063"), (12, "010063"), (12, "004063")]
SIGNED = [(8, 99, "63"), (8, -99, "9d"), (8, -99, "ff9d"), (12, -739, "fd1d"), (16, 0, "0000"), (16, 0, "00")]
SIGNED_INVALID = [(8, "009d"), (12, "8d1d"), (16, "")]


@pytest.mark.parametrize(("bits", "value", "data"), VALID)
def test_valid(bits: int, value: int, data: str) -> None:
    assert decode(bytes.fromhex(data), bits, "x") == value


@pytest.mark.parametrize(("bits", "data"), INVALID)
def test_invalid(bits: int, data: str) -> None:
    with pytest.raises(ControlError, match="field x") as refused:
        decode(bytes.fromhex(data), bits, "field x")
    assert refused.value.code == Code.INVALID_ARGUMENT


@pytest.mark.parametrize(("bits", "value", "data"), SIGNED)
def test_signed_valid(bits: int, value: int, data: str) -> None:
    assert decode_signed(bytes.fromhex(data), bits, "x") == value % (1 << bits)


@pytest.mark.parametrize(("bits", "data"), SIGNED_INVALID)
def test_signed_invalid(bits: int, data: str) -> None:
    with pytest.raises(ControlError) as refused:
        decode_signed(bytes.fromhex(data), bits, "x")
    assert refused.value.code == Code.INVALID_ARGUMENT


@given(st.integers(0, 2**200))
def test_encoding_is_the_shortest_that_decodes_back(value: int) -> None:
    data = encode(value)
    assert decode(data, 201, "x") == value
    assert len(data) == 1 or data[0] != 0


@given(st.integers(1, 70).flatmap(lambda bits: st.tuples(st.just(bits), st.integers(0, 2**bits - 1))))
def test_signed_encoding_is_the_shortest_that_decodes_back(case: tuple[int, int]) -> None:
    bits, pattern = case
    data = encode_signed(pattern, bits)
    assert decode_signed(data, bits, "x") == pattern
    value = int.from_bytes(data, "big", signed=True)
    assert len(data) == 1 or int.from_bytes(data[1:], "big", signed=True) != value
