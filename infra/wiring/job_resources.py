"""What a worker pod asks for: taken from its pool, never typed by hand. A standard job of it, and mistakes in others.

Of the failures that jobs on GPU clusters have, the dear ones are silent: without its EFA request a job trains over TCP,
twenty times slower and without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.catalog.instance_types import instance_type
from infra.catalog.variables import bad_variable
from infra.wiring.allocatable import allocatable, as_quantities
from infra.wiring.errors import WiringError
from infra.wiring.naming import UNPRIVILEGED
from infra.wiring.placing import Pod, pod_of
from infra.wiring.scheduling import (
    EFA_LABEL,
    EFA_RESOURCE,
    GPU_RESOURCE,
    HUGEPAGES,
    POOL_LABEL,
    PRIORITY_TRAINING,
    labels_of,
    taints_of,
    tolerations_for,
)
from infra.wiring.storage import CHECKPOINT_CLAIM
from infra.wiring.topology import PREFERRED_TOPOLOGY, layer_label, topology_layers

if TYPE_CHECKING:
    from infra.settings.aws import AwsNodePool

AGENTS_CPU_MILLIS = 1000
"""CPU that a worker leaves to the node's agents: network, volumes, device plugins, GPU metrics, log."""
AGENTS_MEMORY_MIB = 2048

EFA_HUGEPAGES_MIB = 5120
"""What NCCL over EFA takes (NCCL tests of awsome-distributed-training)."""

