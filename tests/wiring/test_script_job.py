"""A user's script as an ElasticJob of a local stack."""

from __future__ import annotations

from typing import Any

import pytest

from infra.settings import NodePool
from infra.wiring.errors import WiringError
from infra.wiring.script_job import file_name, job_name, local_job, with_script

POOLS = [
    NodePool(name="steady", nodes=1, gpus_per_node=2),
    NodePool(name="cheap", nodes=2, gpus_per_node=2, capacity="spot"),
]


def made(pools: list[NodePool] = POOLS, least: int = 1, most: int = 3) -> dict[str, Any]:
    return local_job(
        pools,
        name="train",
        image="i",
        namespace="n",
        rdzv_endpoint="e:1",
        workers_min=least,
        workers_max=most,
        arguments=["/script/train.py", "--epochs", "3"],
    )


@pytest.mark.parametrize(
    ("script", "name", "file"),
    [
        ("train.py", "train", "train.py"),
        ("Train_v2.py", "train-v2", "Train_v2.py"),
        ("My run (2).py", "my-run-2", "script.py"),
        ("3d.py", "job-3d", "3d.py"),
        ("---.py", "job", "---.py"),
        ("x" * 60 + ".py", "x" * 40, "x" * 60 + ".py"),
    ],
)
def test_a_job_is_named_after_its_script(script: str, name: str, file: str) -> None:
    assert (job_name(script), file_name(script)) == (name, file)


def test_a_worker_takes_a_machine_with_all_its_gpus_on_any_of_the_pools() -> None:
    job = made()
    assert (job["spec"]["minReplicas"], job["spec"]["maxReplicas"]) == (1, 3)
    pod = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["--nproc_per_node=2", "/script/train.py", "--epochs", "3"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 2}}
    assert {toleration["key"] for toleration in pod["tolerations"]} == {"nvidia.com/gpu", "trainyard.dev/spot"}
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["steady", "cheap"]


def test_where_there_are_no_gpus_none_are_asked_for_and_a_machine_may_hold_several_workers() -> None:
    job = made([NodePool(name="system", nodes=1)], most=4)
    (container,) = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert "resources" not in container
    assert container["args"][0] == "--nproc_per_node=1"


@pytest.mark.parametrize(("least", "most"), [(1, 4), (3, 2), (0, 1)])
def test_more_workers_than_machines_are_refused(least: int, most: int) -> None:
    with pytest.raises(WiringError, match=r"pool steady, cheap has 3 machines"):
        made(least=least, most=most)


def test_the_script_is_mounted_and_the_job_it_came_from_stays_as_it_was() -> None:
    job = made()
    mounted = with_script(job, "train-script")
    pod = mounted["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    assert {"name": "script", "configMap": {"name": "train-script"}} in pod["volumes"]
    assert {"name": "script", "mountPath": "/script", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert job == made()
