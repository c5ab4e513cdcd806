"""From a look at a stack to what is wrong: each state is named, once, with evidence; where all is well nothing is."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from infra.diagnose.findings import findings
from infra.diagnose.kinds import KINDS
from infra.diagnose.snapshot import JobView, Snapshot
from infra.jobs import LogLine
from infra.waiting import Commands
from training.controller.capacity import no_room
from training.controller.records import node_record

NOW = 1_764_500_000.0
EFA = "vpc.amazonaws.com/efa"
WORKER = "train-worker-0"


def moment(ago: float = 0.0) -> str:
    return datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: str = "True", reason: str = "", message: str = "", ago: float = 600) -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": moment(ago)}


READY = condition("Ready")


def pod(name: str = WORKER, *conditions: dict[str, Any], node: str = "gpu-0", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "creationTimestamp": moment(600)},
        "spec": {"nodeName": node, "containers": [{"name": "elasticjob-worker"}]},
        "status": {"phase": "Running", "conditions": list(conditions or (READY,)), **status},
    }


def unscheduled(message: str) -> dict[str, Any]:
    return pod(WORKER, condition("PodScheduled", "False", "Unschedulable", message), phase="Pending")


def held_back(reason: str, message: str = "") -> dict[str, Any]:
    waiting = {"name": "elasticjob-worker", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(WORKER, condition("Ready", "False"), phase="Pending", containerStatuses=[waiting])


def node(name: str = "gpu-0", *conditions: dict[str, Any], efa: int = 0, **spec: Any) -> dict[str, Any]:
    allocatable = {EFA: str(efa)} if efa else {}
    return {
        "metadata": {"name": name},
        "spec": spec,
        "status": {"conditions": list(conditions or (READY,)), "allocatable": allocatable},
    }


def steps(number: int = 40, ago: float = 1.0, every: float = 0.5, **seconds: float) -> list[str]:
    """Lines of as many steps, the last of them so long ago."""
    told = []
    for step in range(1, number + 1):
        line: dict[str, Any] = {"trainyard": "step", "time": NOW - ago - (number - step) * every, "step": step}
        told.append(json.dumps({**line, "world_size": 1, "loss": 0.5, "seconds": seconds}))
    return told


def log(*texts: str, of: str = WORKER) -> list[LogLine]:
    return [LogLine(of, "", "", text) for text in texts]


def job(
    *conditions: dict[str, Any],
    pods: list[dict[str, Any]] | None = None,
    logs: list[list[LogLine]] | None = None,
    events: list[dict[str, Any]] | None = None,
    wanted: int = 1,
    ready: int = 1,
    name: str = "train",
    **spec: Any,
) -> JobView:
    return JobView(
        manifest={
            "metadata": {"name": name},
            "spec": spec,
            "status": {
                "conditions": list(conditions or (condition("Running"),)),
                "desiredReplicas": wanted,
                "readyReplicas": ready,
            },
        },
        pods=[pod()] if pods is None else pods,
        events=events or [],
        logs=[log(*steps())] if logs is None else logs,
        commands=Commands(job=name, stack="local", namespace="training", local=True),
    )


def lease(ago: float = 1.0, holder: str = "elastic-controller-x") -> dict[str, Any]:
    return {"spec": {"holderIdentity": holder, "renewTime": datetime.fromtimestamp(NOW - ago, UTC)}}


ETCD, CONTROLLER = pod("etcd-0"), pod("elastic-controller-6d5-x")
WELL = Snapshot(
    stack="local",
    namespace="training",
    now=NOW,
    nodes=[node()],
    system_pods=[ETCD, CONTROLLER],
    lease=lease(),
    jobs=[job()],
)


def codes(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [(finding.code, finding.object) for finding in findings(snapshot)]


def test_where_all_is_well_nothing_is_found() -> None:
    assert findings(WELL) == []


def test_a_job_that_has_succeeded_is_well_whatever_its_logs_say() -> None:
    assert codes(dataclasses.replace(WELL, jobs=[job(condition("Succeeded"), logs=[log("CUDA out of memory")])])) == []


SILENT = log(*steps(ago=500))
CREATED = condition("Created")
STATES_OF_A_JOB = {
    "controller": dataclasses.replace(job(pods=[]), manifest={**job().manifest, "status": {}}),
    "suspended": job(suspend=True),
    "quota": job(CREATED, condition("Running", "False", message='0 of 1; pods "x" is forbidden: exceeded quota: gpus')),
    "refused": job(CREATED, condition("Running", "False", message="0 of 1; spec is invalid"), pods=[]),
    "capacity": job(CREATED, pods=[unscheduled("0/4 nodes are available: 4 Insufficient nvidia.com/gpu.")]),
    "untolerated-taint": job(
        CREATED, pods=[unscheduled("0/4 nodes are available: 4 node(s) had untolerated taint {a: b}.")]
    ),
    "no-such-machine": job(
        CREATED, pods=[unscheduled("0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.")]
    ),
    "volume": job(CREATED, pods=[unscheduled('persistentvolumeclaim "data" not found')]),
    "image": job(CREATED, pods=[held_back("ImagePullBackOff", "ErrImagePull: x not found")]),
    "configuration": job(CREATED, pods=[held_back("CreateContainerConfigError", 'secret "x" not found')]),
    "crash": job(CREATED, pods=[held_back("CrashLoopBackOff", "back-off 5m0s")], logs=[[]]),
    "user-error": job(condition("Failed"), logs=[log("t.py: error: argument --epochs: invalid int value: 'none'")]),
    "failed": job(condition("Failed", message="worker 0 ended with 3"), logs=[log("bye")]),
    "gpu-memory": job(condition("Failed"), logs=[log("torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB")]),
    "gpu-fault": job(condition("Failed"), logs=[log("NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.")]),
    "sync-timeout": job(condition("Failed"), logs=[log("Watchdog caught collective operation timeout: ALLREDUCE")]),
    "partition": job(condition("Failed"), logs=[log("etcd: Temporary failure in name resolution")]),
    "disk-full": job(condition("Failed"), logs=[log("OSError: [Errno 28] No space left on device")]),
    "host-memory": job(
        condition("Failed"),
        pods=[
            pod(
                containerStatuses=[
                    {"name": "elasticjob-worker", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
                ]
            )
        ],
    ),
    "hang": job(logs=[SILENT]),
    "slow-saves": job(logs=[log(*steps(compute=0.1, checkpoint=0.9))]),
    "data-bound": job(logs=[log(*steps(compute=0.1, data=0.9))]),
    "slow-storage": job(
        logs=[log(*steps(), json.dumps({"trainyard": "checkpoint", "time": NOW - 2, "step": 40, "seconds": 90.0}))]
    ),
    "workers-missing": job(wanted=2),
    "disturbed": job(
        logs=[
            log(
                *steps(),
                json.dumps(
                    {"trainyard": "recovery", "time": NOW - 60, "began": NOW - 62, "total": 2.0, "cause": "node_lost"}
                    | {"outcome": "trained", "node": "gpu-1"}
                ),
            )
        ]
    ),
}


@pytest.mark.parametrize("code", STATES_OF_A_JOB)
def test_a_state_of_a_job_is_named_and_nothing_else(code: str) -> None:
    (found,) = findings(dataclasses.replace(WELL, jobs=[STATES_OF_A_JOB[code]]))
    assert (found.code, found.object, found.title) == (code, "job/train", KINDS[code].title)
    assert found.evidence
    assert all(found.evidence)
    assert found.remedy
    assert found.command


@pytest.mark.parametrize(
    ("code", "about", "changed"),
    [
        ("etcd-down", "statefulset/etcd", {"system_pods": [CONTROLLER]}),
        ("etcd-down", "statefulset/etcd", {"system_pods": [CONTROLLER, pod("etcd-0", condition("Ready", "False"))]}),
        ("controller-down", "deployment/elastic-controller", {"system_pods": [ETCD]}),
        ("controller-down", "deployment/elastic-controller", {"lease": None}),
        ("controller-down", "deployment/elastic-controller", {"lease": lease(ago=120)}),
        ("node-not-ready", "node/gpu-0", {"nodes": [node("gpu-0", condition("Ready", "Unknown"))]}),
        ("node-pressure", "node/gpu-0", {"nodes": [node("gpu-0", READY, condition("MemoryPressure"))]}),
        (
            "notice",
            "node/gpu-0",
            {
                "nodes": [
                    node(
                        taints=[{"key": "aws-node-termination-handler/spot-itn", "value": "1", "effect": "NoSchedule"}]
                    )
                ]
            },
        ),
    ],
)
def test_a_state_of_the_stack_is_named_and_nothing_else(code: str, about: str, changed: dict[str, Any]) -> None:
    (found,) = findings(dataclasses.replace(WELL, **changed))
    assert (found.code, found.object) == (code, about)
    assert found.evidence
    assert found.command


def on_efa(asks: bool, *texts: str) -> Snapshot:
    workers = [pod(f"train-worker-{number}", node=f"gpu-{number}") for number in (0, 1)]
    for worker in workers:
        worker["spec"]["containers"][0]["resources"] = {"limits": {EFA: "1"} if asks else {}}
    view = job(pods=workers, wanted=2, ready=2, logs=[log(*texts, *steps())])
    return dataclasses.replace(WELL, nodes=[node("gpu-0", efa=1), node("gpu-1", efa=1)], jobs=[view])


def test_efa_that_is_not_asked_for_or_not_used_is_named() -> None:
    sockets = "gpu-0:1:1 [0] NCCL INFO Using network Socket"
    fabric = "gpu-0:1:1 [0] NCCL INFO Using network Libfabric"
    assert codes(on_efa(False, sockets)) == [("efa-not-requested", "job/train")]
    assert codes(on_efa(True, sockets)) == [("efa-not-used", "job/train")]
    assert codes(on_efa(True, fabric)) == []


def test_labels_that_no_machine_has_are_named_when_the_controller_sees_it_before_the_scheduler() -> None:
    template = {"spec": {"nodeSelector": {"trainyard.dev/pool": "gpu-h900"}}}
    told = no_room(template, [node_record(node())])
    assert told is not None
    waiting = condition("WaitingForCapacity", reason=told.reason, message=told.message)
    assert codes(dataclasses.replace(WELL, jobs=[job(CREATED, waiting, pods=[])])) == [("no-such-machine", "job/train")]


def test_workers_that_wait_for_the_same_are_one_finding() -> None:
    waiting = [unscheduled("0/4 nodes are available: 4 Insufficient cpu.") for _ in range(10)]
    for number, one in enumerate(waiting):
        one["metadata"]["name"] = f"train-worker-{number}"
    (found,) = findings(dataclasses.replace(WELL, jobs=[job(CREATED, pods=waiting, wanted=10, ready=0)]))
    assert "train-worker-9" in found.evidence[1]


def test_causes_come_before_what_follows_from_them() -> None:
    broken = dataclasses.replace(
        WELL,
        system_pods=[CONTROLLER],
        nodes=[node("gpu-0", condition("Ready", "Unknown"))],
        jobs=[job(logs=[SILENT]), job(name="asleep", suspend=True)],
    )
    assert codes(broken) == [
        ("etcd-down", "statefulset/etcd"),
        ("node-not-ready", "node/gpu-0"),
        ("hang", "job/train"),
        ("suspended", "job/asleep"),
    ]
