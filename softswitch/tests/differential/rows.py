# SPDX-License-Identifier: Apache-2.0
"""Rows that a scenario's control plane installs."""

from dataclasses import dataclass

from tests.harness.keys import Key

Replicas = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Row:
    """A table entry; the greatest priority wins."""

    table: str
    key: tuple[Key, ...]
    action: str
    args: tuple[int, ...]
    priority: int = 0


@dataclass(frozen=True)
class Default:
    """A table's default action."""

    table: str
    action: str
    args: tuple[int, ...]