SPOT_GRACE_SECONDS = 110
"""The machine goes 120 s after the notice; the rest is for the notice to be seen, and for the last bytes."""
GRACE_SECONDS = 300
"""Elsewhere: enough to save a large checkpoint. The autoscaler evicts no workers; the end of a capacity block waits 10
minutes (EKS begins 40 minutes before the end, EC2 30)."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

CHECKPOINTS = "/checkpoints"
_INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
_INFINIBAND, _SHM = "/dev/infiniband", "/dev/shm"  # noqa: S108 - the memory of the pod's processes, no file of ours
_MEMORY_STEP_MIB, _CPU_STEP_MILLIS = 1024, 100


@dataclass(frozen=True)
class JobResources:
    """What one worker pod, which has a machine to itself, asks for."""

    gpus: int
    efa: int
    hugepages_mib: int
    shm_mib: int
    """Greatest size of /dev/shm; it is part of `memory_mib`."""
    cpu_millis: int
    memory_mib: int
    grace_seconds: int
    """Seconds between SIGTERM and SIGKILL."""
    tolerations: list[dict[str, str]]
    node_selector: dict[str, str]
    topology_annotations: dict[str, str]
    """Annotations of the pod template; see `infra.wiring.topology` for the pools that have any."""

    def limits(self) -> dict[str, str]:
        """`resources.limits`: devices and memory. CPU has none: a worker may use what the agents leave idle."""
        amounts = {
            GPU_RESOURCE: self.gpus,
            EFA_RESOURCE: self.efa,
            HUGEPAGES: self.hugepages_mib,
            "memory": self.memory_mib,
        }
        return as_quantities({name: value for name, value in amounts.items() if value})

    def requests(self) -> dict[str, str]:
        """`resources.requests`: the limits, which devices and hugepages must equal, and CPU."""
        return {**self.limits(), **as_quantities({"cpu": self.cpu_millis})}


def job_resources(pool: AwsNodePool) -> JobResources:
    """What a worker of a pool asks for: one worker a machine, all GPUs and EFA interfaces of it.

    CPU and memory are those of the smallest type of the pool, less the part of the node's agents.

    Raises:
        UnknownInstanceTypeError: the catalogue does not have a type of the pool.
        WiringError: the pool has EFA and a type has none.
    """
    types = [instance_type(name) for name in pool.types]
    offers = [allocatable(each, efa=pool.efa) for each in types]
    least = {name: min(offer.get(name, 0) for offer in offers) for name in offers[0]}
    memory = (least["memory"] - AGENTS_MEMORY_MIB) // _MEMORY_STEP_MIB * _MEMORY_STEP_MIB
    layers = topology_layers(pool)
    return JobResources(
        gpus=least.get(GPU_RESOURCE, 0),
        efa=least.get(EFA_RESOURCE, 0),
        # A machine of few CPUs reserves fewer.
        hugepages_mib=min(EFA_HUGEPAGES_MIB, least.get(HUGEPAGES, 0)),
        shm_mib=memory // 4,
        cpu_millis=(least["cpu"] - AGENTS_CPU_MILLIS) // _CPU_STEP_MILLIS * _CPU_STEP_MILLIS,
        memory_mib=memory,
        grace_seconds=SPOT_GRACE_SECONDS if pool.capacity == "spot" else GRACE_SECONDS,
        tolerations=tolerations_for([pool]),
        node_selector={POOL_LABEL: pool.name},
        topology_annotations={PREFERRED_TOPOLOGY: layer_label(layers)} if layers else {},
    )


def standard_job(
    pool: AwsNodePool,
    *,
    name: str,
    image: str,
    namespace: str,
    rdzv_endpoint: str,
    workers_min: int,
    workers_max: int,
    arguments: Sequence[str] = (),
    queue: str | None = None,
) -> dict[str, Any]:
    """The manifest of an ElasticJob that fills machines of a pool.

    Args:
        pool: The pool on which it runs.
        name: Name of the job.
        image: Training image; its entrypoint is Trainyard's launcher.
        namespace: The jobs' namespace.
        rdzv_endpoint: `host:port` of etcd.
        workers_min: Fewest machines with which it trains.
        workers_max: Most machines.
        arguments: What each process runs, `-m module …`; absent: the digits example.
        queue: The LocalQueue of Kueue by which it is admitted; absent: none.

    Raises:
        WiringError: the pool has fewer machines than the job asks for, or `workers_min` is more than `workers_max`.
    """
    if not 1 <= workers_min <= workers_max <= pool.max:
        raise WiringError(
            f"job {name!r} asks for {workers_min} to {workers_max} workers, one a machine; pool {pool.name!r} has 1 to"
            f" {pool.max}. Ask for fewer, or raise `max` of the pool."
        )
    worker = job_resources(pool)
    metadata: dict[str, Any] = {"annotations": worker.topology_annotations} if worker.topology_annotations else {}
    if queue:
        metadata["labels"] = {QUEUE_LABEL: queue}
    template: dict[str, Any] = {"spec": _worker_spec(worker, name, image, arguments)}
    if metadata:
        template["metadata"] = metadata
    return {
        "apiVersion": "elastic.pytorch.org/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "rdzvEndpoint": rdzv_endpoint,
            "minReplicas": workers_min,
            "maxReplicas": workers_max,
            "replicaSpecs": {
                "Worker": {"replicas": workers_max, "restartPolicy": "ExitCode", "template": template},
            },
        },
    }


def pod_security() -> dict[str, Any]:
    """The security context of a worker pod: what the jobs' namespace asks for (level `restricted`)."""
    return {
        "runAsNonRoot": True,
        "runAsUser": UNPRIVILEGED,
        "runAsGroup": UNPRIVILEGED,
        "fsGroup": UNPRIVILEGED,
        # Once, and not at each start: that would be a walk through all files of the volume of checkpoints.
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """The security context of a worker's container, for the same level."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _worker_spec(worker: JobResources, name: str, image: str, arguments: Sequence[str]) -> dict[str, Any]:
    program = tuple(arguments) or ("-m", "training.examples.digits", f"--checkpoints={CHECKPOINTS}/{name}")
    threads = max(1, worker.cpu_millis // 1000 // max(1, worker.gpus))
    return {
        "priorityClassName": PRIORITY_TRAINING,
        "terminationGracePeriodSeconds": worker.grace_seconds,
        "nodeSelector": worker.node_selector,
        "tolerations": worker.tolerations,
        "securityContext": pod_security(),
        "containers": [
            {
                "name": "elasticjob-worker",
                "image": image,
                "args": [f"--nproc_per_node={worker.gpus}", *program],
                "env": [{"name": "OMP_NUM_THREADS", "value": str(threads)}],
                "resources": {"requests": worker.requests(), "limits": worker.limits()},
                # No IPC_LOCK, also with EFA, which pins its buffers: the capability does nothing for an ordinary user,
                # and the jobs' namespace refuses it. `infra.wiring.user_data` lifts the limit on the machines.
                "securityContext": container_security(),
                "volumeMounts": [
                    {"name": "checkpoints", "mountPath": CHECKPOINTS},
                    {"name": "shm", "mountPath": _SHM},
                ],
            }
        ],
        "volumes": [
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": CHECKPOINT_CLAIM}},
            # The runtime's own /dev/shm has 64 MiB: too few for NCCL and for the workers of data loaders.
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{worker.shm_mib}Mi"}},
        ],
    }


def job_mistakes(job: Mapping[str, Any], pools: Sequence[AwsNodePool]) -> list[str]:
    """What an ElasticJob would fail or be slow by on these pools, a sentence each; empty: nothing was found.

    Args:
        job: The manifest.
        pools: The stack's GPU pools.

    Raises:
        WiringError: a quantity of the manifest is none of Kubernetes'.
    """
    name = (job.get("metadata") or {}).get("name", "job")
    spec = job.get("spec") or {}
    worker = (spec.get("replicaSpecs") or {}).get("Worker") or {}
    template = (worker.get("template") or {}).get("spec") or {}
    pod = pod_of(template, name=str(name))
    selected = [pool for pool in pools if _may_select(pod, pool)]
    if not selected:
        known = ", ".join(pool.name for pool in pools) or "none"
        wanted = ", ".join(f"{key}={value}" for key, value in pod.node_selector.items())
        return [f"its node selector ({wanted}) matches no GPU pool: the stack has {known}", *_device_mistakes(template)]
    open_to_it = [pool for pool in selected if not _untolerated(pod, pool)]
    workers = max(spec.get("maxReplicas") or 0, worker.get("replicas") or 1)
    found = [] if open_to_it else list(_toleration_mistakes(pod, selected))
    found += _size_mistakes(pod, open_to_it or selected)
    for pool in open_to_it or selected:
        found += _pool_mistakes(template, pod, pool)
    if open_to_it and workers > (most := sum(pool.max for pool in open_to_it)):
        found.append(f"it asks for {workers} workers; its pools have {most} machines at most")
    return found + list(_device_mistakes(template))


def _may_select(pod: Pod, pool: AwsNodePool) -> bool:
    """Whether the node selector lets the job onto the pool; labels that are not the pool's are not judged here."""
    labels = {**labels_of(pool), EFA_LABEL: "true" if pool.efa else ""}
    for key, value in pod.node_selector.items():
        if labels.get(key, value) != value or (key == _INSTANCE_TYPE_LABEL and value not in pool.types):
            return False
    return True


def _untolerated(pod: Pod, pool: AwsNodePool) -> list[str]:
    return [
        f"{taint.key}={taint.value}:{taint.effect}"
        for taint in taints_of(pool)
        if not any(toleration.tolerates(taint) for toleration in pod.tolerations)
    ]


def _toleration_mistakes(pod: Pod, pools: Iterable[AwsNodePool]) -> Iterator[str]:
    for pool in pools:
        missing = ", ".join(_untolerated(pod, pool))
        yield f"it does not tolerate {missing} of pool {pool.name}: it waits for ever"


def _size_mistakes(pod: Pod, pools: Sequence[AwsNodePool]) -> Iterator[str]:
    wanted = pod.requests.get(GPU_RESOURCE, 0)
    most = max(pool.gpus_per_node for pool in pools)
    if not wanted:
        yield f"it asks for no GPU: give its container the limit {GPU_RESOURCE}"
    if wanted > most:
        named = ", ".join(pool.name for pool in pools)
        yield f"a worker asks for {wanted} GPUs, a machine of {named} has {most}: it waits for ever"


def _pool_mistakes(template: Mapping[str, Any], pod: Pod, pool: AwsNodePool) -> Iterator[str]:
    """What is wrong with a job on a pool to which its tolerations and its node selector let it."""
    right = job_resources(pool)
    gpus, efa = pod.requests.get(GPU_RESOURCE, 0), pod.requests.get(EFA_RESOURCE, 0)
    where = f"on pool {pool.name}"
    if efa > right.efa:
        offer = f"a machine has {right.efa}" if right.efa else "the pool has no EFA"
        yield f"{where} it asks for {efa} {EFA_RESOURCE}, {offer}: it waits for ever"
    elif right.efa and gpus and not efa:
        yield f"{where} it does not ask for EFA, and would train over TCP without an error: {EFA_RESOURCE}: {right.efa}"
    elif efa and gpus == right.gpus and efa < right.efa:
        yield f"{where} it asks for all GPUs and for {efa} of {right.efa} EFA interfaces: the others stand idle"
    if right.efa and efa and not pod.requests.get(HUGEPAGES):
        yield f"{where} it asks for EFA and not for hugepages: {HUGEPAGES}: {right.hugepages_mib}Mi"
    grace = template.get("terminationGracePeriodSeconds") or 30  # Kubernetes' default
    if pool.capacity == "spot" and grace > SPOT_GRACE_SECONDS:
        yield (
            f"{where} its terminationGracePeriodSeconds is {grace}: the machine is gone 120 s after the notice, take"
            f" {SPOT_GRACE_SECONDS} or less"
        )


def _device_mistakes(template: Mapping[str, Any]) -> Iterator[str]:
    """Volumes, variables and resources that are wrong on every pool."""
    volumes = template.get("volumes") or ()
    for volume in volumes:
        path = str((volume.get("hostPath") or {}).get("path", "")).rstrip("/")
        if path.startswith(_INFINIBAND):
            yield f"volume {volume.get('name')} mounts {path} of the machine: it hides the EFA devices of the plugin"
        if path == _SHM:
            yield f"volume {volume.get('name')} mounts {_SHM} of the machine: take an emptyDir with medium Memory"
    memory = {volume.get("name") for volume in volumes if (volume.get("emptyDir") or {}).get("medium") == "Memory"}
    for container in template.get("containers") or ():
        yield from _container_mistakes(container, memory)


def _container_mistakes(container: Mapping[str, Any], memory_volumes: set[Any]) -> Iterator[str]:
    name, resources = container.get("name", "?"), container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    capabilities = (container.get("securityContext") or {}).get("capabilities") or {}
    if "IPC_LOCK" in (capabilities.get("add") or ()):
        yield f"container {name} adds IPC_LOCK: the jobs' namespace refuses it, and EFA does not need it"
    for resource in (GPU_RESOURCE, EFA_RESOURCE, HUGEPAGES):
        if resource in requests and str(requests[resource]) != str(limits.get(resource)):
            yield f"container {name}: request and limit of {resource} differ, Kubernetes wants them equal"
    mounts = {each.get("name") for each in container.get("volumeMounts") or () if each.get("mountPath") == _SHM}
    if GPU_RESOURCE in {**requests, **limits} and not mounts & memory_volumes:
        yield f"container {name}: {_SHM} has 64 MiB; mount an emptyDir with medium Memory there"
    for variable in container.get("env") or ():
        known = bad_variable(str(variable.get("name")), efa=EFA_RESOURCE in {**requests, **limits})
        if known is not None:
            effect = "does harm" if known.harmful else "has no use"
            yield f"container {name}: {variable['name']} {effect}: {known.reason}. Take it away"
