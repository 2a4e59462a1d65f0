# SPDX-License-Identifier: Apache-2.0
"""Imports that cost less: torch makes a million objects, which the garbage collector need not visit."""

import gc
import importlib
from types import ModuleType


def import_for_good(name: str) -> ModuleType:
    """Import a module with the garbage collector off; later collections, also in forked children, leave out
    all objects that exist by then.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
