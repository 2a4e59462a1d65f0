# SPDX-License-Identifier: Apache-2.0
"""All-reduce over Open MPI and MPICH, of wheels, on the same networks as Gloo and Weir.

Their ranks are processes of their own, as their launchers want it: they run before or after those of the
other contenders, on the same links. ``python -m weir.bench.collectives.mpi JOB`` is a rank.
"""

import ctypes
import importlib
import importlib.metadata
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from softp4.native.scratch import scratch_folder
from weir.bench.collectives.samples import Sample, Spec, tensor
from weir.bench.ranks import Links
from weir.process.child import ChildError
from weir.process.processor import ProcessorTime

_LOG: Final = 1500


@dataclass(frozen=True)
class Library:
    """An MPI, as its wheel installs it beside this Python.

    Attributes:
        wheel: its distribution; ``mpi4py`` is needed, too.
        file: of the library, under ``lib``.
        launcher: command, under ``bin``.
        over_links: environment that keeps its ranks to TCP over an interface, ``{}`` in values; none: it
            cannot be measured there.
    """

    wheel: str
    file: str
    launcher: tuple[str, ...]
    environment: Mapping[str, str]
    over_links: Mapping[str, str]


LIBRARIES: Final = {
    "mpich": Library(
        "mpich",
        "libmpi.so.12",
        ("mpiexec.hydra", "-launcher", "fork"),
        {"MPI4PY_MPIABI": "mpich"},
        {
            "MPIR_CVAR_NOLOCAL": "1",
            "MPIR_CVAR_CH4_NETMOD": "ofi",
            "FI_PROVIDER": "tcp",
            "FI_TCP_IFACE": "{}",
        },
    ),
    "openmpi": Library(
        "openmpi",
        "libmpi.so.40",
        ("prterun", "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE"),
        {"MPI4PY_MPIABI": "openmpi", "OPAL_PREFIX": sys.prefix},
        {},
    ),
}
"""By the names of contenders."""


def why_not(name: str, links: Links) -> str:
    """Return why a library cannot be measured on this network; empty if it can."""
    library = LIBRARIES[name]
    for wheel in (library.wheel, "mpi4py"):
        try:
            importlib.metadata.distribution(wheel)
        except importlib.metadata.PackageNotFoundError:
            return f"no wheel {wheel} (pip install {library.wheel} mpi4py)"
    if links.rate is not None and not library.over_links:
        return "its ranks do not find one another from network namespaces"
    return ""


def measure(name: str, spec: Spec, links: Links, limit_s: float) -> list[dict[float, list[Sample]]]:
    """Return each rank's samples, by density.

    Raises:
        ChildError: a rank failed, or they took too long; with what they said.
    """
    library = LIBRARIES[name]
    binaries = Path(sys.prefix) / "bin"
    with scratch_folder("weir-mpi") as folder:
        job = folder / "job"
        job.write_bytes(pickle.dumps((name, spec, folder)))
        command = [str(binaries / library.launcher[0]), *library.launcher[1:]]
        environment = dict(os.environ)
        for rank in range(links.workers):
            prefix, own = links.start(rank)
            interface = own.get("GLOO_SOCKET_IFNAME", "")
            environment |= {**own, **library.environment}
            if links.rate is not None:
                environment |= {key: value.format(interface) for key, value in library.over_links.items()}
            words = [*prefix, sys.executable, "-P", "-m", "weir.bench.collectives.mpi", str(job)]
            command += [*([":"] if rank else []), "-n", "1", *words]
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ChildError(f"{name} took more than {limit_s:g} s") from None
        if done.returncode:
            raise ChildError(f"{name}: {done.stdout.decode(errors='replace')[-_LOG:]}")
        return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(links.workers)]


def main() -> None:
    """Do a rank's part of the job on the command line."""
    name, spec, folder = pickle.loads(Path(sys.argv[1]).read_bytes())
    ctypes.CDLL(str(Path(sys.prefix) / "lib" / LIBRARIES[name].file), mode=ctypes.RTLD_GLOBAL)
    mpi: Any = importlib.import_module("mpi4py.MPI")
    torch.set_num_threads(1)
    group = mpi.COMM_WORLD
    samples = {density: _turns(mpi, group, spec, density) for density in spec.given.densities}
    (folder / f"{group.rank}.result").write_bytes(pickle.dumps(samples))


def _turns(mpi: Any, group: Any, spec: Spec, density: float) -> list[Sample]:
    own = tensor(spec, density, group.rank)
    right = torch.stack([tensor(spec, density, rank) for rank in range(group.size)]).sum(0)
    found = []
    for turn in range(spec.repeats + 1):
        data = own.clone()
        group.Barrier()
        before, began = ProcessorTime.now(spec.switches), time.perf_counter()
        group.Allreduce(mpi.IN_PLACE, data.numpy())
        seconds = time.perf_counter() - began
        worker = (ProcessorTime.now() - before).own
        group.Barrier()
        used = ProcessorTime.now(spec.switches) - before
        torch.testing.assert_close(data, right, rtol=1e-5, atol=1e-5)
        if turn:  # the first one warms up
            found.append(Sample(seconds, worker, used.others, used.machine))
    return found


if __name__ == "__main__":
    main()
