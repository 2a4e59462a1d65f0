# SPDX-License-Identifier: Apache-2.0
"""A server's part of the model with torch's own optimizer over it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from weir.host_agent.collectives.tensor_memory import array_of
from weir.host_agent.parameter_server.routing import Integers, Units
from weir.host_agent.parameter_server.terms import OptimizerSpec
from weir.host_agent.parameter_server.value_filter import Floats

_CLASSES: Final[dict[str, type[torch.optim.Optimizer]]] = {
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
}
_HOW: Final = frozenset({"foreach", "fused", "capturable", "differentiable"})  # it is computed, not what


def spec_of(optimizer: torch.optim.Optimizer) -> OptimizerSpec:
    """Return what a server is to know of an optimizer. TypeError for one that servers do not have."""
    name = type(optimizer).__name__
    if _CLASSES.get(name) is not type(optimizer):
        raise TypeError(
            f"parameter servers have torch's {', '.join(_CLASSES)}, not {type(optimizer).__qualname__}"
        )
    return OptimizerSpec(name, tuple(_plain(group, optimizer) for group in optimizer.param_groups))


def _plain(group: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return a group's hyper-parameters as JSON has them."""
    found = {}
    for key in optimizer.defaults:
        if key not in _HOW and key in group:
            value = group[key]
            found[key] = (
                value.item()
                if isinstance(value, torch.Tensor)
                else list(value)
                if isinstance(value, tuple)
                else value
            )
    return found


@dataclass(frozen=True)
class Section:
    """A run of a server's elements that is one parameter of its optimizer.

    Attributes:
        title: of it.
        length: elements.
        group: the optimizer's group of parameters that it is in.
        row: elements of a row, where gradients are sparse; 0: they are not.
    """

    title: str
    length: int
    group: int
    row: int = 0


