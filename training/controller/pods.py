"""The objects that make up a job: its worker pods, the Services that name them, and what else they need."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from training.controller import certificates
from training.controller.api import (
    FINALIZER,
    LABEL_GENERATION,
    LABEL_MANAGED_BY,
    LABEL_OUR_JOB_NAME,
    LABEL_REPLICA_INDEX,
    LABEL_REPLICA_TYPE,
    MAIN_CONTAINER,
    MANAGED_BY,
    STORE,
    STORE_PORT,
    ElasticJob,
    GangScheduler,
    RendezvousBackend,
    RestartPolicy,
)
from training.controller.gang import join_gang, pod_group
from training.launch.etcd_client import parse_endpoints

MAX_RESTARTS = 1000
"""torchrun's default of 0 lets one lost peer end all others: a peer's loss counts as a failure there."""

DEFAULT_GRACE_SECONDS = 30  # of Kubernetes
METRICS_PORTS = {"metrics": ("TRAINYARD_METRICS_PORT", 9471), "worker-metrics": ("TRAINYARD_WORKER_METRICS_PORT", 9481)}
"""By name of the port: the variable by which the launcher, or its first worker, is told to answer Prometheus there."""
LAUNCHERS_PATIENCE_SECONDS = 30
"""How long launchers, torch's and ours, wait for their processes to end before they kill them."""
LAST_WORDS_SECONDS = 5
"""Time for a launcher to say, after its processes have ended, how they did."""

_STORE_HOST = Path(__file__).parents[1] / "launch" / "store_host.py"
_NOT_SPOT = {
    "matchExpressions": [
        {"key": key, "operator": "NotIn", "values": list(values)}
        for key, values in (
            ("trainyard.dev/capacity", ("spot",)),
            ("eks.amazonaws.com/capacityType", ("SPOT",)),
            ("karpenter.sh/capacity-type", ("spot",)),
            ("cloud.google.com/gke-spot", ("true",)),
            ("cloud.google.com/gke-preemptible", ("true",)),
            ("kubernetes.azure.com/scalesetpriority", ("spot",)),
        )
    ]
}
"""Nodes that no label calls spot machines: the stack's, EKS', Karpenter's, GKE's and AKS' labels."""

_LOGIN_VOLUME = "trainyard-rendezvous"
# The launcher's options (training/launch/rendezvous.py) and the fields of the Secret that hold them.
_LOGIN_VARIABLES = {
    "TRAINYARD_ETCD_USER": certificates.USER,
    "TRAINYARD_ETCD_PASSWORD": certificates.PASSWORD,
    "TRAINYARD_ETCD_CACERT": certificates.CACERT_PATH,
}

POD_RESTART_POLICY = {
    # Always would restart a worker that has finished its training; here it means "after each failure".
    RestartPolicy.ALWAYS: "OnFailure",
    RestartPolicy.ON_FAILURE: "OnFailure",
    RestartPolicy.NEVER: "Never",
    RestartPolicy.EXIT_CODE: "Never",
}


@dataclass(frozen=True)
class RendezvousLogin:
    """How workers log in to an etcd that asks for it."""

    secret: str
    """Name of a Secret with the fields of `training.controller.certificates`, in the job's namespace."""
    host: str
    """Of etcd, as in `etcd.trainyard-system:2379`. Jobs that name another endpoint get no password to send there."""

    def serves(self, endpoint: str) -> bool:
        """Whether every endpoint that a job names is this etcd, however it is spelled."""
        try:
            endpoints, _ = parse_endpoints(endpoint)
        except ValueError:  # the launcher tells what is wrong with it
            return False
        own = {self.host, f"{self.host}.svc", f"{self.host}.svc.cluster.local"}
        return {each.host for each in endpoints} <= own


class _Resources(BaseModel):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class _Container(BaseModel):
    args: list[Any] | None = None
    env: list[dict[str, Any]] | None = None
    resources: _Resources | None = None


class _PodSpec(BaseModel):
    containers: list[_Container] | None = None
    node_selector: dict[str, Any] | None = Field(default=None, alias="nodeSelector")
    tolerations: list[dict[str, Any]] | None = None


class _Metadata(BaseModel):
    labels: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None
    finalizers: list[Any] | None = None


