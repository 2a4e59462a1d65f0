# SPDX-License-Identifier: Apache-2.0
"""What switches must hold is made once for each job, and again when something changes that it depends on."""

from collections.abc import Callable

import pytest

from tests.controller.helpers import job
from weir.controller import fabric as fabric_module
from weir.controller.desired import desired_state
from weir.controller.fabric import Fabric
from weir.controller.jobs import Job
from weir.controller.qos import Qos
from weir.controller.topology import leaf_spine

RACKS = leaf_spine(2, 2, 2)
SPINES = frozenset({"spine1", "spine2"})


def wide() -> Job:
    made = job("wide", RACKS, size=4)
    made.switches = ("leaf1", "leaf2", "spine1", "spine2")
    return made


def moved(job: Job) -> None:
    job.uplinks = frozenset({"spine2"})


def fenced(job: Job) -> None:
    job.parents = frozenset({"spine2"})


def holds(fabric: Fabric, jobs: list[Job]) -> bool:
    """Return whether all switches are to hold what they would be if nothing had been before."""
    return all(
        reconciler.wanted == desired_state(fabric.topology, reconciler.switch, jobs, fabric.alive)
        for reconciler in fabric.reconcilers.values()
    )


@pytest.mark.parametrize("change", [moved, fenced])
def test_a_job_that_moves_is_told_to_its_switches(change: Callable[[Job], None]) -> None:
    fabric, made = Fabric(RACKS, None, 1), wide()
    fabric.update([made])
    before = {name: reconciler.wanted for name, reconciler in fabric.reconcilers.items()}
    change(made)
    fabric.update([made])
    assert holds(fabric, [made])
    assert before != {name: reconciler.wanted for name, reconciler in fabric.reconcilers.items()}


def test_other_classes_and_ended_jobs_are_told_to_switches() -> None:
    fabric, made = Fabric(RACKS, None, 1), wide()
    fabric.update([made])
    fabric.reconfigure(RACKS.model_copy(update={"qos": Qos(spray="hash")}))
    assert holds(fabric, [made])
    fabric.update([])
    assert holds(fabric, [])


def test_the_entries_of_a_job_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made_for: list[str] = []
    job_state = fabric_module.job_state

    def counted(*arguments: object) -> object:
        made_for.append(arguments[2].name)  # type: ignore[attr-defined]
        return job_state(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fabric_module, "job_state", counted)
    fabric = Fabric(RACKS, None, 1)
    jobs: list[Job] = []
    for number in range(3):
        jobs.append(job(f"job{number}", RACKS, size=2, job_id=number + 1, slot_base=64 * number))
        fabric.update(jobs)
    assert sorted(made_for) == sorted(4 * ["job0", "job1", "job2"])
    assert holds(fabric, jobs)
