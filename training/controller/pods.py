"""The objects that make up a job: its worker pods and the headless Service that names them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from training.controller import certificates
from training.controller.api import (
    FINALIZER,
    LABEL_GENERATION,
    LABEL_MANAGED_BY,
    LABEL_OUR_JOB_NAME,
    LABEL_REPLICA_INDEX,
    MAIN_CONTAINER,
    MANAGED_BY,
    ElasticJob,
    GangScheduler,
    RestartPolicy,
)
from training.controller.gang import join_gang, pod_group
from training.launch.etcd_client import parse_endpoints

MAX_RESTARTS = 1000
"""torchrun's default of 0 lets one lost peer end all others: a peer's loss counts as a failure there."""

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
    _launcher_settings(main_container(spec), job, generation, nnodes)
    if login is not None and login.serves(job.spec.rdzv_endpoint):
        log_in(spec, login, main_container(spec))
    return pod


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


def headless_service(job: ElasticJob) -> dict[str, Any]:
    """The Service that gives workers their names; also those that are not ready, for they look for each other."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": job.service_name,
            "namespace": job.metadata.namespace,
            "labels": {
                **job.selector(),
                LABEL_OUR_JOB_NAME: job.metadata.name,
                LABEL_MANAGED_BY: MANAGED_BY,
            },
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": job.selector(),
        },
    }


def main_container(pod_spec: dict[str, Any], name: str = MAIN_CONTAINER) -> dict[str, Any]:
    """The container that runs the launcher: the one of its name, else the first."""
    containers: list[dict[str, Any]] = pod_spec.get("containers") or [{}]
    return next((container for container in containers if container.get("name") == name), containers[0])


def _launcher_settings(container: dict[str, Any], job: ElasticJob, generation: int, nnodes: str) -> None:
    """Puts the rendezvous before the user's own arguments (of which the last wins) and into torchrun's PET_* twins."""
    own_args: list[str] = [str(argument) for argument in container.get("args") or ()]
    identity = rendezvous_id(job, generation)
    most_restarts = job.spec.max_restarts
    container["args"] = [
        "--rdzv_backend=etcd",
        f"--rdzv_endpoint={job.spec.rdzv_endpoint}",
        f"--rdzv_id={identity}",
        f"--nnodes={nnodes}",
        *own_args,
    ]
    twins: dict[str, Any] = {
        "PET_RDZV_BACKEND": {"value": "etcd"},
        "PET_RDZV_ENDPOINT": {"value": job.spec.rdzv_endpoint},
        "PET_RDZV_ID": {"value": identity},
        "PET_NNODES": {"value": nnodes},
        "PET_LOCAL_ADDR": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        "PET_MAX_RESTARTS": {"value": str(MAX_RESTARTS if most_restarts is None else most_restarts)},
    }
    if job.spec.rdzv_conf:
        twins["PET_RDZV_CONF"] = {"value": ",".join(f"{key}={value}" for key, value in job.spec.rdzv_conf.items())}
    env = list(container.get("env") or ())
    set_by_user = {variable.get("name") for variable in env}
    container["env"] = env + [{"name": name, **value} for name, value in twins.items() if name not in set_by_user]


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
