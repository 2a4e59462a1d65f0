# SPDX-License-Identifier: Apache-2.0
"""Operations: what the ranks of a group are in together, and how they find out that they are not.

Every packet of an operation carries its fingerprint: a hash of its number in the group and of all that must
be the same on every rank. The switch compares them (protocol.md), so ranks that disagree hear of it in
the first round, whatever they called. So that there is one, an operation that sends nothing is a barrier.
"""

import functools
import zlib
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch

_MOST_WORDS = 1000  # characters of an error that other ranks are told
_SHOWN = 4  # of a list of equal things, this many are written out


class Call(NamedTuple):
    """One rank's call of a collective.

    Attributes:
        name: as users know it.
        facts: what must be the same on every rank: numbers, strings, dtypes, operators.
        arguments: for people; tensors in lists, operators and strings.
        failure: why this rank cannot do it, as text; empty where it can.
    """

    name: str
    facts: tuple[Hashable, ...] = ()
    arguments: tuple[Any, ...] = ()
    failure: str = ""

    @property
    def said(self) -> str:
        """Return what this rank did, as text: ``called barrier()``."""
        if not self.failure:
            return f"called {self}"
        return f"failed in {self}: {self.failure}" if self.name else f"failed: {self.failure}"

    def failed(self, error: Exception) -> "Call":
        """Return the call as one that this rank could not do."""
        return self._replace(failure=f"{type(error).__name__}: {error}"[:_MOST_WORDS])

    def __str__(self) -> str:
        """Return it as a user would write it: ``all_reduce(float32[5], SUM)``."""
        return f"{self.name}({', '.join(map(_words, self.arguments))})"


@functools.lru_cache(maxsize=4096)
def _hash(name: str, facts: tuple[Hashable, ...]) -> int:
    return zlib.crc32(repr((name, facts)).encode())


def fingerprint(number: int, call: Call) -> int:
    """Return 32 bits of a call that is operation ``number`` of its group; the same of all that failed."""
    hashed = _hash("failed", ()) if call.failure else _hash(call.name, call.facts)
    # By an odd factor, so that operations of one kind differ from their neighbours in many bits.
    return (hashed ^ number * 0x9E3779B1) & 0xFFFFFFFF


def _words(argument: Any) -> str:
    """Return a tensor's dtype and shape, an operator's name, or the words that there are already."""
    if isinstance(argument, torch.Tensor):
        dtype = str(argument.dtype).removeprefix("torch.")
        if argument.layout != torch.strided:
            dtype = f"sparse {dtype}"
        return f"{dtype}[{', '.join(map(str, argument.shape))}]"
    if isinstance(argument, str):
        return argument
    if isinstance(argument, Sequence):
        words = [_words(part) for part in argument]
        if len(words) > _SHOWN and len(set(words)) == 1:
            return f"[{len(words)} x {words[0]}]"
        return f"[{', '.join(words)}]"
    return str(getattr(argument, "name", argument))
