# SPDX-License-Identifier: Apache-2.0
"""Time of choosing and packing a gradient's largest blocks.

The gradient is one parameter of normal numbers whose scale differs from value to value. Before each call a
GPU's cache is overwritten. Peers: ``torch.topk``, and the C code on the same machine's processor.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from weir.bench.case import Run, parameter
from weir.bench.gradients.device_time import TIMES, device, device_words, rows
from weir.bench.results import Row, Table
from weir.host_agent.collectives.packing import PackedLanes
from weir.host_agent.compression import kernels
from weir.host_agent.compression.bucket_layout import BucketLayout
from weir.host_agent.compression.encodings.encoding import Encoding, EncodingPlan
from weir.host_agent.compression.encodings.selection import Selection
from weir.host_agent.compression.encodings.shared_mask import words_for
from weir.host_agent.compression.packed_vector import packed_vector
from weir.host_agent.compression.sparsifiers.dfs_blocks import mark_largest

_FORM = PackedLanes(4, 4)  # 8 bits a value, 4 workers
_UNIT = 128  # values that share a scale
_CACHE = 1 << 28  # bytes: more than a cache has


@dataclass(frozen=True)
class Parameters:
    """The gradient, and how much of it is chosen."""

    elements: int = parameter(2_000_000, "of the gradient", least=1024)
    density: float = parameter(0.01, "share of the values to send", above=0, most=1)
    sizes: tuple[int, ...] = parameter((1, 32, 256), "values in a block", least=1, most=256)


def run(parameters: Parameters, run: Run) -> Iterator[Table]:
    """Measure on a GPU if there is one; also values of bfloat16, many of which are equal."""
    vector = torch.randn(parameters.elements, device=device())
    vector *= torch.exp(0.5 * torch.randn_like(vector))
    settings = [(vector, size, {"blocks": f"blocks of {size}"}) for size in parameters.sizes]
    first = parameters.sizes[0]
    settings.append((vector.bfloat16().float(), first, {"blocks": f"blocks of {first}, bfloat16"}))
    yield Table(
        f"Choice of {parameters.density:.2%} of {parameters.elements:,} values",
        TIMES,
        tuple(
            row
            for values, size, setting in settings
            for row in measure(values, size, parameters.density, setting, run.repeats)
        ),
        peers=("torch.topk of magnitudes",),
        notes=(device_words(),),
    )


def measure(
    vector: torch.Tensor, size: int, density: float, setting: Mapping[str, str], repeats: int
) -> Iterator[Row]:
    """Yield the times of one block size."""
    cache = torch.empty(_CACHE, dtype=torch.uint8, device=vector.device)
    length = vector.numel()
    count = round(density * length / size)
    mask = np.zeros(words_for(length, size), np.uint32)
    began = time.perf_counter()
    mark_largest([vector.cpu()], [size], [count], [mask])
    in_c = time.perf_counter() - began
    layout = BucketLayout.of(0, ["gradient"], [vector], 256)
    plan = EncodingPlan({"gradient": Encoding(size)}, 256)
    selection = Selection.of(plan, layout, {"gradient": mask})
    scales = np.full(-(-selection.layout.length // _UNIT), np.float32(100).view(np.uint32), np.uint32)
    spread = layout.spread(vector)

    def lanes() -> None:
        packed = packed_vector(selection.pack(spread))
        packed.lanes(_FORM, None, scales, _UNIT, lambda lanes: np.empty(lanes, np.int32))

    calls: dict[str, Callable[[], object]] = {
        "choose; the mask to main memory": lambda: mark_largest([vector], [size], [count], [mask.copy()]),
        "pack what all workers agreed on": lambda: selection.pack(spread),
        "pack, 8 bits a value, lanes to main memory": lanes,
        "keep the residual": lambda: selection.subtract(spread, selection.pack(spread)),
        "torch.topk of magnitudes": lambda: torch.topk(vector.abs(), min(count * size, length), sorted=False),
    }
    if kernels.available(vector.device):
        from weir.host_agent.compression.kernels.choice import choose

        calls["choose; the mask stays on the device"] = lambda: choose([vector], [size], [count])
    yield Row("C code", {"ms": 1e3 * in_c}, setting)
    yield from rows(calls, repeats, setting, cache.zero_)
