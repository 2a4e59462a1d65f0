# SPDX-License-Identifier: Apache-2.0
"""The deployment of a run's workers: on this machine in a cluster of our own, or one rank of a job elsewhere.

On this machine they share memory with the switch, or each is in a network namespace of its own.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from softp4.native.scratch import scratch_folder
from weir.cluster import LocalCluster, local_cluster
from weir.network import NetworkSpec
from weir.process.processor import ProcessorTime
from weir.train.config import TrainConfig
from weir.train.watch import NetworkWatch
from weir.train.workers import worker_environment

if TYPE_CHECKING:
    from weir.netns.cluster import NetworkCluster
    from weir.netns.lab import Lab


@dataclass(frozen=True)
class Deployment:
    """The ranks that this launcher starts, and how they find the others.

    ranks: those it starts, of ``size``. store: directory for the file through which they find each other,
    None when MASTER_ADDR and MASTER_PORT say where. replicas: who compares parameters. cluster: switches and
    controller of our own. lab: the namespaces that the ranks run in. servers: parameter servers that it
    starts, too.
    """

    ranks: tuple[int, ...]
    size: int
    store: Path | None
    replicas: Literal["launcher", "group"]
    cluster: "LocalCluster | NetworkCluster | None" = None
    lab: "Lab | None" = None
    servers: int = 0

    @classmethod
    def of_all(
        cls,
        workers: int,
        store: Path,
        cluster: "LocalCluster | NetworkCluster | None" = None,
        lab: "Lab | None" = None,
        servers: int = 0,
    ) -> Self:
        """Return all workers, and parameter servers, on this machine."""
        return cls(tuple(range(workers)), workers, store, "launcher", cluster, lab, servers)

    @property
    def members(self) -> tuple[int, ...]:
        """Ranks of all processes that are started: workers, then parameter servers."""
        return (*self.ranks, *range(self.size, self.size + self.servers))

    def called(self, rank: int) -> str:
        """Return what a member is called."""
        return f"worker {rank}" if rank < self.size else f"server {rank - self.size}"

    def init_method(self, run: str) -> str:
        """Return what torch.distributed is told; ``run`` names one of this deployment's runs."""
        return "env://" if self.store is None else f"file://{self.store / run}"

    def environment(self) -> Mapping[int, Mapping[str, str]]:
        """Return each rank's environment, added to this process's."""
        cluster, common = self.cluster, worker_environment()
        if self.lab is not None:
            common.update(self.lab.environment())
        return {rank: {**common, **(cluster.environment(rank) if cluster else {})} for rank in self.members}

    def prefix(self, rank: int) -> Sequence[str]:
        """Return a command that becomes the one behind it, where that rank is to run."""
        return () if self.lab is None else self.lab.at_worker(rank)

    def check(self) -> None:
        """Raise ClusterError if the cluster has died."""
        if self.cluster is not None:
            self.cluster.check()

    @contextlib.contextmanager
    def watched(self) -> Iterator[NetworkWatch | None]:
        """Count of the cluster's switches while the block runs; None without a cluster of our own."""
        if self.cluster is None:
            yield None
            return
        with NetworkWatch(self.cluster) as watch:
            yield watch

    def processor_time(self) -> ProcessorTime | None:
        """Return the processor time of the switches until now; None where others started the workers.

        Raises ClusterError or NamespaceError if a switch has died that the others cannot do without.
        """
        if self.store is None:
            return None
        try:
            return ProcessorTime.now(self.cluster.switch_pids() if self.cluster is not None else ())
        except ProcessLookupError:  # a spine that another one stands in for
            self.check()
            return None

    def switch_events(self) -> dict[str, int]:
        """Return packets the switches counted since they started, by event; those it never saw are left
        out.
        """
        if self.cluster is None:
            return {}
        counted: Counter[str] = Counter()
        for switch in self.cluster.status().switches:
            counted.update({event.name: event.count.packets for event in switch.events})
        return {name: packets for name, packets in counted.items() if packets}


def starting_line(config: TrainConfig) -> str:
    """Return what ``deploy`` is about to do, for people."""
    shape = config.network.shape
    if config.hosts == "namespaces":
        switches = "switch" if shape.single else f"{shape.racks} leaves, {shape.spines} spines"
        return f"starting {config.members} hosts in network namespaces, {switches} and controller"
    if shape.single:
        return "starting switch and controller"
    return f"starting {shape.racks} leaves, {shape.spines} spines and the controller"


@contextlib.contextmanager
def deploy(config: TrainConfig) -> Iterator[Deployment]:
    """Yield a cluster on this machine with room for all workers, while the block runs.

    Raises ClusterError; NamespaceError with hosts in namespaces.
    """
    if config.hosts == "namespaces":
        from weir.netns.cluster import network_cluster

        queues = config.queues_in_switches
        network = config.network if queues else NetworkSpec(config.network.shape)
        with network_cluster(
            config.members, rate=None if queues else config.links, network=network
        ) as linked:
            yield Deployment.of_all(
                config.workers, linked.folder, linked, linked.lab, config.members - config.workers
            )
        return
    with local_cluster(config.members, network=config.network, pcap=config.pcap) as cluster:
        yield Deployment.of_all(
            config.workers, cluster.directory, cluster, servers=config.members - config.workers
        )


@contextlib.contextmanager
def deploy_reference(config: TrainConfig) -> Iterator[Deployment]:
    """Yield the deployment of the workers of the run over plain Gloo, while the block runs.

    With hosts in namespaces it has the same links, losses and background traffic, joined by the kernel's own
    bridges, and segmentation offloads are on: the network that TCP is fastest on. Without losses and
    background traffic, one bridge joins the hosts of all racks. Otherwise it is the loopback interface.

    Raises NamespaceError.
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(scratch_folder("weir-gloo"))
        lab = None
        if config.hosts == "namespaces" and config.queues_in_switches:
            from weir.netns.cluster import bridged_network

            lab = stack.enter_context(bridged_network(config.workers, config.network)).lab
        elif config.hosts == "namespaces":
            from weir.netns.lab import bridged_lab

            lab = stack.enter_context(bridged_lab(config.workers, rate=config.links))
        yield Deployment.of_all(config.workers, store, lab=lab)


def joined_deployment() -> Deployment | None:
    """Return the deployment torchrun or Mininet gave this process, or None when nobody did."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
    if any(name not in os.environ for name in names):
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return Deployment((rank,), size, None, "group")
