"""The objects that make up a PyTorchJob, with the environment that the training operator gives its pods."""

from __future__ import annotations

from typing import Any

from training.controller.api import LABEL_MANAGED_BY, LABEL_OUR_JOB_NAME, MANAGED_BY, ElasticJob
from training.controller.pods import (
    MAX_RESTARTS,
    RendezvousLogin,
    bare_pod,
    endpoint,
    log_in,
    main_container,
    owner,
    prefer_machines_that_stay,
    rendezvous_id,
)
from training.controller.pytorchjob import (
    LABEL_JOB_ROLE,
    LABEL_REPLICA_INDEX,
    MAIN_CONTAINER,
    MASTER,
    PORT,
    PORT_NAME,
    ElasticPolicy,
    PyTorchJob,
    RendezvousBackend,
    main_port,
)

Variables = dict[str, dict[str, Any]]


def replica_pod(
    job: ElasticJob, index: int, generation: int, nnodes: str, login: RendezvousLogin | None = None
) -> dict[str, Any]:
    """The manifest of a replica.

    Args:
        job: the PyTorchJob that the pod belongs to.
        index: number of the replica; -1 is the Master.
        generation: how often all replicas have started anew together.
        nnodes: not used: the spec tells it, and without elasticPolicy it is one number.
        login: how to log in to the stack's etcd, for jobs that meet there.
    """
    del nnodes
    job = _pytorch(job)
    role, first = job.role(index), job.roles[0].first
    pod = bare_pod(job, index, generation)
    pod["metadata"]["labels"] |= {
        **job.selector(role.name),
        LABEL_REPLICA_INDEX: str(index - role.first),
        **({LABEL_JOB_ROLE: MASTER.lower()} if index == first else {}),
    }
    main = main_container(pod["spec"], MAIN_CONTAINER)
    if not any(port.get("name") == PORT_NAME for port in main.get("ports") or ()):
        main["ports"] = [*(main.get("ports") or ()), {"name": PORT_NAME, "containerPort": PORT}]
    if index == job.hosting_worker:
        prefer_machines_that_stay(pod["spec"])
    variables = _variables(job, index, generation)
    for container in pod["spec"].get("containers") or ():
        env = list(container.get("env") or ())
        set_by_user = {variable.get("name") for variable in env}
        container["env"] = env + [{"name": name, **how} for name, how in variables.items() if name not in set_by_user]
    if login is not None and job.wanted.elastic_policy is not None and login.serves(endpoint(job)):
        log_in(pod["spec"], login, main)
    return pod


def first_service(job: ElasticJob, name: str) -> dict[str, Any]:
    """The headless Service that makes the first replica's name known: MASTER_ADDR, or the host of the rendezvous."""
    job = _pytorch(job)
    role = job.roles[0]
    port = main_port(role.spec.template)
    labels = {**job.selector(role.name), LABEL_REPLICA_INDEX: "0"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": job.metadata.namespace,
            "labels": {**labels, LABEL_OUR_JOB_NAME: job.metadata.name, LABEL_MANAGED_BY: MANAGED_BY},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels,
            "ports": [{"name": PORT_NAME, "port": port, "targetPort": port}],
        },
    }


def _pytorch(job: ElasticJob) -> PyTorchJob:
    if not isinstance(job, PyTorchJob):
        raise TypeError(f"{job.key} is no PyTorchJob")
    return job


def _variables(job: PyTorchJob, index: int, generation: int) -> Variables:
    """The environment of a replica by the training operator's contract, and the address at which others reach it."""
    wanted, elastic = job.wanted, job.wanted.elastic_policy
    number, rank = job.spec.worker.replicas, index - job.roles[0].first
    told: Variables = {
        "PYTHONUNBUFFERED": {"value": "1"},
        "PET_LOCAL_ADDR": {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    }
    per_node = wanted.nproc_per_node
    if per_node is None and elastic is not None and elastic.n_proc_per_node is not None:
        per_node = str(elastic.n_proc_per_node)
    told["PET_NPROC_PER_NODE"] = {"value": per_node or "auto"}
    if job.has_master:
        processes = int(per_node) if per_node is not None and per_node.isdecimal() else 1
        address, port = job.service_name, str(main_port(job.roles[0].spec.template))
        told |= {
            "MASTER_ADDR": {"value": address},
            "MASTER_PORT": {"value": port},
            "PET_MASTER_ADDR": {"value": address},
            "PET_MASTER_PORT": {"value": port},
            "WORLD_SIZE": {"value": str(number * processes)},
            "RANK": {"value": str(rank)},
            "PET_NODE_RANK": {"value": str(rank)},
        }
    if elastic is None:
        return told | {"PET_NNODES": {"value": str(number)}}
    return told | _elastic_variables(job, elastic, index, generation)


def _elastic_variables(job: PyTorchJob, elastic: ElasticPolicy, index: int, generation: int) -> Variables:
    restarts = MAX_RESTARTS if elastic.max_restarts is None else elastic.max_restarts
    fewest, most = job.spec.min_replicas, job.spec.max_replicas
    number = job.spec.worker.replicas
    told: Variables = {
        "PET_RDZV_BACKEND": {"value": str(elastic.rdzv_backend or RendezvousBackend.C10D)},
        "PET_RDZV_ENDPOINT": {"value": endpoint(job)},
        "PET_RDZV_ID": {"value": elastic.rdzv_id or rendezvous_id(job, generation)},
        "PET_NNODES": {"value": f"{fewest or number}:{most or number}"},
        "PET_MAX_RESTARTS": {"value": str(restarts)},
    }
    host = job.hosting_worker
    # torch compares names and addresses, which tells nothing where pods share a network with their machine.
    settings = {} if host is None else {"is_host": "true" if index == host else "false"}
    settings |= {each.key: each.value for each in elastic.rdzv_conf or ()}
    if settings:
        told["PET_RDZV_CONF"] = {"value": ",".join(f"{key}={value}" for key, value in settings.items())}
    if elastic.standalone:
        told["PET_STANDALONE"] = {"value": ""}
    return told
