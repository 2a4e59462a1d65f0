# SPDX-License-Identifier: Apache-2.0
"""A dictionary that forgets what was put into it first, so that long captures need no more memory."""

from typing import Final, Generic, TypeVar

_MOST: Final = 1 << 18

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """Values of the last ``most`` keys that were new."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Return the value of a key; None when there is none, or when it was forgotten."""
        return self._values.get(key)

    def setdefault(self, key: Key, value: Value) -> Value:
        """Return the value of a key, which becomes ``value`` when there is none."""
        found = self._values.get(key)
        if found is not None:
            return found
        self._values[key] = value
        if len(self._values) > self._most:
            del self._values[next(iter(self._values))]
        return value
