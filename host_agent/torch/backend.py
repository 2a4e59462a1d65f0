# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend "weir": a group's options, and how it is made.

Importing ``weir.torch`` registers it.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import ClassVar, Final

import torch.distributed as dist
from torch._C._distributed_c10d import Store, _DistributedBackendOptions

from weir.host_agent.collectives.packing import LANE_ERROR, LaneBits, NonFinite, Precision
from weir.host_agent.torch.compiling import never_compiled
from weir.host_agent.torch.joining import LocalStep, open_connection
from weir.host_agent.torch.process_group import BACKEND, WeirProcessGroup
from weir.host_agent.torch.rendezvous import WHOLE, Members, StartCluster
from weir.host_agent.torch.splitting import DEVICES, global_ranks
from weir.wire.definition import MAX_WORKERS

CALLED: Final = "have they called it, too?"


@dataclass(frozen=True)
class GroupOptions:
    """Options of a group: ``new_group(ranks, backend="weir", pg_options=GroupOptions(slots=16))``.

    Args:
        slots: fixed number of the switch's slots that the group has. With 0, the default group takes a share
            of the free slots, and other groups take more or fewer as they use them (collectives.md).
        lane_bits: 32, 16 or 8: bits that a value of a sum of float32, float16 or bfloat16 takes on the wire;
            several narrow ones share a lane of the switch, see precision.md. "auto": the fewest whose
            error is within ``lane_error``.
        lane_error: with "auto": how much an average over the ranks may be off, relative to the largest
            magnitude within the 256 values around it.
        local: ranks of one host reduce in its memory and send once: "on" does so for all that share a machine
            and its network, "auto" for those that also have the same WEIR_HOST, "off" never. None: as the
            environment variable WEIR_LOCAL says, "auto" without it. See docs/internals/collectives.md.
        exact: sum float32 as exactly as float64, in three lanes a value; sums of up to 1024 values always
            are.
        non_finite: how sums of floats treat NaN and infinity. "deliver": all ranks get them, as with Gloo and
            as gradient scalers expect. "raise": all ranks raise NonFiniteError, which says where they are.
            Maxima, minima and products always deliver them. See docs/guides/precision.md.

    The same on all ranks of the group.
    """

    slots: int = 0
    lane_bits: LaneBits = 32
    lane_error: float = LANE_ERROR
    exact: bool = False
    local: LocalStep | None = None
    non_finite: NonFinite = "deliver"

    _timeout: ClassVar[timedelta | None] = None  # device meshes ask for one: the group's own

    @property
    def precision(self) -> Precision:
        """Return how float sums are made."""
        return Precision(self.lane_bits, self.lane_error, self.exact, self.non_finite)


@never_compiled
def create(
    start: StartCluster,
    options: _DistributedBackendOptions,
    group_options: GroupOptions | None = None,
    members: Members | None = None,
) -> WeirProcessGroup:
    """Join the job of a group, and return the group when all its ranks have joined.

    Args:
        start: starts a local cluster, where no controller was named.
        options: the group's ranks and store.
        group_options: of the group; None: the defaults.
        members: words for them; None: for a group that torch makes.
    """
    default = dist.distributed_c10d._world.default_pg
    if isinstance(default, WeirProcessGroup):
        default.connection.refuse_fork()  # its store's connection is the parent's
    rank, size = options.group_rank, options.group_size
    if size > MAX_WORKERS:
        raise ValueError(
            f"a process group of {size} ranks is more than three tiers of switches sum: "
            f"the weir backend takes at most {MAX_WORKERS}. Use fewer processes"
        )
    ranks = global_ranks(options)
    whole = members is None and default is None
    if whole:
        members = Members(WHOLE, remedy=f"were {size} processes started, as WORLD_SIZE says?")
    chosen = group_options or GroupOptions()
    chosen.precision.form(size)  # which refuses what this many ranks cannot have
    connection = open_connection(
        options.store,
        rank,
        ranks,
        options.group_id,
        options.timeout,
        start,
        chosen.slots,
        str(chosen) if chosen != GroupOptions() else "",
        chosen.local,
        members or Members("new_group", remedy=CALLED),
        elastic=not whole and not chosen.slots,
    )
    connection.precision = chosen.precision
    return WeirProcessGroup(options, replace(chosen, slots=0), connection, partial(create, start))


def register(start: StartCluster) -> None:
    """Make ``init_process_group("weir")`` and ``new_group(backend="weir")`` work. Can be called twice.

    Args:
        start: starts a local cluster for groups that no controller was named for.
    """
    dist.Backend.register_backend(BACKEND, partial(create, start), extended_api=True, devices=list(DEVICES))


def group_from_store(
    start: StartCluster,
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    options: GroupOptions | None,
    name: str,
) -> WeirProcessGroup:
    """Return a group that torch knows nothing of; see ``weir.torch.group_from_store``."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of a group of {size} ranks: ranks go from 0 to {size - 1}")
    made_of = _DistributedBackendOptions()
    made_of.store, made_of.group_id, made_of.timeout = store, name, timeout
    made_of.group_rank, made_of.group_size = rank, size
    group = create(start, made_of, options, Members("group_from_store", remedy=CALLED))
    group._set_group_name(name)
    group._set_group_desc("")
    return group
