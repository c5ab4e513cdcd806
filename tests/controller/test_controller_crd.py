"""The ElasticJob API on a real kube-apiserver: what it accepts, and what it says about the rest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_api_server import JOBS, UPSTREAM_SAMPLE, ApiRefusalError, Cluster, elastic_job

from training.controller.crd import custom_resource_definition
from training.controller.reference import PAGE, PYTORCH_PAGE, page, pytorchjob_page

pytest_plugins = ["api_server_fixture"]

EXAMPLES = Path(__file__).parents[2] / "training/examples"


def test_the_definition_is_small_enough_for_client_side_apply() -> None:
    assert len(json.dumps(custom_resource_definition())) < 60_000


def test_the_reference_page_is_what_the_models_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m training.controller.reference"
    assert PYTORCH_PAGE.read_text(encoding="utf-8") == pytorchjob_page(), "run: python -m training.controller.reference"


def test_every_field_is_described() -> None:
    schema = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    def undescribed(path: str, node: dict[str, Any]) -> list[str]:
        found = [] if "description" in node else [path]
        for name, child in node.get("properties", {}).items():
            found += undescribed(f"{path}.{name}", child)
        return found

    assert undescribed("spec", schema["properties"]["spec"]) == []
    assert undescribed("status", schema["properties"]["status"]) == []


@pytest.mark.engines
class TestOnTheApiServer:
    """Creates are dry runs: nothing is left behind."""

    @staticmethod
    def refusal(cluster: Cluster, body: dict[str, Any]) -> str:
        with pytest.raises(ApiRefusalError) as caught:
            create(cluster, body)
        assert caught.value.code == 422
        return caught.value.message

    def test_the_upstream_sample_applies_unmodified_and_strictly(self, cluster: Cluster) -> None:
        made = create(cluster, yaml.safe_load(UPSTREAM_SAMPLE))
        assert made["spec"]["replicaSpecs"]["Worker"]["template"]["kind"] == "Pod"
        assert made["spec"]["maxReplicas"] == 3

    @pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
    def test_the_projects_examples_apply(self, cluster: Cluster, example: Path) -> None:
        for body in yaml.safe_load_all(example.read_text(encoding="utf-8")):
            if body.get("kind") == "ElasticJob":
                create(cluster, body | {"metadata": {"name": body["metadata"]["name"]}})

    def test_flat_run_policy_fields_and_the_old_spelling_are_kept(self, cluster: Cluster) -> None:
        body = elastic_job(
            "flat",
            cleanPodPolicy="None",
            ttlSecondsAfterFinished=600,
            activeDeadlineSeconds=3600,
            backoffLimit=3,
            schedulingPolicy={"minAvailable": 1},
            RunPolicy={"cleanPodPolicy": "All"},
        )
        spec = create(cluster, body)["spec"]
        assert spec["ttlSecondsAfterFinished"] == 600
        assert spec["RunPolicy"] == {"cleanPodPolicy": "All"}

    def test_replicas_default_to_one_and_restart_policy_to_never(self, cluster: Cluster) -> None:
        body = elastic_job("defaults")
        worker = body["spec"]["replicaSpecs"]["Worker"]
        del worker["replicas"], worker["restartPolicy"]
        made = create(cluster, body)["spec"]["replicaSpecs"]["Worker"]
        assert (made["replicas"], made["restartPolicy"]) == (1, "Never")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"minReplicas": 3}, "minReplicas must not exceed replicaSpecs.Worker.replicas: ask for more"),
            ({"maxReplicas": 1}, "replicaSpecs.Worker.replicas must not exceed maxReplicas: ask for fewer"),
            ({"minReplicas": 2, "maxReplicas": 1}, "minReplicas must not exceed maxReplicas"),
            ({"minReplicas": 0}, "should be greater than or equal to 1"),
            ({"restart_policy": "Sometimes"}, 'supported values: "Always", "OnFailure", "Never", "ExitCode"'),
            ({"cleanPodPolicy": "Most"}, 'supported values: "All", "Running", "None"'),
            ({"rdzvEndpoint": ""}, "spec.rdzvEndpoint"),
            ({"rdzvConf": {"a": "b,c"}}, "launchers split --rdzv_conf there"),
            ({"scaling": {"mode": "Capacity"}, "minReplicas": 1}, "needs minReplicas and maxReplicas"),
            ({"successPolicy": "Most"}, 'supported values: "AnyWorker", "AllWorkers"'),
            ({"failurePolicy": {"rules": [{"action": "FailJob"}]}}, "needs onExitCodes, onReasons or both"),
            (
                {"failurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]}},
                "should be greater than or equal to 1",
            ),
        ],
    )
    def test_impossible_values_are_refused_with_a_sentence(
        self, cluster: Cluster, change: dict[str, Any], message: str
    ) -> None:
        assert message in self.refusal(cluster, elastic_job("wrong", **change))

    def test_a_master_is_refused(self, cluster: Cluster) -> None:
        body = elastic_job("master")
        body["spec"]["replicaSpecs"]["Master"] = body["spec"]["replicaSpecs"]["Worker"]
        assert "the only replica type of an ElasticJob is Worker" in self.refusal(cluster, body)

    def test_a_job_without_workers_is_refused(self, cluster: Cluster) -> None:
        body = elastic_job("nobody")
        body["spec"]["replicaSpecs"] = {}
        assert "replicaSpecs needs the key Worker" in self.refusal(cluster, body)

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("x" * 52, "metadata.name must have at most 51 characters"),
            ("1st", "start with a letter"),
            ("my.job", "lower-case letters, digits and '-'"),
        ],
    )
    def test_names_that_cannot_become_host_names_are_refused(self, cluster: Cluster, name: str, message: str) -> None:
        assert message in self.refusal(cluster, elastic_job(name))

    def test_bounds_change_only_while_suspended(self, cluster: Cluster) -> None:
        namespace = cluster.namespace("crd-bounds")
        path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
        cluster.create(path, elastic_job("bounds", minReplicas=1, maxReplicas=4))
        with pytest.raises(ApiRefusalError) as caught:
            cluster.merge(f"{path}/bounds", {"spec": {"maxReplicas": 8}})
        assert "can change only while the job is suspended" in caught.value.message
        cluster.merge(f"{path}/bounds", {"spec": {"suspend": True, "maxReplicas": 8}})
        assert cluster.merge(f"{path}/bounds", {"spec": {"suspend": False}})["spec"]["maxReplicas"] == 8

    def test_managed_by_cannot_change(self, cluster: Cluster) -> None:
        namespace = cluster.namespace("crd-managed")
        path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
        cluster.create(path, elastic_job("ours"))
        cluster.create(path, elastic_job("theirs", managedBy="example.com/other"))
        for name, who in (("ours", "example.com/other"), ("theirs", None)):
            with pytest.raises(ApiRefusalError) as caught:
                cluster.merge(f"{path}/{name}", {"spec": {"managedBy": who}})
            assert "managedBy cannot change" in caught.value.message

    def test_rules_for_failures_and_settings_of_the_rendezvous_are_kept(self, cluster: Cluster) -> None:
        wanted: dict[str, Any] = {
            "rdzvConf": {"last_call_timeout": "5"},
            "maxRestarts": 3,
            "minReplicas": 1,
            "maxReplicas": 4,
            "scaling": {
                "mode": "Capacity",
                "growth": "Probe",
                "stabilizationSeconds": 90,
                "minIntervalSeconds": 600,
                "unschedulableSeconds": 30,
                "spareReplicas": 1,
                "belowMinSeconds": 540,
            },
            "successPolicy": "AllWorkers",
            "failurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
                    {"action": "RestartGroup", "onReasons": ["OOMKilled"]},
                ]
            },
        }
        spec = create(cluster, elastic_job("rich", **wanted))["spec"]
        assert {key: spec[key] for key in wanted} == wanted

    def test_scale_reads_and_writes_the_number_of_workers(self, cluster: Cluster) -> None:
        namespace = cluster.namespace("crd-scale")
        path = f"{JOBS}/namespaces/{namespace}/elasticjobs"
        cluster.create(path, elastic_job("scaled", minReplicas=1, maxReplicas=4))
        cluster.merge(
            f"{path}/scaled/status", {"status": {"replicas": 2, "selector": "group-name=elastic.pytorch.org"}}
        )
        scale = cluster.call("GET", f"{path}/scaled/scale")
        assert scale["spec"]["replicas"] == 2
        assert scale["status"] == {"replicas": 2, "selector": "group-name=elastic.pytorch.org"}
        cluster.merge(f"{path}/scaled/scale", {"spec": {"replicas": 4}})
        assert cluster.job(namespace, "scaled")["spec"]["replicaSpecs"]["Worker"]["replicas"] == 4
        with pytest.raises(ApiRefusalError, match="must not exceed maxReplicas"):
            cluster.merge(f"{path}/scaled/scale", {"spec": {"replicas": 5}})

    def test_get_shows_the_columns_that_people_look_for(self, cluster: Cluster) -> None:
        answer = cluster.admin.get(
            f"{JOBS}/elasticjobs", headers={"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
        )
        shown = [c["name"] for c in answer.json()["columnDefinitions"] if c["priority"] == 0]
        assert shown == ["Name", "Phase", "Ready", "Desired", "Min", "Max", "Restarts", "Disruptions", "Age"]


def create(cluster: Cluster, body: dict[str, Any]) -> dict[str, Any]:
    """A create as kubectl sends it: unknown fields are errors."""
    path = f"{JOBS}/namespaces/default/elasticjobs?dryRun=All&fieldValidation=Strict"
    return cluster.create(path, body)