class _Template(BaseModel):
    """The shape of what is read from a pod template here; all else is for the API server to judge."""

    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


def template_trouble(job: ElasticJob) -> str | None:
    """What is malformed in the job's pod templates, as a sentence; None if pods can be made from them."""
    for role in job.roles:
        try:
            _Template.model_validate(role.spec.template)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(("template", *(str(part) for part in first["loc"])))
            wrong = first["msg"][:1].lower() + first["msg"][1:]
            correct = f"kubectl edit {job.kind.lower()} {job.metadata.name} -n {job.metadata.namespace}"
            return (
                f"no {role.name.lower()} can be made from the pod template: {where}: {wrong}. Correct it with {correct}"
            )
    return None


def rendezvous_id(job: ElasticJob, generation: int) -> str:
    """`<name>-<uid8>-<generation>`: neither a later job of the name nor an earlier generation shares it."""
    return f"{job.metadata.name}-{job.metadata.uid[:8]}-{generation}"


def worker_pod(
    job: ElasticJob, index: int, generation: int, nnodes: str, login: RendezvousLogin | None = None
) -> dict[str, Any]:
    """The manifest of a worker.

    Args:
        job: the job that the pod belongs to.
        index: number in the pod's name.
        generation: rendezvous generation.
        nnodes: `min:max`, as torchrun takes it.
        login: how to log in to the stack's etcd; None: it asks for nothing.
    """
    pod = bare_pod(job, index, generation)
    pod["metadata"]["labels"] |= {**job.selector(), LABEL_REPLICA_INDEX: str(index)}
    spec = pod["spec"]
    spec["hostname"] = job.pod_name(index)
    spec["subdomain"] = job.service_name
    _launcher_settings(main_container(spec), job, index, generation, nnodes)
    answer_prometheus(spec, main_container(spec))
    if index == job.hosting_worker:
        prefer_machines_that_stay(spec)
    if login is not None and not job.spec.managed_store and login.serves(endpoint(job)):
        log_in(spec, login, main_container(spec))
    return pod


def endpoint(job: ElasticJob) -> str:
    """Where the job's workers meet."""
    return f"{job.store_name}:{STORE_PORT}" if job.spec.managed_store else str(job.spec.rdzv_endpoint)


def store_pod(job: ElasticJob, generation: int) -> dict[str, Any]:
    """The manifest of the pod that holds the job's rendezvous store: small, and not on a spot machine.

    It has the worker's image, which has torch, and its own start: it is never started again in its place, for an empty
    store is no store.
    """
    template = job.spec.worker.template
    spec = template.get("spec") or {}
    container = main_container(copy.deepcopy(spec))
    kept = ("imagePullSecrets", "serviceAccountName", "securityContext", "priorityClassName", "runtimeClassName")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": job.store_name,
            "namespace": job.metadata.namespace,
            "labels": {
                **_store_selector(job),
                LABEL_OUR_JOB_NAME: job.metadata.name,
                LABEL_GENERATION: str(generation),
                LABEL_MANAGED_BY: MANAGED_BY,
            },
            "ownerReferences": [owner(job)],
        },
        "spec": {
            **{key: copy.deepcopy(spec[key]) for key in kept if key in spec},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": False,
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_NOT_SPOT]},
                }
            },
            "containers": [
                {
                    "name": "store",
                    "image": container.get("image"),
                    **{key: container[key] for key in ("imagePullPolicy", "securityContext") if key in container},
                    "command": ["python3", "-c", _STORE_HOST.read_text(encoding="utf-8")],
                    "args": ["--host=$(POD_IP)", f"--port={STORE_PORT}"],
                    "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    "ports": [{"name": "store", "containerPort": STORE_PORT}],
                    "readinessProbe": {"tcpSocket": {"port": STORE_PORT}, "periodSeconds": 1},
                    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
                }
            ],
        },
    }


def _store_selector(job: ElasticJob) -> dict[str, str]:
    return {**job.selector(), LABEL_REPLICA_TYPE: STORE}


def prefer_machines_that_stay(spec: dict[str, Any]) -> None:
    """Adds to the pod's affinity that it had better not be on a machine that may be taken away."""
    nodes = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    nodes["preferredDuringSchedulingIgnoredDuringExecution"] = [
        *(nodes.get("preferredDuringSchedulingIgnoredDuringExecution") or ()),
        {"weight": 100, "preference": _NOT_SPOT},
    ]


