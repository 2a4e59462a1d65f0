# SPDX-License-Identifier: Apache-2.0
"""Layers first for DDP: the sum of one step's gradients goes on while the next forward pass runs.

This module must not postpone the evaluation of annotations: DDP looks at the hook's.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from weir.host_agent.compression.classes import LayerClasses
from weir.host_agent.torch.overlap.bucket import Bucket
from weir.host_agent.torch.overlap.exchange import Exchange
from weir.host_agent.torch.overlap.postponed import Optimizer, PostponedStep, refuse_closure
from weir.host_agent.torch.process_group import WeirProcessGroup
from weir.wire.definition import LAYER_CLASSES, SLOT_LANES

PIECE = 131_072
"""Chosen here, lanes: 512 KiB takes long beside a round trip, and short beside a step."""


@dataclass
class _Pending:
    """A parameter whose gradient is on its way, to ``values[start:]`` of a bucket."""

    bucket: Bucket
    start: int
    gradient: torch.Tensor | None = None  # this rank's own, and its version, as backward left it
    version: int = 0
    step: PostponedStep | None = None  # that waits for the sum


class LayersFirst:
    """Steps a model layer by layer: a layer when its gradient's sum is there, the layers in front first.

    ``backward()`` and ``step()`` return before the gradients are summed. The next forward pass waits for each
    parameter where it is first used, until its sum is there and its optimizer has stepped it. Sums travel in
    pieces, and those of the layers in front pass the others, which the forward pass needs later. Losses and
    parameters are those of DDP alone, bit for bit. The ideas are ByteScheduler's (SOSP 2019) and P3's (MLSys
    2019).

    What reads parameters calls ``finish()`` before, unless it is a forward pass of the model or a
    ``state_dict``; what reads or changes gradients calls ``sums()`` before, between ``backward()`` and
    ``step()``, and then that step is made as without layers. A changed gradient is refused.

    Args:
        ddp: on a group of the weir backend, without another communication hook.
        optimizers: of its parameters; each steps every parameter by itself, without a closure.
        piece: lanes that are summed at a time, a multiple of 256: what is in front waits for one piece.
        at_once: runs of layers, front to back, whose buckets are summed at the same time; each has a group of
            its own, with slots of its own. With 1 all are summed in the group of ``ddp``.

    Raises:
        TypeError: a parameter is complex, the group is not the weir backend's, or a part of the model is
            compiled: it would use
            parameters where nobody sees it.
        ValueError: no optimizer, a piece that is no multiple of 256, or more runs than layer classes.

    Example::

        ddp = DistributedDataParallel(model)
        layers = weir.torch.LayersFirst(ddp, optimizer)   # this line; the loop stays as it is
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(ddp(inputs), targets).backward()
            optimizer.step()
        layers.finish()
    """

    def __init__(
        self, ddp: DistributedDataParallel, *optimizers: Optimizer, piece: int = PIECE, at_once: int = 1
    ) -> None:
        group = ddp.process_group
        if not isinstance(group, WeirProcessGroup):
            raise TypeError(
                f"LayersFirst needs a DDP module on the weir backend, this one is on a {type(group).__name__}"
            )
        if not optimizers:
            raise ValueError(
                "LayersFirst(ddp, optimizer): pass at least one optimizer for LayersFirst to step"
            )
        _refuse_compiled(ddp.module)
        for name, parameter in ddp.module.named_parameters():
            if parameter.is_complex():
                raise TypeError(f"{name} is {parameter.dtype}: train it without LayersFirst, DDP sums it")
        for name, module in ddp.module.named_modules():
            if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse:
                raise TypeError(f"{name} has sparse gradients: train without LayersFirst, DDP sums them")
        if piece < SLOT_LANES or piece % SLOT_LANES:
            raise ValueError(f"a piece has a multiple of {SLOT_LANES} lanes, a packet's, not {piece}")
        if not 1 <= at_once <= LAYER_CLASSES:
            raise ValueError(f"1 to {LAYER_CLASSES} runs of layers are summed at once, not {at_once}")
        self._exchanges = [Exchange(one, piece) for one in (group, *_more_groups(group, at_once - 1))]
        for exchange in self._exchanges:
            exchange.beside = self._exchanges
        self._classes = LayerClasses.of(ddp.module)
        self._ranks = group.size()
        self._names = {parameter: name for name, parameter in ddp.module.named_parameters()}
        self._pending: dict[torch.nn.Parameter, _Pending] = {}
        self._step = 0
        self._overlapped = 0
        self._stepping = False
        self._forward: _Uses | None = None
        ddp.register_comm_hook(None, self._hook)
        self._follow(ddp.module, optimizers)

    @property
    def overlapped(self) -> int:
        """Return how many forward passes began before all was summed."""
        return self._overlapped

    @property
    def overtaken(self) -> int:
        """Return how many pieces of front layers were summed before others that were issued earlier."""
        return sum(exchange.overtaken for exchange in self._exchanges)

    def finish(self) -> None:
        """Wait until every postponed step is made.

        Raises what a sum raised: NonFiniteError, naming the parameter, or GroupBrokenError. Layers that were
        summed by then have been stepped, the same on all ranks; the others have not.
        """
        self._settle(list(self._pending))

    def sums(self) -> None:
        """Wait until all gradients are their averages, as DDP alone leaves them after ``backward()``.

        To be called between ``backward()`` and ``step()``, by all ranks or by some.
        """
        self.finish()

    # What DDP, the model and the optimizers call.

    def _follow(self, module: torch.nn.Module, optimizers: Iterable[Optimizer]) -> None:
        """Hook into the model and the optimizers."""
        module.register_forward_pre_hook(self._begin_forward, prepend=True)
        module.register_forward_hook(self._end_forward, always_call=True)
        for part in module.modules():
            if part is not module:
                part.register_forward_pre_hook(self._part_alone, prepend=True)
            part.register_state_dict_pre_hook(lambda *_: self.finish())  # type: ignore[no-untyped-call]
            part.register_load_state_dict_pre_hook(lambda *_: self.finish())  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(self._postpone)
            optimizer.register_step_post_hook(self._give_back)
            optimizer.register_state_dict_pre_hook(lambda _: self.finish())
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.finish())

    def _hook(self, _state: None, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Take a bucket from DDP, and let DDP go on with this rank's own gradients."""
        if any(pending.step for pending in self._pending.values()):
            self.finish()  # two backward passes without a forward pass between them
        buffer = bucket.buffer()
        parameters = cast(list[torch.nn.Parameter], bucket.parameters())
        first = buffer.storage_offset()
        starts = [int(gradient.storage_offset() - first) for gradient in bucket.gradients()]
        names = [self._names[parameter] for parameter in parameters]
        layers = [self._classes[name] for name in names]
        exchange = self._exchanges[min(layers) * len(self._exchanges) // LAYER_CLASSES]
        mine = Bucket(
            exchange.issued,
            self._step,
            bucket.index(),
            buffer.to("cpu", copy=True).mul_(1.0 / self._ranks),  # as DDP divides
            names,
            starts,
            layers,
        )
        for parameter, start in zip(parameters, starts, strict=True):
            self._pending[parameter] = _Pending(mine, start)
        exchange.issue(mine)
        if bucket.is_last():
            self._step += 1
            # DDP writes gradients in a callback that is not queued yet; what this one queues comes after it.
            engine = Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(self._after_backward))
        ready: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        ready.set_result(buffer)
        return ready

    def _after_backward(self) -> None:
        """Note the gradients that backward has left, to tell if somebody changes them."""
        for parameter, pending in self._pending.items():
            if parameter.grad is not None:
                pending.gradient, pending.version = parameter.grad, _version(parameter)

    def _postpone(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Take from a step the parameters whose sums are on their way."""
        if self._stepping:
            return
        refuse_closure(optimizer, args[1:], kwargs)
        step = PostponedStep(optimizer)
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            pending = self._pending.get(parameter)
            if pending is None or parameter.grad is None:
                continue
            if parameter.grad is not pending.gradient or _version(parameter) != pending.version:
                raise RuntimeError(
                    f"the gradient of {self._names[parameter]} was changed between backward() and step(), by "
                    "clipping or unscaling perhaps, but it is not summed yet: call LayersFirst.sums() before"
                )
            pending.step = step
            parameter.grad = None

    def _give_back(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Show the gradients again that ``_postpone`` took away."""
        if self._stepping:
            return
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            pending = self._pending.get(parameter)
            if pending is not None and pending.step is not None and parameter.grad is None:
                parameter.grad = pending.gradient

    def _begin_forward(self, _module: torch.nn.Module, _args: Any) -> None:
        if self._forward is None:
            self._overlapped += any(not one.bucket.over for one in self._pending.values())
            self._forward = _Uses(self._pending, self._settle)
            self._forward.__enter__()  # type: ignore[no-untyped-call]

    def _end_forward(self, _module: torch.nn.Module, _args: Any, _result: Any) -> None:
        if self._forward is not None:
            self._forward.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._forward = None
            self.finish()

    def _part_alone(self, _module: torch.nn.Module, _args: Any) -> None:
        if self._forward is None:
            self.finish()

    # What becomes of a sum.

    def _settle(self, needed: Iterable[torch.nn.Parameter]) -> None:
        """Wait for the sums of these parameters; step them, and all others whose sums are there by then."""
        for parameter in needed:
            pending = self._pending[parameter]
            try:
                pending.bucket.wait(pending.start)
            except BaseException:
                self._pending.clear()  # what is lost is said once
                raise
        ready = {one: here for one, here in self._pending.items() if here.bucket.has(here.start)}
        steps: dict[PostponedStep, dict[torch.nn.Parameter, torch.Tensor]] = {}
        for parameter, pending in ready.items():
            del self._pending[parameter]
            values = pending.bucket.values[pending.start : pending.start + parameter.numel()]
            average = values.view(parameter.shape).to(parameter.device)
            if pending.step is not None:
                steps.setdefault(pending.step, {})[parameter] = average
            elif pending.gradient is not None and parameter.grad is pending.gradient:
                parameter.grad.copy_(average)
        self._stepping = True
        try:
            with torch.no_grad():
                for step, gradients in steps.items():
                    step.make(gradients)
        finally:
            self._stepping = False


class _Uses(TorchFunctionMode):
    """Sees every use of a parameter in torch, and has it settled before.

    Modules are no safe place to wait: several may share a parameter, and some use those of others.
    """

    def __init__(
        self,
        pending: Mapping[torch.nn.Parameter, _Pending],
        settle: Callable[[Iterable[torch.nn.Parameter]], None],
    ) -> None:
        super().__init__()
        self._pending, self._settle = pending, settle

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch once the parameters among its arguments are settled."""
        if self._pending:
            used = [one for one in _parameters((args, kwargs)) if one in self._pending]
            if used:
                self._settle(used)
        return func(*args, **(kwargs or {}))


def _more_groups(group: WeirProcessGroup, count: int) -> Iterator[WeirProcessGroup]:
    """Make groups of the same ranks, which end with the group."""
    for _ in range(count):
        _made[group.group_name] += 1
        name = f"{group.group_name}/layers{_made[group.group_name]}"
        more = group.split_group(range(group.size()), group_name=name)
        assert more is not None
        group.connection.at_close(more.connection.close)
        yield more


_made: Counter[str] = Counter()
"""By a group's name, how many more were made of its ranks: the same on all of them."""


def _version(parameter: torch.nn.Parameter) -> int:
    """Return how often a parameter's gradient was changed in place."""
    return 0 if parameter.grad is None else int(parameter.grad._version)


def _parameters(arguments: Any) -> Iterator[torch.nn.Parameter]:
    """Return the parameters in nested arguments."""
    if isinstance(arguments, torch.nn.Parameter):
        yield arguments
    elif isinstance(arguments, tuple | list):
        for one in arguments:
            yield from _parameters(one)
    elif isinstance(arguments, dict):
        for one in arguments.values():
            yield from _parameters(one)


def _refuse_compiled(module: torch.nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule) or hasattr(part, "_orig_mod"):
            raise TypeError(
                f"{name or 'the model'} is compiled, so LayersFirst cannot see where it uses its parameters: "
                "train it without LayersFirst, or not compiled"
            )
