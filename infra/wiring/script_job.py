"""A user's script as an ElasticJob: on the pools of a local stack, and how the script gets into the workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from infra.wiring.errors import WiringError
from infra.wiring.job_resources import CHECKPOINTS, container_security, pod_security
from infra.wiring.scheduling import GPU_RESOURCE, POOL_LABEL, PRIORITY_TRAINING, tolerations_for
from infra.wiring.storage import CHECKPOINT_CLAIM

if TYPE_CHECKING:
    from infra.settings import NodePool

SCRIPT_BYTES_MAX = 900 * 1024
"""A ConfigMap with all its metadata may have 1 MiB (Kubernetes' documentation of ConfigMaps)."""
SCRIPT_FOLDER = "/script"
LOCAL_IMAGE = "trainyard/training:local"
LOCAL_GRACE_SECONDS = 45
"""The launcher gives its workers 30 s to save, and here nothing large is saved."""
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_NAME_LENGTH = 40  # of 51, so that a number fits behind it


def job_name(script: str) -> str:
    """A name for the job of a script: `Train_v2.py` -> `train-v2`."""
    stem = re.sub("[^a-z0-9]+", "-", script.lower().removesuffix(".py"))[:_NAME_LENGTH].strip("-")
    return stem if stem[:1].isalpha() else f"job-{stem}".strip("-")


def file_name(script: str) -> str:
    """What a script is called in the workers: its own name, if a ConfigMap can have such a key."""
    return script if _KEY.fullmatch(script) else "script.py"


def local_job(
    pools: Sequence[NodePool],
    *,
    name: str,
    image: str,
    namespace: str,
    rdzv_endpoint: str,
    workers_min: int,
    workers_max: int,
    arguments: Sequence[str],
) -> dict[str, Any]:
    """The manifest of an ElasticJob on pools of a local stack; a worker takes all GPUs of a machine.

    Args:
        pools: where it may run, with the same number of GPUs each.
        name: Name of the job.
        image: Training image; its entrypoint is Trainyard's launcher.
        namespace: The jobs' namespace.
        rdzv_endpoint: `host:port` of etcd.
        workers_min: Fewest workers with which it trains.
        workers_max: Most workers.
        arguments: What each process runs.

    Raises:
        WiringError: `workers_min` is more than `workers_max`, or with GPUs the pools have fewer machines than that.
    """
    gpus, machines = pools[0].gpus_per_node, sum(pool.nodes for pool in pools)
    if not 1 <= workers_min <= workers_max or (gpus and workers_max > machines):
        named = ", ".join(pool.name for pool in pools)
        raise WiringError(
            f"job {name!r} asks for {workers_min} to {workers_max} workers; pool {named} has {machines} machines, one a"
            " worker. Ask for fewer, or raise `nodes` of the pool."
        )
    terms = [{"matchExpressions": [{"key": POOL_LABEL, "operator": "In", "values": [pool.name for pool in pools]}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    container: dict[str, Any] = {
        "name": "elasticjob-worker",
        "image": image,
        "args": [f"--nproc_per_node={max(1, gpus)}", *arguments],
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "securityContext": container_security(),
        "volumeMounts": [{"name": "checkpoints", "mountPath": CHECKPOINTS}],
    }
    if gpus:
        container["resources"] = {"limits": {GPU_RESOURCE: gpus}}
    spec = {
        "priorityClassName": PRIORITY_TRAINING,
        "terminationGracePeriodSeconds": LOCAL_GRACE_SECONDS,
        "affinity": affinity,
        "tolerations": tolerations_for(pools),
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": CHECKPOINT_CLAIM}}],
    }
    return {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "rdzvEndpoint": rdzv_endpoint,
            "minReplicas": workers_min,
            "maxReplicas": workers_max,
            "replicaSpecs": {
                "Worker": {"replicas": workers_max, "restartPolicy": "ExitCode", "template": {"spec": spec}}
            },
        },
    }


def with_script(job: dict[str, Any], config_map: str) -> dict[str, Any]:
    """A job whose workers see the files of a ConfigMap in `SCRIPT_FOLDER`."""
    made = deepcopy(job)
    spec = made["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
    spec["volumes"].append({"name": "script", "configMap": {"name": config_map}})
    spec["containers"][0]["volumeMounts"].append({"name": "script", "mountPath": SCRIPT_FOLDER, "readOnly": True})
    return made