def bare_pod(job: ElasticJob, index: int, generation: int) -> dict[str, Any]:
    """What the pods of all kinds of job have: the template's, name, owner, restart policy and place in a gang.

    Args:
        job: the job that the pod belongs to.
        index: number of the replica.
        generation: rendezvous generation.
    """
    role = job.role(index)
    metadata = role.spec.template.get("metadata") or {}
    spec = copy.deepcopy(role.spec.template.get("spec") or {})
    spec["restartPolicy"] = POD_RESTART_POLICY[role.spec.restart_policy]
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": job.pod_name(index),
            "namespace": job.metadata.namespace,
            "labels": {
                **(metadata.get("labels") or {}),
                LABEL_OUR_JOB_NAME: job.metadata.name,
                LABEL_GENERATION: str(generation),
                LABEL_MANAGED_BY: MANAGED_BY,
            },
            "ownerReferences": [owner(job)],
            "finalizers": [*(metadata.get("finalizers") or ()), FINALIZER],
        },
        "spec": spec,
    }
    if metadata.get("annotations"):
        pod["metadata"]["annotations"] = copy.deepcopy(metadata["annotations"])
    if (scheduler := job.spec.gang_scheduler) is not None:
        join_gang(pod, scheduler, job.metadata.name, role.name.lower())
    return pod


def job_pod_group(job: ElasticJob, scheduler: GangScheduler, members: int) -> dict[str, Any]:
    """The manifest of the job's PodGroup, which has the job's name.

    Args:
        job: the job.
        scheduler: which one asks for it.
        members: workers that have to fit together.
    """
    metadata = {
        "name": job.metadata.name,
        "namespace": job.metadata.namespace,
        "labels": {LABEL_OUR_JOB_NAME: job.metadata.name, LABEL_MANAGED_BY: MANAGED_BY},
        "ownerReferences": [owner(job)],
    }
    policy = job.spec.scheduling_policy
    return pod_group(scheduler, metadata, members, job.spec.worker.template, policy.queue if policy else None)


