# SPDX-License-Identifier: Apache-2.0
"""Time of choosing and packing a gradient's largest blocks: ``python -m weir.bench.gpu_selection``.

The gradient is one parameter of normal numbers whose scale differs from value to value. Before each call a
GPU's cache is overwritten. Peers: ``torch.topk``, and on a GPU the C code on the same machine's processor.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from weir.bench.device_time import time_of
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


def measure(vector: torch.Tensor, size: int, density: float, flush: Callable[[], object]) -> None:
    """Print the times of one block size."""
    length, device = vector.numel(), vector.device
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
    if kernels.available(device):
        from weir.host_agent.compression.kernels.choice import choose

        calls["choose; the mask stays on the device"] = lambda: choose([vector], [size], [count])
    print(f"\n{length:,} values, {density:.2%} in blocks of {size}: {count:,} blocks; C: {1e3 * in_c:.0f} ms")
    for name, call in calls.items():
        print(f"  {name:45} {time_of(call, flush)}")


def main() -> None:
    """Measure what the command line says."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=100_000_000 if gpu else 2_000_000)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 32, 256], help="values in a block")
    given = parser.parse_args()
    device = torch.device("cuda" if gpu else "cpu")
    print(torch.cuda.get_device_name() if gpu else "CPU", f"torch {torch.__version__}", sep=", ")
    vector = torch.randn(given.elements, device=device)
    vector *= torch.exp(0.5 * torch.randn(given.elements, device=device))
    cache = torch.empty(_CACHE, dtype=torch.uint8, device=device)
    bf16 = vector.bfloat16().float()
    for size in given.sizes:
        measure(vector, size, given.density, cache.zero_)
    print("\nvalues of bfloat16, many of which are equal:", end="")
    measure(bf16, given.sizes[0], given.density, cache.zero_)


if __name__ == "__main__":
    main()
