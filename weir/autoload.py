# SPDX-License-Identifier: Apache-2.0
"""The entry point in the group ``torch.backends``, which every ``import torch`` calls.

Programs that do not use Weir call it, too. So it imports nothing but torch, and never raises. It registers
the backend "weir" with a function that imports Weir when the first group is made. With
``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` torch calls no entry point.
"""

import logging
from typing import Any


def register() -> None:
    """Make ``init_process_group("weir")`` work in programs that do not import ``weir.torch``."""
    try:
        import torch.distributed as dist

        if dist.is_available() and "WEIR" not in dist.Backend._plugins:
            dist.Backend.register_backend("weir", _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception as error:
        logging.getLogger(__name__).warning(
            'the backend "weir" is not registered until weir.torch is imported: %s: %s',
            type(error).__name__,
            error,
        )


def _create(*arguments: Any) -> Any:
    """Import ``weir.torch``, which registers the backend itself in this one's place, and make a group."""
    import torch.distributed as dist

    import weir.torch  # noqa: F401

    return dist.Backend._plugins["WEIR"].creator_fn(*arguments)