class ShardOptimizer:
    """One server's part of the model, section after section in ``model``, and the optimizer that changes it.

    Args:
        sections: of the server.
        spec: of the optimizer.

    Attributes:
        model: float32, flat; zeros at first.
        steps: how often ``apply`` was called.
    """

    def __init__(self, sections: Sequence[Section], spec: OptimizerSpec) -> None:
        self._spec, self.steps = spec, 0
        self._make(sections)

    def _make(self, sections: Sequence[Section]) -> None:
        self.model = torch.zeros(sum(section.length for section in sections))
        self._places: dict[str, slice] = {}
        self._parameters: dict[str, torch.nn.Parameter] = {}
        members: dict[int, list[torch.nn.Parameter]] = {}
        start = 0
        for section in sections:
            place = self._places[section.title] = slice(start, start + section.length)
            values = self.model[place]
            parameter = torch.nn.Parameter(values.view(-1, section.row) if section.row else values)
            self._parameters[section.title] = parameter
            members.setdefault(section.group, []).append(parameter)
            start += section.length
        self._groups = sorted(members)
        make: Any = _CLASSES[self._spec.name]
        # Torch makes no optimizer of nothing, which is where a placement has given a server no units.
        groups = [{"params": members[group], **_typed(self._spec.groups[group])} for group in self._groups]
        self._optimizer: torch.optim.Optimizer | None = make(groups) if groups else None

    def place(self, title: str) -> slice:
        """Return a section's elements of ``model``."""
        return self._places[title]

    def view(self, title: str) -> torch.Tensor:
        """Return a section's elements, in their memory."""
        return self.model[self._places[title]]

    def configure(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Take new hyper-parameters, of every group of the optimizer."""
        if self._optimizer is not None:
            for index, own in zip(self._groups, self._optimizer.param_groups, strict=True):
                own.update(_typed(groups[index]))

    def apply(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Make one step with the gradients of some sections by title, flat float32, or sparse of rows; others
        stay as they are.
        """
        self.steps += 1
        for title, gradient in gradients.items():
            parameter = self._parameters[title]
            parameter.grad = gradient if gradient.is_sparse else gradient.view_as(parameter)
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state by section: tensors, in its own memory."""
        state = {} if self._optimizer is None else self._optimizer.state
        return {
            title: dict(state[parameter])
            for title, parameter in self._parameters.items()
            if parameter in state
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take what ``state_dict`` gave; sections that it does not name start again."""
        if self._optimizer is None:
            return
        self._optimizer.state.clear()
        for title, known in state.items():
            if title in self._parameters:
                self._optimizer.state[self._parameters[title]] = {
                    key: value.clone() if isinstance(value, torch.Tensor) else value
                    for key, value in known.items()
                }

    def rows(self) -> torch.Tensor:
        """Return float32[k, n]: the model, and each part of the state that elements have, as if there were no
        sections.
        """
        known = self.state_dict()
        found = [self.model]
        for name in state_of(self._spec):
            parts = [
                values.reshape(-1)
                if (values := known.get(title, {}).get(name)) is not None
                else torch.full((place.stop - place.start,), self._initial(name))
                for title, place in self._places.items()
            ]
            found.append(torch.cat(parts) if parts else torch.zeros(0))
        return torch.stack(found)

    def rearrange(self, sections: Sequence[Section], rows: torch.Tensor, steps: int) -> None:
        """Have other sections, with what ``rows`` returned of their elements, after this many steps."""
        self._make(sections)
        self.steps = steps
        self.model.copy_(rows[0])
        if not steps:
            return
        state: dict[str, dict[str, torch.Tensor]] = {}
        for title, place in self._places.items():
            shape = self._parameters[title].shape
            state[title] = {
                name: part[place].reshape(shape)
                for name, part in zip(state_of(self._spec), rows[1:], strict=True)
            }
            if self._spec.name != "SGD":
                state[title]["step"] = torch.tensor(float(steps))
        self.load_state_dict(state)

    def _initial(self, name: str) -> float:
        return float(self._spec.groups[0].get("initial_accumulator_value", 0.0)) if name == "sum" else 0.0


class UnitsOptimizer:
    """Torch's optimizer over the units that a server has, as ``ServerMachine`` uses it.

    Each step is one at learning rate x share. So all workers' pushes of one number together make about one
    synchronous step, also where an optimizer does not care how large gradients are, as Adam. Units that come
    from another server have made as many steps as the units here, or these as many as they.
    """

    def __init__(self, units: Units, mine: Integers, spec: OptimizerSpec) -> None:
        self._units, self._spec = units, spec
        self._sections = self._cut(mine)
        self._shard = ShardOptimizer(self._sections, spec)

    def _cut(self, mine: Integers) -> list[Section]:
        """Return a section for each parameter of which there is something."""
        of, sizes = self._units.of_parameter[mine], self._units.sizes[mine]
        lengths = np.bincount(of, weights=sizes, minlength=len(self._units.parameters)).astype(np.int64)
        return [
            Section(info.name, length, info.group, info.row)
            for info, length in zip(self._units.parameters, lengths.tolist(), strict=True)
            if length
        ]

    @property
    def parameters(self) -> Floats:
        """Server's elements, in their memory."""
        found: Floats = array_of(self._shard.model)
        return found

    @property
    def steps(self) -> int:
        """Return how many steps were made."""
        return self._shard.steps

    def step(
        self, gradient: Floats, touched: Integers | None, lr: float, share: float, settings: str
    ) -> None:
        """Make a step. settings: the groups' hyper-parameters as JSON; empty: those of the job's terms."""
        groups = json.loads(settings) if settings else self._spec.groups
        self._shard.configure([{**group, "lr": group["lr"] * share} for group in groups])
        whole, found = torch.from_numpy(gradient), {}
        for section in self._sections:
            place = self._shard.place(section.title)
            values = whole[place]
            if section.row:
                table = values.view(-1, section.row)
                rows = _rows_of(touched, place, table, section.row)
                values = torch.sparse_coo_tensor(
                    rows[None], table[rows], table.shape, is_coalesced=True, check_invariants=False
                )
            found[section.title] = values
        self._shard.apply(found)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the optimizer's state by section and name."""
        return {
            "steps": np.array([self.steps]),
            **{
                f"{title}/{name}": np.asarray(value)
                for title, known in self._shard.state_dict().items()
                for name, value in known.items()
                if value is not None
            },
        }

    def load(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take what ``arrays`` gave."""
        state: dict[str, dict[str, torch.Tensor]] = {}
        self._shard.steps = int(arrays["steps"][0])
        for path, array in arrays.items():
            title, _, name = path.rpartition("/")
            if title:
                state.setdefault(title, {})[name] = torch.from_numpy(array.copy())
        self._shard.load_state_dict(state)

    def rows(self, places: Integers) -> Floats:
        """Return the parameters and the state at some elements."""
        found: Floats = array_of(self._shard.rows()[:, torch.from_numpy(places)])
        return found

    def rearrange(self, units: Integers, source: Integers, rows: Floats, steps: int) -> None:
        """Have other units from now on, see ``Optimizer``."""
        everything = torch.cat([self._shard.rows(), torch.from_numpy(rows.copy())], dim=1)
        self._sections = self._cut(units)
        self._shard.rearrange(self._sections, everything[:, torch.from_numpy(source)], max(self.steps, steps))


def _rows_of(touched: Integers | None, place: slice, table: torch.Tensor, row: int) -> torch.Tensor:
    """Return the rows of a section that have a gradient."""
    if touched is None:
        return table.ne(0).any(dim=1).nonzero().reshape(-1)
    first, last = np.searchsorted(touched, [place.start, place.stop])
    return torch.from_numpy(np.unique((touched[first:last] - place.start) // row))


def state_of(spec: OptimizerSpec) -> tuple[str, ...]:
    """Return the parts of an optimizer's state that every element has, as torch names them."""
    if spec.name == "SGD":
        return ("momentum_buffer",) if any(group.get("momentum") for group in spec.groups) else ()
    if spec.name == "Adagrad":
        return ("sum",)
    most = ("max_exp_avg_sq",) if any(group.get("amsgrad") for group in spec.groups) else ()
    return ("exp_avg", "exp_avg_sq", *most)


def words_of_move(spec: OptimizerSpec) -> int:
    """Return the words that an element takes when it moves."""
    return 1 + len(state_of(spec))


def _typed(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters as torch has them."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in group.items()}
