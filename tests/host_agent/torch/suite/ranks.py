# SPDX-License-Identifier: Apache-2.0
"""The tests of torch's ``distributed_test``, run one after another in ranks that stay up.

Torch starts four processes and a group for each test, which costs seconds; here one group serves until a test
fails or replaces it. Where a test asks for Gloo by name, Weir passes for it; where it asks for GPUs or for
more ranks than four, it runs all the same.
"""

import importlib
import os
import re
import time
import traceback
import unittest
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Final

import torch.distributed as dist

from tests.host_agent.torch.worlds import WorkerError, World

SIZE: Final = 4  # ranks, for which most tests are made
LONGEST_S: Final = 100.0  # of a test
TIMEOUT_S: Final = 60.0  # of the group, as torch has it there
PROFILED: Final = ("gloo",)
"""Backends whose own events in a profile the tests look at. They expect sizes there, and an end on another
thread. Of Weir, the events of torch's operators have the sizes: see ``test_group_object.py``."""
PASSED: Final = "passed"
SKIPPED: Final = "skipped"


@dataclass(frozen=True)
class Outcome:
    """How a test ended on one rank, or on all: ``PASSED``, ``SKIPPED`` or what was raised."""

    state: str
    why: str = ""
    seconds: float = 0.0
    worn: bool = False  # the group is no longer as it was

    @property
    def last_line(self) -> str:
        """Return the error in a line."""
        named = [line for line in self.why.splitlines() if re.match(r"[\w.]+: ", line)]
        return next(iter(named[-1:] or self.why.splitlines()[-1:]), self.state)


class _InGloosPlace(str):
    """The name of a backend that passes for Gloo's, too, where it is compared."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other


@cache
def suite() -> ModuleType:
    """Return torch's module, imported as for Gloo."""
    from tests.host_agent.torch.suite.without_gpus import ask_for_no_gpus

    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(SIZE), PYTORCH_PRINT_REPRO_ON_FAILURE="0")
    ask_for_no_gpus()
    module = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    os.environ["BACKEND"] = "mpi"  # asked only by what skips tests for fewer than eight ranks, MPI's not
    module.init_multigpu_helper = lambda size, backend: {rank: [rank] for rank in range(size)}
    return module


@cache
def cases() -> type:
    """Return a class that has all of torch's tests."""
    module = suite()
    return type("Cases", (module.TestDistBackend, module.DistributedTest._DistTestBase), {})


def names() -> list[str]:
    """Return the names of all tests."""
    return unittest.TestLoader().getTestCaseNames(cases())


def run_here(name: str, backend: str) -> Outcome:
    """Run a test on this rank, in the default group."""
    from torch.testing._internal import common_utils

    from tests.host_agent.torch.suite.without_gpus import everything_on_the_host

    module = suite()
    module.BACKEND = _InGloosPlace(backend)
    if backend in PROFILED:
        module.PROFILING_SUPPORTED_BACKENDS.append(backend)
        module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)
    case: Any = cases()(name)
    case.rank, group = dist.get_rank(), dist.group.WORLD
    for left in list(dist.distributed_c10d._world.pg_map):  # by another test
        if left is not group:
            dist.destroy_process_group(left)
    common_utils.set_rng_seed()
    began = time.monotonic()
    reason = getattr(getattr(cases(), name), "__unittest_skip_why__", "")
    if reason and not reason.startswith("Only MPI"):  # Gloo has what these test by now
        return Outcome(SKIPPED, reason)
    with everything_on_the_host():
        state, why = end_of(getattr(case, name))
    return Outcome(state, why, time.monotonic() - began, dist.group.WORLD is not group)


def end_of(test: Callable[[], None]) -> tuple[str, str]:
    """Run a test. Returns its state and, where it did not pass, why not."""
    try:
        test()
    except unittest.SkipTest as error:
        return SKIPPED, str(error)
    except SystemExit as error:  # torch's way to skip within a process
        return SKIPPED, f"exit code {error.code}"
    except BaseException as error:
        return type(error).__name__, traceback.format_exc()
    return PASSED, ""


class Ranks:
    """Four ranks of a backend; others take their place after a test that failed.

    Args:
        backend: by its name.
        environment: see ``World``.
        run_here: runs a test, by its name and the backend's, on a rank.
    """

    def __init__(
        self,
        backend: str,
        environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
        run_here: Callable[[str, str], Outcome] = run_here,
    ) -> None:
        self.backend, self._environment, self._run_here = backend, environment, run_here
        self._world: World | None = None
        self._folder: TemporaryDirectory[str] | None = None

    def run(self, name: str) -> Outcome:
        """Run a test on all ranks. Returns the first outcome that is not ``PASSED``, if there is one."""
        world = self._started()
        world.start(self._run_here, name, self.backend)
        end = time.monotonic() + LONGEST_S
        outcomes = [self._outcome(world, rank, end) for rank in range(SIZE)]
        bad = [one for one in outcomes if one.state not in (PASSED, SKIPPED)]
        bad.sort(key=lambda one: "barrier timeout" in one.last_line)  # waited for a rank that has failed
        if bad or any(one.worn for one in outcomes):
            self._replace()  # the ranks may be at different places
        skipped = [one for one in outcomes if one.state == SKIPPED]
        return next(iter([*bad, *skipped, outcomes[0]]))

    def close(self) -> None:
        """End the ranks cleanly."""
        world, self._world = self._world, None
        if world is not None:
            world.close()
        if self._folder is not None:
            self._folder.cleanup()

    def _outcome(self, world: World, rank: int, end: float) -> Outcome:
        try:
            found = world.outcome(rank, max(end - time.monotonic(), 0.1))
        except (WorkerError, EOFError, ConnectionError) as error:
            return Outcome("no answer", f"{type(error).__name__}: {error}")
        return found if isinstance(found, Outcome) else Outcome(type(found).__name__, repr(found))

    def _started(self) -> World:
        if self._world is None:
            self._folder = TemporaryDirectory()
            for part in ("barrier", "test_dir", "init_dir"):
                Path(self._folder.name, part).mkdir()
            common = {"TEMP_DIR": self._folder.name, "WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1"}
            self._world = World(
                SIZE,
                lambda rank: {**self._environment(rank), **common, "RANK": str(rank)},
                timeout_s=TIMEOUT_S,
                backend=self.backend,
            )
        return self._world

    def _replace(self) -> None:
        """End the ranks, whatever state they are in."""
        world, self._world = self._world, None
        if world is not None:
            world.kill()
        if self._folder is not None:
            self._folder.cleanup()
