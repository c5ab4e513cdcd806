"""The objects that the controller makes, and the records that it keeps of those that it reads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from training.controller.api import ElasticJob, Reason, RendezvousBackend
from training.controller.capacity import NoRoom, no_room, parse_quantity, worker_requests
from training.controller.main import notices_of, parse_args
from training.controller.pods import headless_service, rendezvous_id, store_pod, worker_pod
from training.controller.records import NodeRecord, PodRecord, merged_pod, node_record, parse_time, pod_record

UID = "0123456789abcdef"


def job(template: dict[str, Any], restart_policy: str = "ExitCode") -> ElasticJob:
    worker = {"replicas": 2, "restartPolicy": restart_policy, "template": template}
    return ElasticJob.model_validate(
        {
            "metadata": {"name": "digits", "namespace": "training", "uid": UID},
            "spec": {"rdzvEndpoint": "etcd:2379", "replicaSpecs": {"Worker": worker}},
        }
    )


class TestWorkerPod:
    TEMPLATE: dict[str, Any] = {  # noqa: RUF012 -- never changed, which the test below asserts
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"team": "vision", "job-name": "mine"}, "annotations": {"a": "b"}},
        "spec": {
            "restartPolicy": "Always",
            "containers": [
                {"name": "sidecar", "image": "logs"},
                {
                    "name": "elasticjob-worker",
                    "image": "i",
                    "args": ["--rdzv_backend=c10d", "train.py"],
                    "env": [{"name": "PET_MAX_RESTARTS", "value": "3"}],
                },
            ],
        },
    }

    def test_the_main_container_gets_the_launchers_arguments_first(self) -> None:
        sidecar, main = worker_pod(job(self.TEMPLATE), 1, 3, "1:4")["spec"]["containers"]
        assert "args" not in sidecar
        assert main["args"] == [
            "--rdzv_backend=etcd",
            "--rdzv_endpoint=etcd:2379",
            "--rdzv_id=digits-01234567-3",
            "--nnodes=1:4",
            "--rdzv_backend=c10d",  # the user's own comes last, so it wins
            "train.py",
        ]

    def test_the_environment_twins_are_set_unless_the_user_has_set_them(self) -> None:
        main = worker_pod(job(self.TEMPLATE), 1, 3, "1:4")["spec"]["containers"][1]
        env = {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in main["env"]}
        assert env == {
            "PET_MAX_RESTARTS": "3",
            "PET_RDZV_BACKEND": "etcd",
            "PET_RDZV_ENDPOINT": "etcd:2379",
            "PET_RDZV_ID": "digits-01234567-3",
            "PET_NNODES": "1:4",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "25",
            "PET_LOCAL_ADDR": {"fieldRef": {"fieldPath": "status.podIP"}},
            "TRAINYARD_METRICS_PORT": "9471",
            "TRAINYARD_WORKER_METRICS_PORT": "9481",
        }

    def test_prometheus_finds_launcher_and_first_worker_by_the_names_of_their_ports(self) -> None:
        main = worker_pod(job(self.TEMPLATE), 1, 3, "1:4")["spec"]["containers"][1]
        assert {port["name"]: port["containerPort"] for port in main["ports"]} == {
            "metrics": 9471,
            "worker-metrics": 9481,
        }

    @pytest.mark.parametrize(
        ("spec", "container"),
        [
            ({"hostNetwork": True}, {}),
            ({}, {"ports": [{"name": "metrics", "containerPort": 9999}, {"name": "w", "containerPort": 9481}]}),
            (
                {},
                {
                    "env": [
                        {"name": "TRAINYARD_METRICS_PORT", "value": "1"},
                        {"name": "TRAINYARD_WORKER_METRICS_PORT", "value": "2"},
                    ]
                },
            ),
        ],
        ids=["the node's own network", "ports are taken", "the user says which"],
    )
    def test_what_is_taken_or_set_stays_as_it_is(self, spec: dict[str, Any], container: dict[str, Any]) -> None:
        template = {"spec": {**spec, "containers": [{"name": "c", "image": "i", **container}]}}
        (main,) = worker_pod(job(template), 0, 1, "1:2")["spec"]["containers"]
        assert main.get("ports", []) == container.get("ports", [])
        own = [each for each in main["env"] if each["name"].endswith("METRICS_PORT")]
        assert own == container.get("env", [])

    def test_restarts_and_settings_of_the_rendezvous_are_the_jobs(self) -> None:
        wanted = job({"spec": {"containers": [{"name": "c", "image": "i"}]}})
        wanted.spec.max_restarts = 0
        wanted.spec.rdzv_conf = {"last_call_timeout": "5", "join_timeout": "900"}
        env = {v["name"]: v.get("value") for v in worker_pod(wanted, 0, 1, "2:2")["spec"]["containers"][0]["env"]}
        assert env["PET_MAX_RESTARTS"] == "0"
        assert env["PET_RDZV_CONF"] == "last_call_timeout=5,join_timeout=900"

    def test_names_and_labels_are_the_contracts_and_the_users_are_kept(self) -> None:
        metadata = worker_pod(job(self.TEMPLATE), 1, 3, "1:4")["metadata"]
        assert metadata["name"] == "digits-worker-1"
        assert metadata["annotations"] == {"a": "b"}
        assert metadata["labels"] == {
            "team": "vision",
            "group-name": "elastic.pytorch.org",
            "job-name": "digits",
            "replica-type": "worker",
            "replica-index": "1",
            "elastic.pytorch.org/job-name": "digits",
            "elastic.pytorch.org/generation": "3",
            "app.kubernetes.io/managed-by": "trainyard",
        }

    @pytest.mark.parametrize(
        ("policy", "of_the_pod"),
        [("Always", "OnFailure"), ("OnFailure", "OnFailure"), ("Never", "Never"), ("ExitCode", "Never")],
    )
    def test_the_jobs_restart_policy_decides_the_pods(self, policy: str, of_the_pod: str) -> None:
        assert worker_pod(job(self.TEMPLATE, policy), 0, 1, "2:2")["spec"]["restartPolicy"] == of_the_pod

    def test_the_first_container_is_the_main_one_where_none_has_the_name(self) -> None:
        template = {"spec": {"containers": [{"name": "train", "image": "i"}, {"name": "other", "image": "i"}]}}
        first, second = worker_pod(job(template), 0, 1, "2:2")["spec"]["containers"]
        assert "--nnodes=2:2" in first["args"]
        assert "args" not in second

    def test_the_template_is_left_as_it_was(self) -> None:
        before = repr(self.TEMPLATE)
        worker_pod(job(self.TEMPLATE), 0, 1, "2:2")
        assert repr(self.TEMPLATE) == before

    def test_the_service_names_workers_before_they_are_ready(self) -> None:
        service = headless_service(job(self.TEMPLATE), "digits-workers")
        assert service["metadata"]["name"] == worker_pod(job(self.TEMPLATE), 0, 1, "2:2")["spec"]["subdomain"]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True

    def test_the_name_that_upstreams_endpoints_used_leads_to_the_first_worker(self) -> None:
        wanted = job(self.TEMPLATE)
        assert wanted.service_names == ("digits-workers", "digits-worker-0")
        selector = headless_service(wanted, "digits-worker-0")["spec"]["selector"]
        labels = worker_pod(wanted, 0, 1, "2:2")["metadata"]["labels"]
        assert selector.items() <= labels.items()
        assert not selector.items() <= worker_pod(wanted, 1, 1, "2:2")["metadata"]["labels"].items()
        wanted.spec.worker_services, wanted.spec.max_replicas = True, 3
        assert wanted.service_names == ("digits-workers", *(f"digits-worker-{i}" for i in range(3)))

    def test_the_arguments_can_be_left_out_and_the_variables_stay(self) -> None:
        wanted = job(self.TEMPLATE)
        wanted.spec.inject_arguments = False
        main = worker_pod(wanted, 0, 1, "2:2")["spec"]["containers"][1]
        assert main["args"] == ["--rdzv_backend=c10d", "train.py"]
        assert {"name": "PET_NNODES", "value": "2:2"} in main["env"]

    @pytest.mark.parametrize(("grace", "told"), [(None, "25"), (10, "5"), (3, "1"), (120, None)])
    def test_the_launcher_does_not_wait_for_its_processes_until_it_is_killed_with_them(
        self, grace: int | None, told: str | None
    ) -> None:
        spec = {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": grace}
        main = worker_pod(job({"spec": spec}), 0, 1, "2:2")["spec"]["containers"][0]
        env = {variable["name"]: variable.get("value") for variable in main["env"]}
        assert env.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT") == told

    def test_the_store_of_a_job_is_kept_off_spot_machines_and_found_by_its_name(self) -> None:
        wanted = job(self.TEMPLATE)
        wanted.spec.rdzv_endpoint = None
        made = store_pod(wanted, 3)
        assert made["metadata"]["name"] == wanted.store_name == wanted.service_names[-1] == "digits-store"
        selector = headless_service(wanted, "digits-store")["spec"]["selector"]
        assert selector.items() <= made["metadata"]["labels"].items()
        assert not wanted.selector().items() <= made["metadata"]["labels"].items()  # it is no worker
        (container,) = made["spec"]["containers"]
        assert container["image"] == "i"
        terms = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = terms["nodeSelectorTerms"]
        assert {"key": "eks.amazonaws.com/capacityType", "operator": "NotIn", "values": ["SPOT"]} in (
            term["matchExpressions"]
        )
        assert pod_record(made | {"metadata": made["metadata"] | {"uid": "u"}}).store
        main = worker_pod(wanted, 0, 3, "1:4")["spec"]["containers"][1]
        assert main["args"][:2] == ["--rdzv_backend=c10d", "--rdzv_endpoint=digits-store:29400"]
        assert {"name": "PET_RDZV_CONF", "value": "join_timeout=900,last_call_timeout=5,is_host=false"} in main["env"]

    def test_the_first_worker_hosts_where_the_endpoint_names_it(self) -> None:
        wanted = job(self.TEMPLATE)
        wanted.spec.rdzv_backend = RendezvousBackend.C10D
        wanted.spec.rdzv_endpoint = "digits-worker-0:29400"
        for index, says in ((0, "is_host=true"), (1, "is_host=false")):
            spec = worker_pod(wanted, index, 1, "1:4")["spec"]
            env = {variable["name"]: variable.get("value") for variable in spec["containers"][1]["env"]}
            assert says in str(env["PET_RDZV_CONF"])
            assert ("affinity" in spec) == (index == 0)
        wanted.spec.rdzv_conf = {"is_host": "true"}  # the user's word wins
        assert "is_host=true" in str(worker_pod(wanted, 1, 1, "1:4")["spec"]["containers"][1]["env"])

    def test_a_rendezvous_is_shared_by_one_generation_of_one_job_only(self) -> None:
        assert rendezvous_id(job({}), 2) == "digits-01234567-2"


class TestPodRecord:
    def test_what_plans_need_is_kept(self) -> None:
        record = pod_record(
            {
                "metadata": {
                    "name": "j-worker-3",
                    "namespace": "n",
                    "uid": "u",
                    "resourceVersion": "42",
                    "labels": {"job-name": "j", "replica-index": "3", "elastic.pytorch.org/generation": "2"},
                    "ownerReferences": [{"uid": "x"}, {"uid": UID, "controller": True}],
                    "creationTimestamp": "2026-11-30T12:00:00Z",
                    "deletionTimestamp": "2026-11-30T12:01:00Z",
                    "deletionGracePeriodSeconds": 30,
                },
                "spec": {"nodeName": "node-a", "containers": [{"name": "side"}, {"name": "elasticjob-worker"}]},
                "status": {
                    "phase": "Failed",
                    "conditions": [
                        {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"},
                        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-30T12:00:10Z"},
                    ],
                    "containerStatuses": [
                        {"name": "side", "restartCount": 9, "state": {"terminated": {"exitCode": 5}}},
                        {
                            "name": "elasticjob-worker",
                            "restartCount": 1,
                            "state": {
                                "terminated": {
                                    "exitCode": 143,
                                    "reason": "Error",
                                    "finishedAt": "2026-11-30T12:00:40Z",
                                }
                            },
                        },
                    ],
                },
            }
        )
        assert (record.job_key, record.index, record.generation, record.owner_uid) == ("n/j", 3, 2, UID)
        assert (record.exit_code, record.restarts, record.node) == (143, 1, "node-a")
        assert record.disruption == "EvictionByEvictionAPI"
        assert record.scheduled == datetime(2026, 11, 30, 12, 0, 10, tzinfo=UTC)
        assert record.deletion_requested == datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)
        assert record.finished_at == datetime(2026, 11, 30, 12, 0, 40, tzinfo=UTC)
        assert record.resource_version == 42

    def test_a_deletion_keeps_its_first_time_when_the_kubelet_shortens_the_grace(self) -> None:
        told = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
        first = PodRecord("p", "u", deletion_requested=told)
        last = PodRecord("p", "u", phase="Failed", deletion_requested=told + timedelta(seconds=9))
        assert merged_pod(first, last).deletion_requested == told
        assert merged_pod(PodRecord("p", "another"), last) == last

    def test_a_pod_that_had_ended_before_its_deletion_has_ended_by_itself(self) -> None:
        ended = PodRecord("p", "u", phase="Succeeded")
        deleted = PodRecord("p", "u", phase="Succeeded", deletion_requested=datetime(2026, 11, 30, tzinfo=UTC))
        assert merged_pod(ended, deleted).deletion_requested is None

    @pytest.mark.parametrize("reason", ["Evicted", "Terminated", "Shutdown", "NodeLost", "Preempting"])
    def test_pods_ended_from_outside_without_the_condition_are_recognised(self, reason: str) -> None:
        pod = {
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "status": {"phase": "Failed", "reason": reason},
        }
        assert pod_record(pod).disruption == reason

    def test_memory_pressure_is_told_apart(self) -> None:
        status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
        assert pod_record({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "status": status}).memory_eviction

    @pytest.mark.parametrize(
        ("waiting", "told"),
        [
            ({"reason": "ContainerCreating"}, None),
            ({"reason": "ErrImagePull", "message": "no such image"}, "ErrImagePull: no such image"),
        ],
    )
    def test_only_trouble_is_remembered_of_a_container_that_waits(
        self, waiting: dict[str, str], told: str | None
    ) -> None:
        status = {"containerStatuses": [{"name": "c", "state": {"waiting": waiting}}]}
        pod = {
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [{"name": "c"}]},
            "status": status,
        }
        assert pod_record(pod).waiting == told


class TestNodeRecord:
    def test_a_notice_is_a_taint_and_a_time(self) -> None:
        record = node_record(
            {
                "metadata": {"name": "spot-1", "annotations": {"trainyard.dev/reclaim-at": "2026-11-30T12:02:00Z"}},
                "spec": {"taints": [{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "8"}},
            }
        )
        assert record.ready
        assert record.notice == "aws-node-termination-handler/spot-itn"
        assert record.reclaim_at == datetime(2026, 11, 30, 12, 2, tzinfo=UTC)
        assert record.allocatable == {"nvidia.com/gpu": Decimal(8)}

    @pytest.mark.parametrize(
        ("node", "notice"),
        [
            (
                {"spec": {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]}},
                "karpenter.sh/disrupted",
            ),
            ({"spec": {"taints": [{"key": "example.com/ends", "effect": "NoExecute"}]}}, "example.com/ends"),
            ({"status": {"conditions": [{"type": "PreemptScheduled", "status": "True"}]}}, "PreemptScheduled"),
            ({"status": {"conditions": [{"type": "PreemptScheduled", "status": "False"}]}}, None),
            ({"annotations": {"trainyard.dev/reclaim-at": "soon"}}, "trainyard.dev/reclaim-at"),
            ({"annotations": {"example.com/leaves": ""}}, "example.com/leaves"),
            ({"annotations": {"example.com/stays": ""}}, None),
        ],
    )
    def test_what_is_a_notice_can_be_added_to(self, node: dict[str, Any], notice: str | None) -> None:
        options = ("--notice-taint=example.com/ends", "--notice-condition=PreemptScheduled")
        notices = notices_of(parse_args([*options, "--notice-annotation=example.com/leaves"]))
        metadata = {"name": "n", "annotations": node.get("annotations", {})}
        assert node_record({"metadata": metadata, **node}, notices).notice == notice

    def test_pool_taints_are_no_notices(self) -> None:
        spec = {"taints": [{"key": "trainyard.dev/spot", "effect": "NoSchedule"}]}
        assert node_record({"metadata": {"name": "n"}, "spec": spec}).notice is None

    @pytest.mark.parametrize(
        ("text", "moment"),
        [
            ("2026-11-30T12:00:00Z", datetime(2026, 11, 30, 12, tzinfo=UTC)),
            ("2026-11-30T13:00:00.5+01:00", datetime(2026, 11, 30, 12, 0, 0, 500000, tzinfo=UTC)),
            ("soon", None),
            ("", None),
            (None, None),
        ],
    )
    def test_times_that_are_none_are_ignored(self, text: str | None, moment: datetime | None) -> None:
        parsed = parse_time(text)
        assert parsed == moment
        assert parsed is None or parsed.utcoffset() is not None or parsed.utcoffset() == timedelta(0)


class TestCapacity:
    NODES = (
        NodeRecord("cpu-1", allocatable={"cpu": Decimal(64), "memory": parse_quantity("256Gi")}),
        NodeRecord("gpu-spot-1", labels={"pool": "gpu"}, allocatable={"cpu": Decimal(8), "nvidia.com/gpu": Decimal(1)}),
    )

    @staticmethod
    def template(requests: dict[str, Any], **spec: Any) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "c", "resources": {"limits": requests}}], **spec}}

    @pytest.mark.parametrize(
        ("quantity", "number"),
        [
            ("500m", "0.5"),
            ("1.5Gi", "1610612736"),
            ("24683652Ki", "25276059648"),
            ("2k", "2000"),
            (4, "4"),
            ("1e3", "1000"),
            ("1E", "1e18"),
            ("x", "0"),
        ],
    )
    def test_quantities(self, quantity: str | float, number: str) -> None:
        assert parse_quantity(quantity) == Decimal(number)

    def test_too_many_gpus_are_told_with_the_largest_node(self) -> None:
        assert no_room(self.template({"nvidia.com/gpu": 8}), self.NODES) == NoRoom(
            Reason.REQUEST_TOO_LARGE,
            "each worker asks for 8 nvidia.com/gpu; the largest node has 1: gpu-spot-1: lower the request or add a "
            "pool",
        )

    def test_a_resource_that_no_node_has_now_may_come(self) -> None:
        assert no_room(self.template({"amd.com/gpu": 1}), self.NODES) == NoRoom(
            Reason.NO_NODE_YET,
            "each worker asks for 1 amd.com/gpu, which no node has now: workers wait until one joins (add a pool if "
            "none can)",
        )

    def test_what_is_too_large_is_told_before_what_may_come(self) -> None:
        told = no_room(self.template({"amd.com/gpu": 1, "cpu": 128}), self.NODES)
        assert told is not None
        assert told.reason == Reason.REQUEST_TOO_LARGE

    def test_memory_is_shown_in_mebibytes(self) -> None:
        told = no_room(self.template({"memory": "1Ti"}), self.NODES)
        assert told is not None
        assert "asks for 1Ti memory; the largest node has 262144Mi: cpu-1" in told.message

    def test_only_nodes_that_the_selector_admits_count(self) -> None:
        asked = self.template({"cpu": "16"}, nodeSelector={"pool": "gpu"})
        told = no_room(asked, self.NODES)
        assert told is not None
        assert "the largest node has 8: gpu-spot-1" in told.message
        nowhere = no_room(self.template({}, nodeSelector={"pool": "tpu"}), self.NODES)
        assert nowhere is not None
        assert nowhere.reason == Reason.NO_NODE_YET
        assert "(pool=tpu)" in nowhere.message

    def test_what_fits_is_no_trouble_and_an_empty_cluster_is(self) -> None:
        assert no_room(self.template({"nvidia.com/gpu": "1", "cpu": "8"}), self.NODES) is None
        assert no_room(self.template({}), []) == NoRoom(
            Reason.NO_NODE_YET, "the cluster has no nodes yet: workers wait until one joins"
        )

    def test_containers_are_summed(self) -> None:
        containers = [{"resources": {"requests": {"cpu": "500m"}}}, {"resources": {"limits": {"cpu": 2}}}]
        assert worker_requests({"spec": {"containers": containers}}) == {"cpu": "2.5"}
