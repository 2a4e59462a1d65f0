# SPDX-License-Identifier: Apache-2.0
"""The rules of a parameter server, and the optimizer that it steps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from weir.host_agent.parameter_server.clocks import Consistency
from weir.host_agent.parameter_server.journal import Arrays
from weir.host_agent.parameter_server.routing import Integers
from weir.host_agent.parameter_server.value_filter import FilterRule, Floats


class Optimizer(Protocol):
    """The use that a server makes of pushes, over its units one after another. Deterministic: the journal
    plays pushes again.
    """

    @property
    def parameters(self) -> Floats:
        """Server's elements of the model; the same array until ``rearrange``."""
        ...

    def step(
        self, gradient: Floats, touched: Integers | None, lr: float, share: float, settings: str
    ) -> None:
        """Change the parameters.

        Args:
            gradient: zero where nothing was pushed.
            touched: elements that were pushed, ascending; None: all.
            lr: learning rate.
            share: of it, at most 1 / workers where each worker makes only its part of a step.
            settings: the last that the pushing worker has sent.
        """
        ...

    def arrays(self) -> Arrays:
        """Return the state besides the parameters, by name."""
        ...

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over a state that ``arrays`` gave."""
        ...

    def rows(self, places: Integers) -> Floats:
        """Return float32[k, n]: the parameters and each part of the state at some elements."""
        ...

    def rearrange(self, units: Integers, source: Integers, rows: Floats, steps: int) -> None:
        """Have other units from now on.

        Args:
            units: these.
            source: for each of their elements where it comes from: the elements until now, then ``rows``.
            rows: of elements that come, as ``rows`` of another server gave them.
            steps: at least this many steps were made.
        """
        ...

    @property
    def steps(self) -> int:
        """Return how many steps were made."""
        ...


@dataclass(frozen=True)
class ServerRules:
    """The rules of a server.

    Attributes:
        consistency: who gets an update when.
        filter: of what the server sends.
        peak_lr: the learning rate to which the schedule "lr" relates.
        journal_limit: bytes of the journal after which a checkpoint is made.
        tempered: what is stale moves the model less, see ``ServerMachine``.
        workers: how many there are in the job.
        report_every: steps of worker 0 after which it hears what units have cost; 0: never.
        together: server m is on the machine of worker m.
    """

    consistency: Consistency = field(default_factory=lambda: Consistency(None))
    filter: FilterRule = field(default_factory=FilterRule)
    peak_lr: float = 1.0
    journal_limit: int = 64 << 20
    tempered: bool = True
    workers: int = 1
    report_every: int = 0
    together: bool = False
