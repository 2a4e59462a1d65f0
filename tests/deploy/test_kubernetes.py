# SPDX-License-Identifier: Apache-2.0
"""The JobSet of deploy/kubernetes: commands and ports that fit each other, and the published schema."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest

from weir.hub import FIRST_UDP

yaml = pytest.importorskip("yaml", reason="needs PyYAML")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def jobset() -> dict[str, Any]:
    """Return the example."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "deploy/kubernetes/jobset.yaml").read_text())
    return found


def containers(jobset: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the container of each replicated job by name."""
    jobs = jobset["spec"]["replicatedJobs"]
    return {job["name"]: job["template"]["spec"]["template"]["spec"]["containers"][0] for job in jobs}


def test_the_hub_opens_the_ports_that_its_workers_use(jobset: dict[str, Any]) -> None:
    from tests.test_docs import check

    found, name = containers(jobset), jobset["metadata"]["name"]
    hub, worker = found["hub"], found["workers"]
    assert not check(["weir", *hub["args"]])
    workers = int(hub["args"][hub["args"].index("--workers") + 1])
    pods = jobset["spec"]["replicatedJobs"][1]["template"]["spec"]
    assert pods["completions"] == pods["parallelism"] == workers
    assert f"--nnodes={workers}" in worker["command"]
    assert f"--master-addr={name}-workers-0-0.{name}" in worker["command"]
    controller = {each["name"]: each.get("value") for each in worker["env"]}["WEIR_CONTROLLER"]
    assert controller == f"{name}-hub-0-0.{name}:9600" and hub["args"][-1].endswith(":9600")
    ports = {(each["protocol"], each["containerPort"]) for each in hub["ports"]}
    assert ports == {("TCP", 9600), *(("UDP", FIRST_UDP + rank) for rank in range(workers))}


def strict(schema: Any) -> Any:
    """Return a structural schema of Kubernetes as JSON schema, in which unknown fields are wrong."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {name: strict(part) for name, part in schema.items()}
    closed = made.get("type") == "object" and "properties" in made
    return {**made, "additionalProperties": False} if closed else made


def test_it_is_a_jobset_by_the_published_schema(jobset: dict[str, Any]) -> None:
    path = os.environ.get("JOBSET_CRD")
    if not path:
        pytest.skip("needs JOBSET_CRD: jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset")
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema (pip install jsonschema)")
    (version,) = yaml.safe_load(Path(path).read_text())["spec"]["versions"]
    validator = jsonschema.Draft7Validator(strict(version["schema"]["openAPIV3Schema"]))
    assert [error.message for error in validator.iter_errors(jobset)] == []
    wrong = copy.deepcopy(jobset)
    containers(wrong)["hub"]["imag"] = ""
    assert "'imag' was unexpected" in next(validator.iter_errors(wrong)).message
