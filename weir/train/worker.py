# SPDX-License-Identifier: Apache-2.0
"""One worker of a run: ``python -m weir.train.worker SPEC`` with RANK and WORLD_SIZE in the environment.

Trains with DistributedDataParallel and writes messages (:mod:`weir.train.messages`) to standard output;
whatever else prints goes to standard error.
"""

import contextlib
import faulthandler
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import torch
import torch._dynamo  # DDP imports it, which takes seconds: once for all workers
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weir.torch
from weir.host_agent.collectives.non_finite import NonFiniteError
from weir.process.memory import memory_of
from weir.train import checkpoint
from weir.train.backends import Exchange
from weir.train.config import TrainConfig
from weir.train.data import TooFewSamplesError, learning_rate, share
from weir.train.exchange import make_exchange
from weir.train.hooks import CommunicationClock, timed
from weir.train.messages import (
    Evaluated,
    Failed,
    Finished,
    Message,
    Ready,
    Step,
    WireCounters,
    WorkerSpec,
    encode,
)
from weir.train.models import parameter_checksum, parameter_count
from weir.train.peers import ONE_BUCKET_MB
from weir.train.record import ReplicasDifferError
from weir.train.task import DivergedError, Task, evaluate, make_optimizer, make_task, mean_loss

_EXPLAINED: Final = frozenset(
    error.__name__
    for error in (NonFiniteError, DivergedError, TooFewSamplesError, checkpoint.CheckpointError)
)
"""Errors whose sentence is all that a user needs."""

_IN_HOOK: Final = re.compile(
    r"Got the following error when running the callback: (\w+): (.*?)(?:\n\nAt:\n.*)?\Z", re.DOTALL
)

MakeExchange = Callable[[WorkerSpec, DistributedDataParallel], Exchange]

_SMALL_MB: Final = 4
"""Gradients that are no larger are one bucket, whatever sums them: chosen here. By default DDP cuts off a
first bucket of 1 MB, to begin early; of small gradients its latency and its calls cost more than that saves.
"""

_FEW_SLOTS: Final = 16  # for what workers tell each other beside their servers


def main(make: MakeExchange = make_exchange) -> None:
    """Run the worker; exit status 1 after an error, which is also sent as a message.

    make: another way to exchange gradients, for who has one to compare with.
    """
    faulthandler.enable()
    send = _message_channel()
    rank = int(os.environ["RANK"])
    spec = WorkerSpec.model_validate_json(sys.argv[1])
    with _reported(rank, send):
        train(spec, rank, int(os.environ["WORLD_SIZE"]), send, make)
    send(Finished(rank))


@contextlib.contextmanager
def _reported(rank: int, send: Callable[[Message], None]) -> Iterator[None]:
    """Send an exception as a message, at once, and end the process with it."""
    try:
        yield
    except Exception as error:
        text = traceback.format_exc()
        sys.stderr.write(text)
        kind, sentence = _said(error)
        send(Failed(rank, sentence, "") if kind in _EXPLAINED else Failed(rank, f"{kind}: {sentence}", text))
        raise SystemExit(1) from None


def _said(error: Exception) -> tuple[str, str]:
    """Return an exception's class and what it says; of one in a DDP hook, not what torch put around it."""
    if found := _IN_HOOK.search(str(error)):
        return found[1], found[2]
    return type(error).__name__, str(error)


def _message_channel() -> Callable[[Message], None]:
    """Keep standard output for messages; send every other print to standard error."""
    channel: IO[str] = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def send(message: Message) -> None:
        channel.write(encode(message) + "\n")

    return send


