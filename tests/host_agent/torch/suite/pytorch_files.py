# SPDX-License-Identifier: Apache-2.0
"""The tests of Gloo that are in pytorch's repository and not in torch's wheel, aimed at Weir.

``WEIR_PYTORCH_TESTS`` names the folder ``test/distributed`` of a checkout of about torch's version. The tests
run in ranks that stay up, see ``ranks.py``; each makes its own groups. Where it makes one of Gloo's, by the
backend's name or by ``ProcessGroupGloo``, a backend under test gets it instead.
"""

import contextlib
import importlib
import itertools
import os
import sys
import time
import unittest
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest import mock

import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroupGloo

import weir.torch
from tests.host_agent.torch.suite.ranks import PASSED, SIZE, SKIPPED, Outcome, end_of

FOLDER: Final = os.environ.get("WEIR_PYTORCH_TESTS", "")
FILES: Final = ("test_c10d_gloo", "test_c10d_object_collectives", "test_c10d_spawn_gloo")
_run = itertools.count()


@cache
def modules() -> list[ModuleType]:
    """Return those of the files that are in the folder, imported as on a machine without GPUs."""
    from tests.host_agent.torch.suite.without_gpus import ask_for_no_gpus

    ask_for_no_gpus()
    sys.path.insert(0, FOLDER)
    found = [importlib.import_module(name) for name in FILES if (Path(FOLDER) / f"{name}.py").exists()]
    for module in found:
        if hasattr(module, "gpus_for_rank"):
            module.gpus_for_rank = lambda size: [[rank] for rank in range(size)]
    return found


@cache
def cases() -> dict[str, type[unittest.TestCase]]:
    """Return the classes of tests, by file and name; not those that only make Gloo connect later."""
    return {
        f"{module.__name__}.{name}": kind
        for module in modules()
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase)
        if kind.__module__ == module.__name__ and "LazyInit" not in name
    }


def names() -> list[str]:
    """Return the names of all tests: file, class and method. Those on GPUs that are there without, too, are
    not among them.
    """
    return [
        f"{case}.{name}"
        for case, kind in cases().items()
        for known in [unittest.TestLoader().getTestCaseNames(kind)]
        for name in known
        if not name.endswith("_cuda") or name.removesuffix("_cuda") not in known
    ]


def run_here(name: str, backend: str) -> Outcome:
    """Run a test on this rank, if it is one of the test's."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    from tests.host_agent.torch.suite.without_gpus import everything_on_the_host

    class_name, _, method = name.rpartition(".")
    kind = cases()[class_name]
    case: Any = kind(method)
    rank, store = int(os.environ["RANK"]), Path(os.environ["TEMP_DIR"], f"store-{next(_run)}")
    shared = isinstance(case, MultiProcessTestCase)
    if dist.is_initialized():
        dist.destroy_process_group()
    if rank >= (case.world_size if shared else 1):
        return Outcome(PASSED)
    if reason := getattr(getattr(kind, method), "__unittest_skip_why__", ""):
        return Outcome(SKIPPED, reason)
    common_utils.set_rng_seed()
    began = time.monotonic()
    with everything_on_the_host(), in_gloos_place(backend):
        if shared:
            case.rank, case.file_name = rank, str(store)
            state, why = end_of(getattr(case, method))
        else:
            state, why = end_of(lambda: _run_alone(case, method))
        if state == PASSED and dist.is_initialized():
            dist.destroy_process_group()
    return Outcome(state, why, time.monotonic() - began)


def _run_alone(case: Any, method: str) -> None:
    case.setUp()
    try:
        getattr(case, method)()
    finally:
        case.tearDown()


@contextlib.contextmanager
def in_gloos_place(backend: str) -> Iterator[None]:
    """Let a backend's groups be made in the block where Gloo's are asked for."""
    if backend == "gloo":
        yield
        return
    made: list[weir.torch.WeirProcessGroup] = []

    class GroupInGloosPlace:
        _Options = ProcessGroupGloo._Options
        create_device = staticmethod(ProcessGroupGloo.create_device)

        def __new__(cls, store: Any, rank: int, size: int, options: Any) -> Any:
            timeout: timedelta = options._timeout
            made.append(weir.torch.group_from_store(store, rank, size, timeout=timeout))
            return made[-1]

    with contextlib.ExitStack() as stack:
        for where in (dist, dist.distributed_c10d):
            stack.enter_context(mock.patch.object(where, "ProcessGroupGloo", GroupInGloosPlace))
            for name in ("init_process_group", "new_group"):
                named = _by_name(getattr(where, name), backend)
                stack.enter_context(mock.patch.object(where, name, named))
        create = staticmethod(ProcessGroupGloo.create_device)
        stack.enter_context(
            mock.patch.object(weir.torch.WeirProcessGroup, "create_device", create, create=True)
        )
        yield
    for group in made:
        group.shutdown()


def _by_name(function: Any, backend: str) -> Any:
    """Return a function of torch's that makes groups of a backend where Gloo's are asked for by name."""

    def named(*args: Any, **kwargs: Any) -> Any:
        given = [backend if one == "gloo" else one for one in args]
        return function(*given, **{k: backend if v == "gloo" else v for k, v in kwargs.items()})

    return named


assert SIZE >= 4, "torch's tests have up to four ranks"