def disruption_budget(job: ElasticJob, least: int) -> dict[str, Any]:
    """The PodDisruptionBudget of the job's workers.

    Args:
        job: the job.
        least: workers that evictions (drains of nodes) have to leave. As a number that may be unavailable, which is
            measured by `replicas`, it would be wrong for jobs that the controller scales by itself.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": job.service_name,
            "namespace": job.metadata.namespace,
            "labels": {**job.selector(), LABEL_OUR_JOB_NAME: job.metadata.name, LABEL_MANAGED_BY: MANAGED_BY},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "minAvailable": least,
            "selector": {"matchLabels": job.selector()},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def headless_service(job: ElasticJob, name: str) -> dict[str, Any]:
    """A Service that gives pods a name; also those that are not ready, for they look for each other.

    Args:
        job: the job.
        name: one of its `service_names`: that of all workers, of one of them, or of the store.
    """
    selector = job.selector()
    if name == job.store_name:
        selector = _store_selector(job)
    elif name != job.service_name:
        selector |= {LABEL_REPLICA_INDEX: name.rpartition("-")[2]}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {
                **selector,
                LABEL_OUR_JOB_NAME: job.metadata.name,
                LABEL_MANAGED_BY: MANAGED_BY,
            },
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": selector,
        },
    }


def main_container(pod_spec: dict[str, Any], name: str = MAIN_CONTAINER) -> dict[str, Any]:
    """The container that runs the launcher: the one of its name, else the first."""
    containers: list[dict[str, Any]] = pod_spec.get("containers") or [{}]
    return next((container for container in containers if container.get("name") == name), containers[0])


def _launcher_settings(container: dict[str, Any], job: ElasticJob, index: int, generation: int, nnodes: str) -> None:
    """Puts the rendezvous before the user's own arguments (of which the last wins) and into torchrun's PET_* twins."""
    own_args: list[str] = [str(argument) for argument in container.get("args") or ()]
    identity = rendezvous_id(job, generation)
    most_restarts = job.spec.max_restarts
    if job.spec.inject_arguments:
        container["args"] = [
            f"--rdzv_backend={job.spec.backend}",
            f"--rdzv_endpoint={endpoint(job)}",
            f"--rdzv_id={identity}",
            f"--nnodes={nnodes}",
            *own_args,
        ]
    twins: dict[str, Any] = {
        "PET_RDZV_BACKEND": {"value": str(job.spec.backend)},
        "PET_RDZV_ENDPOINT": {"value": endpoint(job)},
        "PET_RDZV_ID": {"value": identity},
        "PET_NNODES": {"value": nnodes},
        "PET_LOCAL_ADDR": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        **_time_to_end(job, index),
        "PET_MAX_RESTARTS": {"value": str(MAX_RESTARTS if most_restarts is None else most_restarts)},
    }
    if settings := _rendezvous_settings(job, index):
        twins["PET_RDZV_CONF"] = {"value": ",".join(f"{key}={value}" for key, value in settings.items())}
    env = list(container.get("env") or ())
    set_by_user = {variable.get("name") for variable in env}
    container["env"] = env + [{"name": name, **value} for name, value in twins.items() if name not in set_by_user]


def answer_prometheus(spec: dict[str, Any], container: dict[str, Any]) -> None:
    """Launcher and first worker answer on ports that are found by their names, unless the user has set others.

    In the node's own network a port belongs to one pod only, and a named one would have to be free on the node before
    the pod is placed: there nothing is asked for.
    """
    if spec.get("hostNetwork"):
        return
    env, ports = list(container.get("env") or ()), list(container.get("ports") or ())
    set_by_user = {variable.get("name") for variable in env}
    taken = {value for port in ports for value in (port.get("name"), port.get("containerPort"))}
    for name, (variable, number) in METRICS_PORTS.items():
        if variable not in set_by_user and not taken & {name, number}:
            env.append({"name": variable, "value": str(number)})
            ports.append({"name": name, "containerPort": number})
    container["env"], container["ports"] = env, ports


def grace_period(template: Mapping[str, Any]) -> int:
    """Seconds between a worker's SIGTERM and its SIGKILL, as its template has it."""
    seconds = (template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return seconds if isinstance(seconds, int) else DEFAULT_GRACE_SECONDS


def _time_to_end(job: ElasticJob, index: int) -> dict[str, dict[str, str]]:
    """How long a launcher waits for its processes, where it would else be killed with them."""
    left = grace_period(job.role(index).spec.template) - LAST_WORDS_SECONDS
    if left >= LAUNCHERS_PATIENCE_SECONDS:
        return {}
    return {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": {"value": str(max(1, left))}}


def _rendezvous_settings(job: ElasticJob, index: int) -> dict[str, str]:
    """Settings of the rendezvous: the user's, and what torch's own c10d needs besides.

    Its workers meet when a machine has been provisioned, not within torch's ten minutes, and a world that is not full
    waits five seconds for more and not thirty. Our rendezvous, for etcd, has defaults of its own.
    """
    settings: dict[str, str] = {}
    if job.spec.backend is RendezvousBackend.C10D:
        settings = {"join_timeout": "900", "last_call_timeout": "5"}
        if job.spec.managed_store or job.hosting_worker is not None:
            settings["is_host"] = "true" if index == job.hosting_worker else "false"
    return settings | (job.spec.rdzv_conf or {})


def log_in(spec: dict[str, Any], login: RendezvousLogin, container: dict[str, Any]) -> None:
    """User, password and authority for the launcher, unless the user has set them.

    All of it optional: in a namespace without the Secret none of it is there, and the launcher says what etcd says.
    """
    env = list(container.get("env") or ())
    set_by_user = {variable.get("name") for variable in env}
    container["env"] = env + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": login.secret, "key": key, "optional": True}}}
        for name, key in _LOGIN_VARIABLES.items()
        if name not in set_by_user
    ]
    authority = [{"key": certificates.AUTHORITY, "path": certificates.AUTHORITY}]
    source = {"secretName": login.secret, "items": authority, "optional": True}
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": _LOGIN_VOLUME, "secret": source}]
    mount = {"name": _LOGIN_VOLUME, "mountPath": certificates.MOUNT, "readOnly": True}
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]


def owner(job: ElasticJob) -> dict[str, Any]:
    """The owner reference to a job."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
