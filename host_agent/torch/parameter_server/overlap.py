# SPDX-License-Identifier: Apache-2.0
"""Pushes while backward runs: a parameter's gradient is given to the step as soon as it is there."""

from collections.abc import Callable, Mapping
from functools import partial

import torch

from weir.host_agent.parameter_server.terms import OptimizerSpec
from weir.host_agent.torch.parameter_server.slot_worker import SlotSession


class Overlap:
    """Hooks on a model's parameters that push gradients while backward makes those of the layers before.

    Args:
        session: of the worker.
        parameters: those that are trained, by name.
        now: returns the optimizer as it is, when a step's first gradient is there.
        on_host: returns a parameter's gradient in host memory.

    Attributes:
        paused: gradients accumulate, nothing is pushed.
    """

    def __init__(
        self,
        session: SlotSession,
        parameters: Mapping[str, torch.nn.Parameter],
        now: Callable[[], OptimizerSpec],
        on_host: Callable[[torch.nn.Parameter], torch.Tensor],
    ) -> None:
        self._session, self._now, self._on_host = session, now, on_host
        self._given: dict[str, tuple[torch.Tensor, int]] = {}
        self.paused = False
        self._parameters = dict(parameters)
        self._hooks = []
        for name, parameter in parameters.items():
            arrived = partial(self._arrived, name)
            self._hooks.append(parameter.register_post_accumulate_grad_hook(arrived))  # type: ignore[no-untyped-call]

    def _arrived(self, name: str, parameter: torch.Tensor) -> None:
        if self.paused:
            return
        if name in self._given:
            raise RuntimeError(
                f"{name} has a gradient again before step(), and the first one is pushed already: where "
                "gradients accumulate, do all backward passes but the last within no_sync()"
            )
        if not self._given:
            self._session.begin_step(self._now())
        assert parameter.grad is not None
        self._given[name] = parameter.grad, parameter.grad._version
        self._session.put(name, self._on_host(self._parameters[name]))

    def end(self) -> bool:
        """Return whether a step has begun. RuntimeError: a gradient was changed after it had been pushed."""
        given, self._given = self._given, {}
        for name, (gradient, version) in given.items():
            now = self._parameters[name].grad
            if now is not gradient or now._version != version:
                raise RuntimeError(
                    f"{name}: the gradient was changed after backward, when it had been pushed; clip by "
                    "max_norm, or leave out overlap"
                )
        return bool(given)

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self._hooks:
            hook.remove()
