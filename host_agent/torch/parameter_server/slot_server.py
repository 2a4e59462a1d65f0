# SPDX-License-Identifier: Apache-2.0
"""A server for whom switches sum: joins the job that worker 0 describes, and steps its shard of the model."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from weir.host_agent.collectives.non_finite import NonFiniteError
from weir.host_agent.parameter_server.commands import Command, Kind
from weir.host_agent.parameter_server.value_filter import parse_filter
from weir.host_agent.torch.connection import Connection, GroupBrokenError
from weir.host_agent.torch.parameter_server.job_group import TIMEOUT, Announcement, JobGroup, await_terms
from weir.host_agent.torch.parameter_server.pull import ChangeForecast, Pull
from weir.host_agent.torch.parameter_server.push import Push
from weir.host_agent.torch.parameter_server.rounds import PiggybackSteps
from weir.host_agent.torch.parameter_server.shard_optimizer import Section, ShardOptimizer
from weir.host_agent.torch.parameter_server.slot_worker import broadcast_model
from weir.host_agent.torch.parameter_server.states import by_piece, spread

log = logging.getLogger(__name__)


def clip(gradients: Mapping[str, torch.Tensor], norm: float, limit: float) -> None:
    """Scale gradients whose norm, with those of the other shards, is above a limit, as
    ``clip_grad_norm_`` does.
    """
    if (factor := limit / (norm + 1e-6)) < 1:
        for gradient in gradients.values():
            gradient.mul_(factor)


class SlotServer:
    """One server of a job: ``run`` serves until the workers end the job.

    Args:
        store: of ``open_store``.
        index: of the server, from 0.
        timeout: how long to wait for the others, and each exchange for progress.

    Raises:
        ValueError: the job has not this many servers.
        RendezvousError, AgentError: the job cannot be formed; the message says why.
    """

    def __init__(self, store: Store, index: int, timeout: timedelta = TIMEOUT) -> None:
        self.index = index
        self.terms = await_terms(store, timeout)
        if index >= self.terms.servers:
            raise ValueError(f"server {index}: the workers wait for {self.terms.servers}, from 0")
        self._pieces = self.terms.table().of_server(index)
        self._job_group = JobGroup(store, self.terms.rank_of(index), self.terms, timeout)
        self._push = Push(self._job_group)
        self._pulls = [
            Pull(self.terms, *of) for of in zip(self._push.buckets, self._push.layouts, strict=True)
        ]
        self.shard = ShardOptimizer(
            [Section(piece.title, piece.length, piece.group) for piece in self._pieces], self.terms.optimizer
        )
        self._sent = torch.zeros_like(self.shard.model)
        self._forecast = ChangeForecast()
        self._mask_block: int | None = None
        self._filter = parse_filter(self.terms.pull_filter)
        self._lr = self.terms.optimizer.rate
        self._threshold = 0.0

    @property
    def connection(self) -> Connection:
        """Communicator of all workers and servers."""
        return self._job_group.connection

    def run(self) -> None:
        """Serve until the workers end the job, or leave it between two steps.

        Raises:
            GroupBrokenError: a worker or another server was lost; says which.
        """
        try:
            self._begin()
            while (news := self._next()).command.kind is not Kind.END:
                self._obey(news)
        finally:
            self._job_group.close()

    def _begin(self) -> None:
        """Take worker 0's parameters."""
        whole = torch.zeros(self.terms.table().size)
        broadcast_model(self._job_group, whole)
        for piece in self._pieces:
            self.shard.view(piece.title).copy_(whole[piece.in_model])
        self._sent.copy_(self.shard.model)

    def _next(self) -> Announcement:
        """Return what the workers want next; the end, where one has left without a word."""
        try:
            return self._job_group.announce(mask_block=self._forecast.mask_block)
        except GroupBrokenError:
            left = self._job_group.connection.departed
            if not left:
                raise
            log.info("%s: the job is over", "; ".join(left.values()))
            return Announcement(Command(Kind.END))

    def _obey(self, news: Announcement) -> None:
        command = news.command
        if command.kind is Kind.STEP:
            if groups := command.body.get("groups"):
                self.shard.configure(groups)
                self._lr = replace(self.terms.optimizer, groups=tuple(groups)).rate
            self._mask_block = news.mask_block
            peak = self.terms.optimizer.rate or 1.0
            self._threshold = self._filter.at(self._push.exchange.step + 1, self._lr / peak)
            try:
                self._push.step(self, lambda: news.careful or self.terms.max_norm is not None)
                self._forecast.end_step()
            except NonFiniteError as error:  # the workers have it, too; nothing has changed
                log.warning("%s", error)

        elif command.kind is Kind.FLUSH:
            self._mask_block, self._threshold = news.mask_block, 0.0
            self._push.flush(self)
        elif command.kind is Kind.STATE:
            for server in range(self.terms.servers):
                own = self.shard.state_dict() if server == self.index else None
                spread(self._job_group, self.terms.rank_of(server), own)
        elif command.kind is Kind.LOAD:
            self._load(spread(self._job_group, 0, None))

    def _load(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of worker 0."""
        self._push.exchange.load_shared_state(state["exchange"])
        for piece in self._pieces:
            self.shard.view(piece.title).copy_(state["model"][piece.in_model])
        self._sent.copy_(self.shard.model)
        self.shard.load_state_dict(by_piece(self._pieces, state["optimizer"]))

    def gradient(self, index: int) -> torch.Tensor:
        """Return memory for a bucket's averages, flat, float32.

        Args:
            index: of the bucket.
        """
        return torch.empty(self._push.layouts[index].elements)

    def settle(self, buckets: Mapping[int, torch.Tensor]) -> None:
        """Step with the averages of this server's pieces.

        Args:
            buckets: averages of each bucket by its index, flat, float32.
        """
        gradients = {}
        for index, bucket in buckets.items():
            for piece, segment in zip(self._push.buckets[index], self._push.layouts[index], strict=True):
                if piece.server == self.index:
                    gradients[piece.title] = bucket[segment.in_bucket]
        if (limit := self.terms.max_norm) is not None and buckets:
            clip(gradients, self._push.norm(gradients), limit)
        if gradients:
            self.shard.apply(gradients)

    def pull(self, index: int) -> PiggybackSteps:
        """Send the changes of a bucket.

        Args:
            index: of the bucket.
        """
        return self._pulls[index].send(
            self.shard,
            self._sent,
            self.index,
            self._mask_block,
            self._forecast,
            self._threshold,
            self._filter.block,
        )
