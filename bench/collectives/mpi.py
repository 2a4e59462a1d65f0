# SPDX-License-Identifier: Apache-2.0
"""All-reduce over Open MPI and MPICH, of wheels, on the same networks as Gloo and Weir.

A launcher starts its ranks itself, so they are processes of their own, which run after those of the other
contenders, on the same links: Gloo's, over the kernel's bridge. Each enters its host's network namespace.
MPI takes all of them for ranks of one machine, so over links its shared memory is switched off. MPICH's ranks
inherit a socket to their launcher. Those of Open MPI connect to it over TCP, so theirs runs in the first
host's namespace and listens on its link.

``python -m weir.bench.collectives.mpi JOB`` is a rank.
"""

import ctypes
import importlib
import importlib.metadata
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
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
_START_S: Final = 60.0  # that ranks may take until they measure


@dataclass(frozen=True)
class Library:
    """An MPI, as its wheel installs it beside this Python.

    Attributes:
        wheel: its distribution; ``mpi4py`` is needed, too.
        file: of the library, under ``lib``.
        launcher: command, under ``bin``: one that the other wheel does not have, too.
        environment: by which mpi4py and the library find their files.
        over_links: environment that keeps its ranks to TCP over an interface, ``{}`` in values.
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
        {
            "PMIX_MCA_ptl_base_if_include": "{}",
            "PMIX_MCA_ptl_base_remote_connections": "1",
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "tcp,self",
            "OMPI_MCA_btl_tcp_if_include": "{}",
        },
    ),
}
"""By the names of contenders."""


def why_not(name: str) -> str:
    """Return why a library cannot be measured; empty if it can."""
    library = LIBRARIES[name]
    for wheel in (library.wheel, "mpi4py"):
        try:
            importlib.metadata.distribution(wheel)
        except importlib.metadata.PackageNotFoundError:
            return f"no wheel {wheel} (pip install {library.wheel} mpi4py)"
    return ""


def measure(name: str, spec: Spec, links: Links, limit_s: float) -> list[dict[float, list[Sample]]]:
    """Return each rank's samples, by density.

    Raises:
        ChildError: a rank failed, or they took too long; with what they said.
    """
    with scratch_folder("weir-mpi") as folder:
        job = folder / "job"
        job.write_bytes(pickle.dumps((name, spec, folder)))
        command, environment = _launch(LIBRARIES[name], links, job)
        log = folder / "log"
        with log.open("wb") as file:
            try:
                done = subprocess.run(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    timeout=_START_S + limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise ChildError(f"{name} took more than {limit_s:g} s: {_said(log)}") from None
        if done.returncode:
            raise ChildError(f"{name}: {_said(log)}")
        return [pickle.loads((folder / f"{rank}.result").read_bytes()) for rank in range(links.workers)]


def _launch(library: Library, links: Links, job: Path) -> tuple[list[str], dict[str, str]]:
    """Return the launcher's command, with a rank in each host's namespace, and its environment."""
    first, own = links.start(0)
    command = [*first, str(Path(sys.prefix) / "bin" / library.launcher[0]), *library.launcher[1:]]
    rank = [sys.executable, "-P", "-m", __spec__.name, str(job)]
    for number in range(links.workers):
        prefix, _ = links.start(number)
        command += [*([":"] if number else []), "-n", "1", *prefix, *rank]
    over = {}
    if links.rate is not None:
        interface = own["GLOO_SOCKET_IFNAME"]
        over = {key: value.format(interface) for key, value in library.over_links.items()}
    return command, {**os.environ, **library.environment, **over}


def _said(log: Path) -> str:
    return log.read_text(errors="replace")[-_LOG:]


def main() -> None:
    """Do a rank's part of the job on the command line."""
    name, spec, folder = pickle.loads(Path(sys.argv[1]).read_bytes())
    ctypes.CDLL(str(Path(sys.prefix) / "lib" / LIBRARIES[name].file), mode=ctypes.RTLD_GLOBAL)
    mpi: Any = importlib.import_module("mpi4py.MPI")
    torch.set_num_threads(1)
    group = mpi.COMM_WORLD
    samples = {density: _turns(mpi, group, spec, density) for density in spec.given.densities}
    (folder / f"{group.rank}.result").write_bytes(pickle.dumps(samples))


def _turns(mpi: Any, group: Any, spec: Spec, density: float) -> Sequence[Sample]:
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
