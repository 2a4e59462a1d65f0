# SPDX-License-Identifier: Apache-2.0
"""One rank of ``weir bench gpu``: measures items one after another, together with the other ranks.

Started with RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and Weir's variables; arguments: items as ``encode``
writes them, and the seconds that one may take. Prints lines of JSON: "ready", then the result of each item.
"""

import faulthandler
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import torch
import torch.distributed as dist

from weir.bench.gpu_allreduce import AllreduceItem
from weir.bench.gpu_copy import CopyItem
from weir.bench.gpu_exchange import ExchangeItem
from weir.bench.gpu_place import Item, Place
from weir.bench.gpu_train import TrainItem

_KINDS: Final[dict[str, Any]] = {
    kind.case: kind for kind in (CopyItem, AllreduceItem, ExchangeItem, TrainItem)
}


def encode(items: Sequence[Item]) -> str:
    """Return items as a command-line argument."""
    return json.dumps([[item.case, asdict(item)] for item in items])  # type: ignore[call-overload]


def decode(argument: str) -> list[Item]:
    """Return the items of a command-line argument."""
    return [
        _KINDS[case](**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
        for case, values in json.loads(argument)
    ]


def measure(items: Sequence[Item], limit_s: float) -> None:
    """Measure and print."""
    cuda = any(item.device == "cuda" for item in items)
    if cuda:
        torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    place = Place(cuda)
    place.begin()
    print(json.dumps("ready"), flush=True)
    for item in items:
        faulthandler.dump_traceback_later(limit_s)  # tells where a rank stood that is then killed
        result = item.run(place)
        place.tidy()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Measure the items on the command line."""
    torch.set_num_threads(1)
    try:
        measure(decode(sys.argv[1]), float(sys.argv[2]))
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # not to wait, in the groups' end, for ranks that wait for this one


if __name__ == "__main__":
    main()
