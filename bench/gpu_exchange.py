# SPDX-License-Identifier: Apache-2.0
"""The gradient exchange of Weir's hook alone, with buckets as DDP makes them and random gradients."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import nn

import weir.torch
from weir.bench.gpu_model import SHAPES, Gpt
from weir.bench.gpu_place import Place
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings import SCALE_BLOCK
from weir.host_agent.torch.staging import devices_of

_FIRST_BYTES: Final = 1024**2  # of DDP's first bucket; the others have _BUCKET_BYTES at least
_BUCKET_BYTES: Final = 25 * 1024**2
_SHIFT: Final = 1009  # elements by which gradients move from step to step
SPARSIFIERS: Final = ("dense", "dfs", "topk-block", "exdyna")


@dataclass(frozen=True)
class ExchangeItem:
    """Steps with one sparsifier. model: of ``SHAPES``. local: ranks reduce in the host's memory."""

    case: ClassVar[str] = "exchange"

    device: str
    sparsifier: str
    density: float
    model: str
    steps: int
    warmup: int
    local: bool = False

    @property
    def name(self) -> str:
        """Name in progress reports."""
        return f"exchange of {self.sparsifier}{' local' if self.local else ''}, {self.device}"

    def run(self, place: Place) -> dict[str, Any]:
        """Return the seconds of every step, and counts of the last one."""
        with torch.device("meta"):
            model: nn.Module = Gpt(SHAPES[self.model])
        model = model.to_empty(device=self.device)
        group = place.weir(local=self.local)
        state = weir.torch.HookState(
            model, process_group=group, sparsifier=self.sparsifier, density=self.density
        )
        layouts = list(buckets(list(model.named_parameters())))
        generator = torch.Generator(self.device).manual_seed(100 + place.rank)
        gradients = [
            torch.randn(layout.elements, generator=generator, device=self.device) for layout in layouts
        ]
        seconds = []
        for step in range(self.warmup + self.steps):
            parts = [gradient.roll(_SHIFT * step) for gradient in gradients]
            began = place.begin()
            works = [
                group.submit(
                    functools.partial(state.exchange, layout, part, layout is layouts[-1]),
                    devices=devices_of(part),
                )
                for layout, part in zip(layouts, parts, strict=True)
            ]
            for work in works:
                work.wait()
            seconds.append(place.since(began))
        stats = state.last_step
        assert stats is not None
        return {
            "seconds": seconds[self.warmup :],
            "elements": stats.elements,
            "buckets": len(layouts),
            "bytes_up": stats.bytes_up,
            "bytes_down": stats.bytes_down,
            "sent_elements": stats.sent_elements,
            "union_elements": stats.union_elements,
            "selection_seconds": stats.selection_seconds,
            "reduce_seconds": stats.reduce_seconds,
            "hook_seconds": stats.seconds,
        }


def buckets(named: Sequence[tuple[str, nn.Parameter]]) -> Iterator[BucketLayout]:
    """Yield the layouts of DDP's buckets: from the last parameter to the first, the first bucket small."""
    index, names, parameters, size = 0, list[str](), list[nn.Parameter](), 0
    for name, parameter in reversed(named):
        names.append(name)
        parameters.append(parameter)
        size += 4 * parameter.numel()
        if size >= (_BUCKET_BYTES if index else _FIRST_BYTES):
            yield BucketLayout.of(index, names, parameters, SCALE_BLOCK)
            index, names, parameters, size = index + 1, [], [], 0
    if names:
        yield BucketLayout.of(index, names, parameters, SCALE_BLOCK)
