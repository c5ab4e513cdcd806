"""What the ElasticJob API promises, point by point, with the controller as a process on a real control plane.

The points are numbered C1 to C26; some have their test in `test_controller_loop.py` and `test_controller_failover.py`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_api_server import (
    HOSTNAME,
    JOBS,
    NODE,
    UPSTREAM_SAMPLE,
    ApiRefusalError,
    Cluster,
    elastic_job,
    eventually,
    own_pods,
    prefer,
)

pytest_plugins = ["api_server_fixture"]

POINTS = 26


def test_every_point_has_its_test() -> None:
    found = {
        int(number)
        for file in Path(__file__).parent.glob("test_controller_*.py")
        for name in re.findall(r"def test((?:_c\d\d)+)_", file.read_text(encoding="utf-8"))
        for number in re.findall(r"\d\d", name)
    }
    assert sorted(found) == list(range(1, POINTS + 1))


def submit(cluster: Cluster, body: dict[str, Any], namespace: str = "") -> str:
    """Creates a job in a namespace, by default one of its own, whose name is returned."""
    namespace = namespace or cluster.namespace(f"conformance-{body['metadata']['name']}")
    cluster.create(f"{JOBS}/namespaces/{namespace}/elasticjobs", body)
    return namespace


def status_of(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.job(namespace, name).get("status", {})
    return found


def wait_books(cluster: Cluster, namespace: str, name: str, *, restarts: int, disruptions: int) -> None:
    def counted() -> bool:
        status = status_of(cluster, namespace, name)
        return (status.get("restarts"), status.get("disruptions")) == (restarts, disruptions)

    eventually(f"{restarts} restarts and {disruptions} disruptions of {namespace}/{name}", counted)


def terminated(code: int, reason: str) -> list[dict[str, Any]]:
    """Container statuses of a worker that ended."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    state = {"terminated": {"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now}}
    container = {"ready": False, "restartCount": 0, "image": "i", "imageID": "i", "state": state}
    return [{"name": "elasticjob-worker", **container}]


def reason_of(job: dict[str, Any], kind: str) -> str:
    return next(str(c["reason"]) for c in job["status"]["conditions"] if c["type"] == kind)


def replaced(cluster: Cluster, namespace: str, name: str, before: dict[str, Any]) -> Callable[[], bool]:
    def look() -> bool:
        pod = cluster.pods(namespace).get(name)
        return pod is not None and pod["metadata"]["uid"] != before[name]["metadata"]["uid"]

    return look


def argument(pod: dict[str, Any], name: str) -> str:
    (found,) = (a for a in pod["spec"]["containers"][0]["args"] if a.startswith(f"--{name}="))
    return str(found).partition("=")[2]


