# SPDX-License-Identifier: Apache-2.0
"""The terms of a job with parameter servers: all that its members must agree on, said by worker 0."""

import json
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError

from weir.host_agent.collectives.packing import LANE_ERROR, LaneBits
from weir.host_agent.parameter_server.clocks import parse_consistency
from weir.host_agent.parameter_server.routing import ParameterInfo, Table, Units
from weir.host_agent.parameter_server.value_filter import parse_filter
from weir.wire.definition import MAX_WORKERS

OPTIMIZERS: Final = ("SGD", "Adam", "AdamW", "Adagrad")

_SPARSE: Final = ("SGD", "Adagrad")
"""Those that take sparse gradients: plain, they leave alone what has none."""

BUCKET_BYTES: Final = 2**20
SPARSE_BUCKET_BYTES: Final = 8 * 2**20
"""Of the gradients that are pushed together, dense ones and others: chosen here. What was changed of one
bucket comes down while the next one goes up, so the smaller the better; but each takes some round trips.
"""


SILENCE_S: Final = 60.0
"""After so long others do without a silent worker, unless all make their steps together. A worker that is
busy is not silent, as a thread of its own says that it is there.
"""


@dataclass(frozen=True)
class OptimizerSpec:
    """The optimizer of the servers: a name of OPTIMIZERS, and each group's hyper-parameters, plain values."""

    name: str
    groups: tuple[dict[str, Any], ...]

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"optimizer {self.name}: servers have {', '.join(OPTIMIZERS)}")

    @property
    def rate(self) -> float:
        """Greatest learning rate of the groups."""
        return max(float(group["lr"]) for group in self.groups)


@dataclass(frozen=True)
class Method:
    """The method: what is pushed of a gradient, and how it is written down. Its fields are HookState's."""

    sparsifier: str = "dense"
    density: float = 0.05
    threshold: float = 1e-3
    block: int = 256
    encoding: str | None = None
    warmup_steps: int = 0
    exclude: tuple[str, ...] = ()
    lane_bits: LaneBits | None = None
    lane_error: float = LANE_ERROR
    seed: int = 0


def check_flow(consistency: str, push_filter: str, pull_filter: str, sparsifier: str = "dense") -> None:
    """Raise ValueError for texts that do not say how workers and servers keep together, or do not fit."""
    parse_consistency(consistency)
    parse_filter(pull_filter)
    rule = parse_filter(push_filter)
    if rule.threshold and sparsifier != "dense":
        raise ValueError(
            f"push filter {rule}: it chooses the pushed values, and so does method {sparsifier}; use "
            f"method dense"
        )


def check_sparse(optimizer: OptimizerSpec, rows: bool) -> None:
    """Raise ValueError for an optimizer that does not take sparse gradients. rows: there are some."""
    odd = [
        key
        for group in optimizer.groups
        for key in ("momentum", "weight_decay", "lr_decay", "initial_accumulator_value")
        if group.get(key)
    ]
    if rows and (optimizer.name not in _SPARSE or odd):
        raise ValueError(
            f"optimizer {optimizer.name}{' with ' + ', '.join(odd) if odd else ''}: for sparse gradients "
            f"servers have {' and '.join(_SPARSE)}, plain"
        )


def check_loss(consistency: str, loss_budget: float) -> None:
    """Raise ValueError for a budget of what may be lost that does not fit."""
    if not 0.0 <= loss_budget < 1.0:
        raise ValueError(f"loss budget {loss_budget}: take a share from 0, and below 1")
    if consistency == "sync" and loss_budget:
        raise ValueError(
            "a loss budget needs asynchronous pushes, because pushes to synchronous servers are lossless: "
            "use consistency ssp:S or async"
        )


@dataclass(frozen=True)
class Terms:
    """The terms of a job.

    Attributes:
        workers, servers: how many there are: ranks 0 to workers - 1, and the ranks after them.
        parameters: those that are trained, in the model's order.
        optimizer: of the servers.
        method: of what is pushed.
        max_norm: the greatest norm of the whole averaged gradient, to which the servers clip it; None: any.
        bucket_bytes: of gradients that are pushed together.
        consistency: when workers see each other's gradients; "sync": all of a step before the next; "ssp:S",
            "async": see ``clocks``, by Parameter Flow.
        push_filter, pull_filter: what waits of what workers and servers send, see ``value_filter``.
        silence_s: of flows: seconds after which a silent worker is taken out; None: it is waited for.
        loss_budget: of Parameter Flow: the share of a push's values that may be lost on their way; they are
            held again, and pushed later.
        placed: worker 0 says beside the terms which server has which unit; otherwise each has a contiguous
            share of the model.
        migrate_every: steps after which units may move; 0: they stay.
        together: server m is on the machine of worker m, so that units are best with who uses them.
    """

    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)]
    servers: Annotated[int, Field(ge=1, le=MAX_WORKERS)]
    parameters: tuple[ParameterInfo, ...]
    optimizer: OptimizerSpec
    method: Method = field(default_factory=Method)
    max_norm: float | None = None
    bucket_bytes: int = BUCKET_BYTES
    consistency: str = "sync"
    push_filter: str = "0"
    pull_filter: str = "0"
    silence_s: float | None = None
    loss_budget: float = 0.0
    placed: bool = False
    migrate_every: int = 0
    together: bool = False

    def __post_init__(self) -> None:
        check_flow(self.consistency, self.push_filter, self.pull_filter, self.method.sparsifier)
        check_loss(self.consistency, self.loss_budget)
        check_sparse(self.optimizer, self.rows)
        coded = self.method.encoding is not None or self.method.lane_bits not in (None, 32)
        if coded and not self.in_switches:
            raise ValueError(
                "encoding and lane_bits apply only to sums in the switches; pushes by flows have 32 bits, in "
                "the cheapest form"
            )

    @property
    def rows(self) -> bool:
        """Return whether there are embeddings whose gradients are sparse."""
        return any(parameter.row for parameter in self.parameters)

    @property
    def in_switches(self) -> bool:
        """Return whether the switches sum the pushes; otherwise each travels to its servers by flows."""
        moves = self.placed or self.migrate_every or self.rows
        return self.consistency == "sync" and not moves

    def table(self) -> Table:
        """Return which server has what, unless the terms are ``placed``."""
        return Table.shares(self.parameters, self.servers)

    def units(self) -> Units:
        """Return the units of the model."""
        return Units.of(self.parameters)

    def rank_of(self, server: int) -> int:
        """Return the rank of a server."""
        return self.workers + server

    def to_json(self) -> str:
        """Return the terms as text, from which ``from_json`` makes equal ones."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Terms":
        """Return the terms that ``to_json`` wrote. Raises ValueError for any other text."""
        try:
            return _ADAPTER.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ValueError(f"these are no terms of this version of Weir: {place}: {first['msg']}") from None


_ADAPTER: Final = TypeAdapter(Terms)
