"""Why a job's workers do not run: what Kubernetes' parts say, each with the command that helps."""

from __future__ import annotations

from typing import Any

import pytest

from infra.waiting import Commands, Waiting, explain

COMMANDS = Commands(job="train", stack="local", namespace="research", local=True)
ELSEWHERE = Commands(job="train", stack="prod", namespace="research", local=False)


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


CREATED = condition("Created")


def job(*conditions: dict[str, Any], queue: str | None = None, **spec: Any) -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    return {
        "metadata": {"name": "train", "labels": labels},
        "spec": spec,
        "status": {"conditions": list(conditions)},
    }


def pod(number: int = 0, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": f"train-worker-{number}"}, "status": {"phase": "Pending", **status}}


def homeless(message: str, number: int = 0, reason: str = "Unschedulable") -> dict[str, Any]:
    return pod(number, conditions=[condition("PodScheduled", "False", reason, message)])


def held_back(reason: str, message: str = "", number: int = 0) -> dict[str, Any]:
    return pod(number, containerStatuses=[{"name": "w", "state": {"waiting": {"reason": reason, "message": message}}}])


def only(*arguments: Any, commands: Commands = COMMANDS, events: Any = ()) -> Waiting:
    (waiting,) = explain(arguments[0], arguments[1:], events, commands)
    return waiting


def test_a_job_that_trains_or_has_ended_waits_for_nothing() -> None:
    running = pod(phase="Running", containerStatuses=[{"name": "w", "state": {"running": {}}}])
    assert explain(job(CREATED, condition("Running")), [running], [], COMMANDS) == []
    assert explain(job(CREATED, condition("Failed"), suspend=True), [homeless("no room")], [], COMMANDS) == []


def test_a_job_that_no_controller_has_seen_says_where_to_look() -> None:
    waiting = only(job())
    assert (waiting.cause, waiting.next) == ("controller", "kubectl -n trainyard-system get pods")


def test_a_suspended_job_is_resumed_by_its_user_or_by_its_queue() -> None:
    waiting = only(job(CREATED, suspend=True))
    assert (waiting.cause, waiting.next) == ("suspended", "trainyard resume train")
    assert only(job(CREATED, suspend=True), commands=ELSEWHERE).next == "trainyard resume train -s prod"
    queued = only(job(CREATED, suspend=True, queue="gpus"))
    assert queued.cause == "queue"
    assert "queue gpus" in queued.message
    assert queued.next == "kubectl -n research get workloads,localqueues"


def test_a_worker_whose_queue_has_not_admitted_it_says_which() -> None:
    gated = homeless("Scheduling is blocked due to non-empty scheduling gates", reason="SchedulingGated")
    gated["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    assert only(job(CREATED), gated).message == "queue gpus has not admitted the workers yet"


def test_a_quota_is_told_from_other_refusals() -> None:
    said = 'the API server refuses train-worker-0: pods "train-worker-0" is forbidden: '
    quota = condition("Running", "False", "ElasticJobNotRunning", f"0 of 3 run; {said}exceeded quota: tight")
    assert only(job(CREATED, quota)) == Waiting(
        "quota", f"{said}exceeded quota: tight", "kubectl -n research describe resourcequotas"
    )
    some = condition("Running", message=f"2 of 3 run; {said}exceeded quota: tight")
    assert only(job(CREATED, some)).cause == "quota"
    class_ = condition("Running", "False", "ElasticJobNotRunning", f"0 of 3 run; {said}no PriorityClass x")
    refused = only(job(CREATED, class_))
    assert (refused.cause, refused.message) == ("refused", f"{said}no PriorityClass x")
    assert "trainyard cancel train" in refused.next


def test_no_room_is_said_once_for_all_workers_with_the_way_to_more() -> None:
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    more = " no new claims to deallocate, preemption: 0/4 nodes are available: 4 No preemption victims found."
    waiting = only(job(CREATED), homeless(message + more, 0), homeless(message + more, 1))
    assert waiting.cause == "capacity"
    assert waiting.message == message.rstrip(".")
    assert waiting.workers == ("train-worker-0", "train-worker-1")
    assert "Pulumi.local.yaml" in waiting.next
    assert "trainyard up -s local" in waiting.next
    assert "kubectl get nodes" in only(job(CREATED), homeless(message), commands=ELSEWHERE).next


def test_what_no_node_can_ever_hold_is_the_whole_job_s_reason_and_hides_the_workers() -> None:
    large = condition("WaitingForCapacity", "True", "RequestTooLarge", "each worker asks for 8, a node has 1")
    waiting = only(job(CREATED, large), homeless("0/4 nodes are available: 4 Insufficient nvidia.com/gpu."))
    assert (waiting.message, waiting.workers) == ("each worker asks for 8, a node has 1", ())
    assert "lower the request" in waiting.next


def test_a_taint_that_is_not_tolerated_asks_for_a_toleration() -> None:
    waiting = only(job(CREATED), homeless("0/2 nodes are available: 2 node(s) had untolerated taint(s)."))
    assert waiting.next.startswith("give the workers a toleration")


@pytest.mark.parametrize(
    "message",
    [
        '0/4 nodes are available: persistentvolumeclaim "nope" not found.',
        "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
        "0/4 nodes are available: 4 node(s) had volume node affinity conflict.",
    ],
)
def test_a_volume_that_is_missing_is_no_lack_of_machines(message: str) -> None:
    waiting = only(job(CREATED), homeless(message))
    assert waiting.cause == "volume"
    assert waiting.next.startswith("kubectl -n research get persistentvolumeclaims")


def test_a_volume_that_cannot_be_mounted_is_told_by_its_event() -> None:
    events = [
        {"involvedObject": {"name": "train-worker-0"}, "reason": "FailedMount", "message": "mount failed:\n  exit 32"},
        {"involvedObject": {"name": "train-worker-1"}, "reason": "FailedMount", "message": "another's"},
        {"involvedObject": {"name": "train-worker-0"}, "reason": "Pulled", "message": "image"},
    ]
    waiting = only(job(CREATED), held_back("ContainerCreating"), events=events)
    assert (waiting.cause, waiting.message) == ("volume", "mount failed: exit 32")
    assert waiting.next == "kubectl -n research describe pod train-worker-0"


def test_an_image_is_told_once_however_far_its_pull_is() -> None:
    first = held_back("ErrImagePull", "no such image", 0)
    later = held_back("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: no such image', 1)
    waiting = only(job(CREATED), first, later)
    assert (waiting.cause, waiting.message) == ("image", "ErrImagePull: no such image")
    assert waiting.workers == ("train-worker-0", "train-worker-1")
    assert waiting.next == "trainyard images list"
    assert only(job(CREATED), first, commands=ELSEWHERE).next == "kubectl -n research describe pod train-worker-0"


def test_a_missing_secret_and_a_container_that_keeps_failing_are_told() -> None:
    waiting = only(job(CREATED), held_back("CreateContainerConfigError", 'secret "s" not found'))
    assert (waiting.cause, waiting.message) == (
        "configuration",
        'CreateContainerConfigError: secret "s" not found',
    )
    crash = held_back("CrashLoopBackOff", "back-off 10s") | {"status": {}}
    crash["status"] = held_back("CrashLoopBackOff", "back-off 10s")["status"] | {"phase": "Running"}
    assert only(job(CREATED), crash).next == "trainyard logs train"


def test_a_worker_that_just_starts_or_goes_is_no_reason() -> None:
    going = homeless("no room")
    going["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z"
    assert explain(job(CREATED), [held_back("ContainerCreating"), going], [], COMMANDS) == []


def test_a_sentence_ends_with_what_to_do() -> None:
    assert only(job(CREATED, suspend=True)).sentence() == "the job is suspended. Next: trainyard resume train"