def train(
    spec: WorkerSpec,
    rank: int,
    workers: int,
    send: Callable[[Message], None],
    make: MakeExchange = make_exchange,
) -> None:
    """Join the group, train, leave the group; also when training fails.

    A rank beyond the workers is a parameter server.
    """
    torch.set_num_threads(1)
    if rank >= workers:
        from weir.train.servers import serve

        with _reported(rank, send):
            serve(spec, rank - workers)
        return
    held, options = memory_of()["VmRSS"], None
    if spec.backend == "weir":
        slots = _FEW_SLOTS if spec.config.mode == "ps" else 0
        options = weir.torch.GroupOptions(slots=slots, non_finite="raise")
    dist.init_process_group(
        spec.backend, init_method=spec.init_method, rank=rank, world_size=workers, pg_options=options
    )
    try:
        with _reported(rank, send):  # before leaving: others hear of that, and fail in turn
            _Training(spec, rank, workers, send, make, held).run()
    finally:
        dist.destroy_process_group()


class _Training:
    """The loop over epochs and steps, with what it reports."""

    def __init__(
        self,
        spec: WorkerSpec,
        rank: int,
        workers: int,
        send: Callable[[Message], None],
        make: MakeExchange,
        held: int,
    ) -> None:
        """held: bytes of this process before it joined its group."""
        config, self._held = spec.config, held
        self.spec, self.rank, self.workers, self.send = spec, rank, workers, send
        self.task: Task = make_task(config)
        # BatchNorm's statistics are averaged before each evaluation instead of broadcast at every step.
        self.ddp = DistributedDataParallel(
            self.task.model, forward_sync_buffers=False, bucket_cap_mb=_bucket_mb(self.task.model, config)
        )
        self.exchange = make(spec, self.ddp)
        self.clock = CommunicationClock()
        if self.exchange.hook is not None:
            self.ddp.register_comm_hook(self.exchange.state, timed(self.exchange.hook, self.clock))
        self.optimizer = make_optimizer(config, self.ddp.parameters())
        self.exchange.begin(self.optimizer)
        self.steps_per_epoch = len(self._batches(epoch=1))
        self.step = 0
        self.traffic = self.exchange.meter.read()

    def run(self) -> None:
        """Train all epochs."""
        self.send(
            Ready(
                rank=self.rank,
                parameters=parameter_count(self.task.model),
                steps_per_epoch=self.steps_per_epoch,
                samples=len(self.task.data.train),
                traffic_source=self.exchange.meter.source,
            )
        )
        if self.spec.resume is not None:
            self._resume(self.spec.resume)
        for epoch in range(1, self.spec.config.epochs + 1):
            batches = self._batches(epoch)
            done = self.step - (epoch - 1) * self.steps_per_epoch
            if done >= len(batches):
                continue  # before the checkpoint
            for number, batch in enumerate(batches[done:], start=done + 1):
                self._one_step(epoch, batch)
                if number < len(batches):
                    if self._wants(self.spec.config.evaluate_every):
                        self._evaluate(epoch)
                    self._save()
            left = self.spec.config.epochs - epoch
            self.exchange.epoch_ended(left)
            if not left:
                self.exchange.finish(self.task.data.train.inputs[batch] for batch in batches)
                self._evaluate(epoch, self._checksum())
            else:
                self._evaluate(epoch)
                self._save()

    def _wants(self, every: int | None) -> bool:
        """Return whether something that is done at intervals of this many steps is due."""
        return every is not None and self.step % every == 0

    def _save(self) -> None:
        """Write a checkpoint, if one is due."""
        if self.spec.save is None or not self._wants(self.spec.config.save_every):
            return
        state = {
            "model": self.task.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "exchange": self.exchange.state_dict(),
            "random": torch.get_rng_state(),
        }
        checkpoint.write_part(self.spec.save, self.step, self.rank, state)
        dist.barrier()
        if self.rank == 0:
            checkpoint.publish(self.spec.save, self.step, self.workers)
        self.traffic = self.exchange.meter.read()  # the barrier is no step's

    def _resume(self, folder: Path) -> None:
        """Go on from a checkpoint.

        DDP puts gradients into other buckets after the first backward pass, so one is made for it.
        """
        batch, train = self._batches(epoch=1)[0], self.task.data.train
        mean_loss(self.ddp(train.inputs[batch]), train.targets[batch]).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()
        self.clock.take()
        found = checkpoint.latest(folder)
        saved = found.part(self.rank)
        self.task.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.exchange.load_state_dict(saved["exchange"])
        torch.set_rng_state(saved["random"])
        self.step, self.traffic = found.step, self.exchange.meter.read()

    def _evaluate(self, epoch: int, checksum: int | None = None) -> None:
        """Evaluate on the held-out data; a checksum says that training is over."""
        finishing = self._traffic()
        with self.exchange.measured(self.task.model):
            loss, accuracy = evaluate(self.task.model, self.task.data.test, self.rank, self.workers)
        self.traffic = self.exchange.meter.read()  # what evaluation sent is no step's
        self.send(Evaluated(self.rank, epoch, loss, accuracy, self.step, checksum, finishing))

    def _batches(self, epoch: int) -> list[torch.Tensor]:
        config = self.spec.config
        samples = len(self.task.data.train)
        found = share(samples, self.rank, self.workers, config.batch_size, config.seed, epoch)
        return found[: config.max_steps]

    def _one_step(self, epoch: int, batch: torch.Tensor) -> None:
        began, processor = time.perf_counter(), time.process_time()
        inputs, targets = self.task.data.train.inputs[batch], self.task.data.train.targets[batch]
        self._set_learning_rate()
        self.optimizer.zero_grad()
        loss = mean_loss(self.ddp(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if not self.exchange.steps:
            if (limit := self.spec.config.max_norm) is not None:
                torch.nn.utils.clip_grad_norm_(self.ddp.parameters(), limit)
            self.optimizer.step()
        with self.clock.running():
            self.exchange.stepped()
        self.step += 1
        seconds, processor_s = time.perf_counter() - began, time.process_time() - processor
        traffic = self._traffic()
        checksum = self._checksum() if self.exchange.in_step else None
        self.send(
            Step(
                rank=self.rank,
                epoch=epoch,
                step=self.step,
                loss=loss.item(),
                samples=targets.numel(),
                seconds=seconds,
                communication_s=self.clock.take(),
                traffic=traffic,
                sent=self.exchange.sent(),
                checksum=checksum,
                delivery=self.exchange.delivery(),
                processor_s=processor_s,
                memory=memory_of()["VmHWM"] - self._held,
            )
        )

    def _set_learning_rate(self) -> None:
        steps = self.steps_per_epoch * self.spec.config.epochs
        rate = learning_rate(self.spec.config.lr, self.step, steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _traffic(self) -> WireCounters:
        """Return what this step put on the wire."""
        now = self.exchange.meter.read()
        step, self.traffic = now - self.traffic, now
        return step

    def _checksum(self) -> int:
        """Return the checksum of the parameters, equal on all ranks; compare it if no launcher hears all."""
        checksum = parameter_checksum(self.task.model)
        if self.spec.replicas == "group":
            self._compare(checksum)
        return checksum

    def _compare(self, checksum: int) -> None:
        mine = torch.tensor([checksum >> 32, checksum & 0xFFFFFFFF], dtype=torch.int64)
        everyones = [torch.empty_like(mine) for _ in range(self.workers)]
        dist.all_gather(everyones, mine)
        differing = [rank for rank, other in enumerate(everyones) if not torch.equal(other, everyones[0])]
        if differing:
            raise ReplicasDifferError(
                f"after step {self.step} the parameters of ranks {differing} differ from rank 0's"
            )


def _bucket_mb(model: torch.nn.Module, config: TrainConfig) -> int | None:
    """Return the size of DDP's buckets; None: DDP's default."""
    if config.method == "gloo-powersgd":
        return ONE_BUCKET_MB
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return _SMALL_MB if gradients <= _SMALL_MB << 20 else None


if __name__ == "__main__":
    main()