@pytest.mark.engines
@pytest.mark.usefixtures("controller")
class TestObjects:
    def test_c01_c02_c03_the_upstream_sample_becomes_pods_with_its_arguments_and_labels(self, cluster: Cluster) -> None:
        namespace = submit(cluster, yaml.safe_load(UPSTREAM_SAMPLE))
        pods = cluster.wait_running(namespace, 2, NODE)
        assert sorted(pods) == ["imagenet-worker-0", "imagenet-worker-1"]
        pod = pods["imagenet-worker-1"]
        args = pod["spec"]["containers"][0]["args"]
        assert [argument.partition("=")[0] for argument in args[:5]] == [
            "--rdzv_backend",
            "--rdzv_endpoint",
            "--rdzv_id",
            "--nnodes",
            "--nproc_per_node",  # from here on the user's own
        ]
        assert args[3] == "--nnodes=1:3"
        labels = pod["metadata"]["labels"]
        legacy = ("group-name", "job-name", "replica-type", "replica-index")
        assert [labels[key] for key in legacy] == ["elastic.pytorch.org", "imagenet", "worker", "1"]

    def test_c04_c05_without_replicas_min_and_max_it_is_one_fixed_worker(self, cluster: Cluster) -> None:
        body = elastic_job("nil")
        del body["spec"]["replicaSpecs"]["Worker"]["replicas"]
        namespace = submit(cluster, body)
        (pod,) = cluster.wait_running(namespace, 1, NODE).values()
        assert argument(pod, "nnodes") == "1:1"

    def test_c25_a_later_job_of_the_same_name_shares_nothing_with_the_first(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("rerun", replicas=1))
        (first,) = cluster.wait_running(namespace, 1, NODE).values()
        cluster.call("DELETE", f"{JOBS}/namespaces/{namespace}/elasticjobs/rerun")
        submit(cluster, elastic_job("rerun", replicas=1), namespace)

        def of_the_second() -> list[dict[str, Any]]:
            pods = cluster.pods(namespace).values()
            return [pod for pod in pods if pod["metadata"]["uid"] != first["metadata"]["uid"]]

        (second,) = eventually("a worker of the second job", of_the_second)
        assert argument(first, "rdzv_id") != argument(second, "rdzv_id")
        (left,) = cluster.wait_running(namespace, 1, NODE).values()  # the first job's is told to go, and goes
        assert left["metadata"]["uid"] == second["metadata"]["uid"]
        assert status_of(cluster, namespace, "rerun")["disruptions"] == 0

    def test_a_deleted_job_and_a_deleted_namespace_leave_nothing(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("litter"))
        submit(cluster, elastic_job("rest"), namespace)
        cluster.wait_running(namespace, 4, NODE)
        cluster.call("DELETE", f"{JOBS}/namespaces/{namespace}/elasticjobs/litter")
        assert sorted(cluster.wait_running(namespace, 2, NODE)) == ["rest-worker-0", "rest-worker-1"]

        def services() -> list[str]:
            listed = cluster.call("GET", f"/api/v1/namespaces/{namespace}/services")["items"]
            return [service["metadata"]["name"] for service in listed]

        eventually("the Services of the other job alone", lambda: services() == ["rest-worker-0", "rest-workers"])
        cluster.call("DELETE", f"/api/v1/namespaces/{namespace}")

        def gone() -> bool:
            cluster.run_pods(namespace, NODE)
            return cluster.admin.get(f"/api/v1/namespaces/{namespace}").status_code == 404

        eventually("the namespace has gone", gone)

    def test_c26_what_the_user_writes_while_the_status_is_written_stays(self, cluster: Cluster) -> None:
        body = elastic_job("edited", minReplicas=1, maxReplicas=4, ttlSecondsAfterFinished=600)
        namespace = submit(cluster, body)
        path = f"{JOBS}/namespaces/{namespace}/elasticjobs/edited"
        for number in range(12):
            cluster.merge(path, {"spec": {"replicaSpecs": {"Worker": {"replicas": 1 + number % 4}}}})
            cluster.run_pods(namespace, NODE)
        cluster.wait_running(namespace, 4, NODE)

        def settled() -> bool:
            job = cluster.job(namespace, "edited")
            return bool(
                job["status"]["observedGeneration"] == job["metadata"]["generation"] and job["status"]["replicas"] == 4
            )

        eventually("the status answers the last edit", settled)
        spec = cluster.job(namespace, "edited")["spec"]
        assert (spec["ttlSecondsAfterFinished"], spec["replicaSpecs"]["Worker"]["replicas"]) == (600, 4)


@pytest.mark.engines
@pytest.mark.usefixtures("controller")
class TestScaling:
    def test_c06_scale_2_4_1_with_a_hole(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("holes", replicas=2, minReplicas=1, maxReplicas=4))
        scale = f"{JOBS}/namespaces/{namespace}/elasticjobs/holes/scale"
        cluster.wait_running(namespace, 2, NODE)
        cluster.merge(scale, {"spec": {"replicas": 4}})
        cluster.wait_running(namespace, 4, NODE)
        cluster.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/holes-worker-1")
        eventually("a replacement under a free name", lambda: "holes-worker-4" in cluster.pods(namespace))
        assert sorted(cluster.wait_running(namespace, 4, NODE)) == [f"holes-worker-{i}" for i in (0, 2, 3, 4)]
        cluster.merge(scale, {"spec": {"replicas": 1}})
        cluster.wait_running(namespace, 1, NODE)
        wait_books(cluster, namespace, "holes", restarts=0, disruptions=1)

    def test_c07_two_workers_of_four_stay_whichever_their_numbers(self, cluster: Cluster) -> None:
        """Upstream, left with 0 and 3 when two were wanted, made 1 and 2 and deleted 3."""
        namespace = submit(cluster, elastic_job("slots", replicas=4, minReplicas=1, maxReplicas=4))
        before = cluster.wait_running(namespace, 4, NODE)
        path = f"{JOBS}/namespaces/{namespace}/elasticjobs/slots"
        victims = {"elastic.pytorch.org/victims": "slots-worker-1,slots-worker-2"}
        cluster.merge(
            path, {"metadata": {"annotations": victims}, "spec": {"replicaSpecs": {"Worker": {"replicas": 2}}}}
        )
        left = cluster.wait_running(namespace, 2, NODE)
        assert {n: p["metadata"]["uid"] for n, p in left.items()} == {
            n: before[n]["metadata"]["uid"] for n in ("slots-worker-0", "slots-worker-3")
        }


