# SPDX-License-Identifier: Apache-2.0
"""DS-Sync: each worker steps by itself and averages its parameters with a few others, others each time.

Who with whom is the schedule's business (:mod:`weir.host_agent.torch.ds_sync.schedule`). The averages are
sums through the switch, so all members of a group have the same bits after a round; members of different
groups have not, until ``finish``.
"""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from weir.host_agent.torch.connection import Connection
from weir.host_agent.torch.ds_sync.groups import Place, make_groups
from weir.host_agent.torch.ds_sync.schedule import Schedule
from weir.host_agent.torch.ds_sync.vectors import Vectors
from weir.host_agent.torch.process_group import WeirProcessGroup
from weir.host_agent.torch.unwrapping import unwrapped


class DsSync:
    """Keeps the replicas of a model together by averaging them in changing groups after every step.

    Example::

        dist.init_process_group("weir")
        averager = weir.torch.DsSync(model, seed=1)     # sets all groups up; rank 0's parameters to all
        for epoch in range(epochs):
            for inputs, targets in loader:
                loss(model(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
                averager.step()
            if epoch >= epochs - 3:
                averager.collect()
        averager.finish(inputs for inputs, _ in loader)  # now the replicas are the same

    Momentum and other state of the optimizer stay each worker's own. Floating-point buffers, such as the
    statistics of batch normalisation, are averaged along with the parameters; others stay each worker's own.

    Args:
        model: the same on every rank. Load a checkpoint after making this. Of a DistributedDataParallel, the
            module inside it is averaged, and its own summing of gradients ends (as under ``no_sync``).
        group_size: how large groups may be, see Schedule.
        seed: which worker is where.
        racks: for each rank, its rack; None: as the controller knows it, with the backend "weir".
        local_rounds: how often the racks average by themselves in a cycle; None: 2 when there are racks,
            else 1.
        shuffles: how many crossings there may be, see Schedule.
        may_contend: ranks that ``step`` may be told are contended; the groups without them are made ahead,
            too.

    Raises:
        ValueError: arguments that do not fit, or not the same on every rank.
        NoSlotsError: the switch has not enough slots for this many groups.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        group_size: int | None = None,
        seed: int = 0,
        racks: Sequence[object] | None = None,
        local_rounds: int | None = None,
        shuffles: int | None = None,
        may_contend: Collection[int] = (),
    ) -> None:
        model = unwrapped(model)
        self.model = model
        self.round = 0
        self.identical = False
        """True while replicas have the same bits: at first, after ``finish``, after a round of one group."""
        self._settings = (group_size, seed, local_rounds, shuffles, tuple(sorted(may_contend)))
        self._own: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._vectors = Vectors([*model.parameters(), *_float_buffers(model)])
        self._parameters = Vectors(list(model.parameters()))
        self._mean: list[Tensor] = []  # of the parameters at every ``collect``
        self._collected = 0
        self.bind(racks)

    def bind(self, racks: Sequence[object] | None = None) -> None:
        """Create the groups again, after ``init_process_group`` with more or fewer ranks. All ranks call it.

        New ranks create their DsSync meanwhile. All ranks continue in the latest round, from the mean of the
        parameters of the ranks that have made rounds; if there are none, from rank 0's parameters.

        Args:
            racks: rack of each present rank, as for DsSync.
        """
        self.close()
        group_size, seed, local_rounds, shuffles, may_contend = self._settings
        settings = (*self._settings, None if racks is None else list(racks))
        mine = (Place.own(), self.round, settings, self._vectors.sizes)
        told: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(told, mine)
        places, rounds, *same = zip(*told, strict=True)
        for what, values in zip(("its arguments", "the sizes of parameters and buffers"), same, strict=True):
            odd = [rank for rank, value in enumerate(values) if value != values[0]]
            if odd:
                raise ValueError(
                    f"DsSync must be the same on every rank, but {what} on ranks {odd} are not rank 0's"
                )
        racks = racks or [place.switch for place in places]
        self.schedule = Schedule(
            dist.get_world_size(),
            group_size=group_size,
            seed=seed,
            racks=racks,
            local_rounds=local_rounds or (2 if len(set(racks)) > 1 else 1),
            shuffles=shuffles,
        )
        self._own = make_groups(self.schedule.memberships(may_contend), places)
        going = [rank for rank, number in enumerate(rounds) if number]
        self._align(going or [0])
        self.round = max(rounds)

    def step(self, contended: Collection[int] = ()) -> None:
        """Average the parameters inside this round's group. Call it after the optimizer's step.

        Args:
            contended: ranks with busy links, which skip this round; the same on every rank (``agree`` makes
                it so). A group that ``may_contend`` did not declare skips the round as a whole.
        """
        group = self.schedule.group(dist.get_rank(), self.round, contended)
        own = self._own.get(group.ranks)
        if own is not None:
            with torch.no_grad():
                weight = None if group.equal else float(group.weight(dist.get_rank()))
                self._vectors.write(self._vectors.average(self._vectors.read(), own, weight))
        self.identical = own is not None and len(group.ranks) == self.schedule.workers
        self.round += 1

    def agree(self, contended: bool) -> frozenset[int]:
        """Agree on the contended ranks for ``step``, in a short exchange among all ranks.

        Args:
            contended: whether this rank's links are busy.

        Returns:
            The ranks that passed True; the same on every rank.
        """
        flags = [torch.zeros(1, dtype=torch.uint8) for _ in range(self.schedule.workers)]
        dist.all_gather(flags, torch.tensor([contended], dtype=torch.uint8))
        return frozenset(rank for rank, flag in enumerate(flags) if flag)

    @torch.no_grad()
    def collect(self) -> None:
        """Take the parameters as they are now into this worker's share of the final average."""
        now = self._parameters.read()
        if not self._collected:
            self._mean = [vector.clone() for vector in now]
        self._collected += 1
        for mean, vector in zip(self._mean, now, strict=True):
            mean.add_((vector - mean) / self._collected)

    def finish(self, batches: Iterable[Any] | None = None) -> None:
        """Give all ranks the mean of the collected parameters, or of the present ones if none were collected.

        This is stochastic weight averaging over workers and epochs. Afterwards the replicas are the same, bit
        by bit.

        Args:
            batches: this rank's share of the training data, as ``torch.optim.swa_utils.update_bn`` takes it.
                The statistics of batch normalisation are recomputed from it; without batches they are the
                mean of the workers' statistics.
        """
        total = int(_summed(self._collected))
        everything = Vectors(_float_buffers(self.model)) if total else self._vectors
        with torch.no_grad():
            everything.write(everything.average(everything.read(), dist.group.WORLD))
            if total:
                share = (
                    self._mean if self._collected else [torch.zeros_like(v) for v in self._parameters.read()]
                )
                weight = self._collected / total
                self._parameters.write(self._parameters.average(share, dist.group.WORLD, weight))
        self._mean, self._collected = [], 0
        if batches is not None:
            self._refresh_statistics(batches)
        self._broadcast(_other_buffers(self.model))
        self.identical = True

    @contextlib.contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Yield the model with the mean of all replicas, for evaluation.

        After the ``with`` block it has its own parameters again.
        """
        with torch.no_grad():
            own = [vector.clone() for vector in self._vectors.read()]
            self._vectors.write(self._vectors.average(self._vectors.read(), dist.group.WORLD))
        try:
            yield self.model
        finally:
            with torch.no_grad():
                self._vectors.write(own)

    @property
    def connections(self) -> list[Connection]:
        """Return this rank's jobs on the switch, the default group's first: where traffic is counted."""
        groups = dict.fromkeys([dist.group.WORLD, *self._own.values()])
        return [group.connection for group in groups if isinstance(group, WeirProcessGroup)]

    def state_dict(self) -> dict[str, Any]:
        """The round and the collected parameters of this rank.

        Replicas differ, so save each rank's model with it.
        """
        return {"round": self.round, "collected": self._collected, "mean": [v.clone() for v in self._mean]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a rank's state, bit by bit.

        Args:
            state: of ``state_dict`` of the same rank, with the same model, optimizer, arguments and ranks.
        """
        self.round, self._collected = state["round"], state["collected"]
        self._mean = [vector.clone() for vector in state["mean"]]
        self.identical = False

    def close(self) -> None:
        """Leave the groups. ``destroy_process_group`` does so, too."""
        for group in self._own.values():
            if group is not dist.group.WORLD:
                with contextlib.suppress(ValueError):  # it went with the default group it was made under
                    dist.destroy_process_group(group)
        self._own = {}

    def _align(self, sources: Sequence[int]) -> None:
        """Give all ranks the parameters of one, or the mean of several."""
        if len(sources) == 1:
            self._broadcast(list(self._vectors.tensors), sources[0])
        else:
            weight = 1 / len(sources) if dist.get_rank() in sources else 0.0
            with torch.no_grad():
                self._vectors.write(self._vectors.average(self._vectors.read(), dist.group.WORLD, weight))
        self._broadcast(_other_buffers(self.model), sources[0])
        self.identical = True

    def _refresh_statistics(self, batches: Iterable[Any]) -> None:
        seen = 0

        def counted() -> Iterator[Any]:
            nonlocal seen
            for batch in batches:
                seen += 1
                yield batch

        statistics = Vectors(_float_buffers(self.model))
        before = [vector.clone() for vector in statistics.read()]
        update_bn(counted(), self.model)
        total = int(_summed(seen))
        with torch.no_grad():
            if total:
                statistics.write(statistics.average(statistics.read(), dist.group.WORLD, seen / total))
            else:
                statistics.write(before)

    def _broadcast(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        for tensor in tensors:
            host = tensor.detach().cpu().contiguous()
            dist.broadcast(host, source)
            with torch.no_grad():
                tensor.copy_(host)


def _float_buffers(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


def _other_buffers(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if not buffer.is_floating_point()]


def _summed(number: int) -> Tensor:
    total = torch.tensor([number])
    dist.all_reduce(total)
    return total