@pytest.mark.engines
@pytest.mark.usefixtures("controller")
class TestEnds:
    def test_c08_signals_are_retried_and_charged(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("signals", replicas=4))
        cluster.wait_running(namespace, 4, NODE)
        for number, code in enumerate((130, 137, 138, 143)):
            cluster.phase(namespace, f"signals-worker-{number}", "Failed", exit_code=code)
        wait_books(cluster, namespace, "signals", restarts=4, disruptions=0)
        cluster.wait_running(namespace, 4, NODE)

    def test_c10_exit_1_after_sigterm_is_no_failure(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("sigterm", backoffLimit=0))
        cluster.wait_running(namespace, 2, NODE)
        cluster.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/sigterm-worker-0")
        cluster.phase(namespace, "sigterm-worker-0", "Failed", exit_code=1)
        wait_books(cluster, namespace, "sigterm", restarts=0, disruptions=1)
        cluster.phase(namespace, "sigterm-worker-1", "Failed", exit_code=1)  # its peer has gone
        wait_books(cluster, namespace, "sigterm", restarts=0, disruptions=2)
        cluster.wait_running(namespace, 2, NODE)

    def test_c11_running_out_of_memory_is_charged(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("oom"))
        before = cluster.wait_running(namespace, 2, NODE)
        cluster.phase(namespace, "oom-worker-0", "Failed", containerStatuses=terminated(137, "OOMKilled"))
        eventually("a new worker", replaced(cluster, namespace, "oom-worker-0", before))
        wait_books(cluster, namespace, "oom", restarts=1, disruptions=0)

    def test_c12_no_disruption_is_charged_whoever_caused_it(self, cluster: Cluster) -> None:
        reasons = (
            "PreemptionByScheduler",
            "DeletionByTaintManager",
            "EvictionByEvictionAPI",
            "DeletionByPodGC",
            "TerminationByKubelet",
        )
        namespace = submit(cluster, elastic_job("targets", replicas=5, restart_policy="Never", backoffLimit=0))
        cluster.wait_running(namespace, 5, NODE)
        for number, reason in enumerate(reasons):
            cluster.phase(
                namespace,
                f"targets-worker-{number}",
                "Failed",
                containerStatuses=terminated(137, "Error"),
                conditions=[{"type": "DisruptionTarget", "status": "True", "reason": reason}],
            )
        wait_books(cluster, namespace, "targets", restarts=0, disruptions=5)
        cluster.wait_running(namespace, 5, NODE)

    def test_c13_c14_evicted_without_a_word_and_shut_down_with_the_node(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("kubelet", replicas=3, restart_policy="OnFailure"))
        cluster.wait_running(namespace, 3, NODE)
        ends = (
            ("Evicted", "The node was low on resource: ephemeral-storage."),
            ("Terminated", "Pod was terminated in response to imminent node shutdown."),
            ("Evicted", "The node was low on resource: memory."),  # the one that is charged
        )
        for number, (reason, message) in enumerate(ends):
            cluster.phase(namespace, f"kubelet-worker-{number}", "Failed", reason=reason, message=message)
        wait_books(cluster, namespace, "kubelet", restarts=1, disruptions=2)
        cluster.wait_running(namespace, 3, NODE)

    def test_c16_a_worker_that_cannot_end_does_not_hold_up_its_successor(self, cluster: Cluster) -> None:
        cluster.node("mute", gpus=1)
        body = elastic_job("stuck", replicas=1)
        body["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
        namespace = submit(cluster, prefer(body, "mute"))
        old = cluster.wait_running(namespace, 1, "mute")["stuck-worker-0"]["metadata"]["uid"]
        cluster.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/stuck-worker-0")
        eventually("a successor under another name", lambda: "stuck-worker-1" in cluster.pods(namespace))
        assert cluster.pods(namespace)["stuck-worker-0"]["metadata"]["uid"] == old  # its node may still answer
        taints = [own_pods("mute"), {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]
        cluster.merge("/api/v1/nodes/mute", {"spec": {"taints": taints}})
        eventually("it is removed by force", lambda: "stuck-worker-0" not in cluster.pods(namespace))

    def test_c19_the_budget_counts_over_pods(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("budget", replicas=1, backoffLimit=1))
        before = cluster.wait_running(namespace, 1, NODE)
        cluster.phase(namespace, "budget-worker-0", "Failed", exit_code=137)
        eventually("a second worker", replaced(cluster, namespace, "budget-worker-0", before))
        cluster.wait_running(namespace, 1, NODE)
        cluster.phase(namespace, "budget-worker-0", "Failed", exit_code=137)
        job = cluster.wait_condition(namespace, "budget", "Failed")
        assert reason_of(job, "Failed") == "BackoffLimitExceeded"


@pytest.mark.engines
@pytest.mark.usefixtures("controller")
class TestJobEnds:
    def test_c17_ttl_after_success_and_after_failure(self, cluster: Cluster) -> None:
        namespace = cluster.namespace("conformance-ttl")
        for name in ("good", "bad"):
            submit(cluster, elastic_job(name, replicas=1, ttlSecondsAfterFinished=1), namespace)
        cluster.wait_running(namespace, 2, NODE)
        cluster.phase(namespace, "good-worker-0", "Succeeded", exit_code=0)
        cluster.phase(namespace, "bad-worker-0", "Failed", exit_code=1)

        def none_left() -> bool:
            return not cluster.call("GET", f"{JOBS}/namespaces/{namespace}/elasticjobs")["items"]

        eventually("both jobs deleted", none_left)

    def test_c18_the_deadline_fails_the_job_though_nothing_happens(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("deadline", replicas=1, activeDeadlineSeconds=2))
        job = cluster.wait_condition(namespace, "deadline", "Failed")
        assert reason_of(job, "Failed") == "DeadlineExceeded"
        assert job["status"]["completionTime"]

    def test_c20_clean_pod_policy(self, cluster: Cluster) -> None:
        namespace = cluster.namespace("conformance-clean")
        names = {"none": "None", "running": "Running", "every": "All"}
        for name, policy in names.items():
            submit(cluster, elastic_job(name, cleanPodPolicy=policy), namespace)
        cluster.wait_running(namespace, 6, NODE)
        for name in names:
            cluster.phase(namespace, f"{name}-worker-0", "Failed", exit_code=1)

        def left() -> list[str]:
            return sorted(cluster.run_pods(namespace, NODE))

        eventually("finished pods of two jobs", lambda: left() == ["none-worker-0", "running-worker-0"])

    def test_c24_after_the_first_success_no_worker_is_made(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("late", replicas=2, minReplicas=1, maxReplicas=3))
        cluster.wait_running(namespace, 2, NODE)
        cluster.phase(namespace, "late-worker-0", "Succeeded", exit_code=0)
        eventually("it completes", lambda: status_of(cluster, namespace, "late")["phase"] == "Completing")
        scale = f"{JOBS}/namespaces/{namespace}/elasticjobs/late/scale"
        cluster.merge(scale, {"spec": {"replicas": 3}})
        cluster.call("DELETE", f"/api/v1/namespaces/{namespace}/pods/late-worker-1", {"gracePeriodSeconds": 0})
        cluster.wait_condition(namespace, "late", "Succeeded")
        eventually("what was deleted goes", lambda: sorted(cluster.pods(namespace)) == ["late-worker-0"])


@pytest.mark.engines
@pytest.mark.usefixtures("controller")
class TestForeign:
    def test_a_job_of_another_controller_is_not_touched(self, cluster: Cluster) -> None:
        namespace = submit(cluster, elastic_job("theirs", managedBy="kueue.x-k8s.io/multikueue"))
        submit(cluster, elastic_job("ours"), namespace)
        cluster.wait_running(namespace, 2, NODE)
        assert "status" not in cluster.job(namespace, "theirs")
        with pytest.raises(ApiRefusalError):
            cluster.merge(f"{JOBS}/namespaces/{namespace}/elasticjobs/theirs", {"spec": {"managedBy": None}})


@pytest.mark.engines
@pytest.mark.usefixtures("controller")
class TestCapacity:
    def test_a_job_grows_into_room_and_gives_up_what_finds_none(self, cluster: Cluster) -> None:
        label = {"pool": "probed"}
        cluster.node("probed-1", gpus=2, labels=label)
        scaling = {
            "mode": "Capacity",
            "growth": "Probe",
            "stabilizationSeconds": 0,
            "minIntervalSeconds": 0,
            "unschedulableSeconds": 1,
        }
        body = elastic_job("probe", replicas=1, minReplicas=1, maxReplicas=4, scaling=scaling)
        spec = body["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
        spec["nodeSelector"] = label
        spec["tolerations"] = [own_pods("probed-1"), own_pods("probed-2")]
        spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}
        # What the controller does not read; the scheduler will tell.
        elsewhere = {"matchExpressions": [{"key": HOSTNAME, "operator": "NotIn", "values": ["probed-2"]}]}
        required = {"nodeSelectorTerms": [elsewhere]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        namespace = submit(cluster, body)
        assert sorted(cluster.wait_running(namespace, 2, "probed-1")) == ["probe-worker-0", "probe-worker-1"]
        cluster.node("probed-2", gpus=1, labels=label)
        eventually("one more worker, for the new node", lambda: len(cluster.pods(namespace)) == 3)
        eventually("it is given up", lambda: sorted(cluster.pods(namespace)) == ["probe-worker-0", "probe-worker-1"])
        wait_books(cluster, namespace, "probe", restarts=0, disruptions=0)
