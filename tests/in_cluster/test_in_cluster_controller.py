"""What the stack makes for the controller: its definitions, rights, place at the API server, and options."""

from __future__ import annotations

from typing import Any

import pulumi
from component_recorder import Recorded, record

from infra.in_cluster.elastic_controller import ElasticController
from infra.in_cluster.pods import OwnPods
from training.controller.api import GangScheduler
from training.controller.rbac import cluster_rules, lease_rules

SYSTEM = OwnPods("trainyard-system", "training", "ClusterFirst", {"trainyard.dev/pool": "system"})


def controller(**features: Any) -> Recorded:
    def make(opts: pulumi.ResourceOptions) -> None:
        ElasticController(
            "controller", pods=SYSTEM, image="registry.example/controller:1", replicas=2, opts=opts, **features
        )

    return record(make)


def definitions(made: Recorded) -> set[str]:
    return {each["metadata"]["name"] for each in made.all("CustomResourceDefinition")}


def options(made: Recorded) -> list[str]:
    found: list[str] = made.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def test_what_was_not_asked_for_is_neither_brought_nor_allowed() -> None:
    made = controller()
    assert definitions(made) == {"elasticjobs.elastic.pytorch.org"}
    assert made.one("ClusterRole")["rules"] == cluster_rules()
    assert made.one("Role")["rules"] == lease_rules()
    assert "--pytorch-jobs" not in options(made)


def test_pytorch_jobs_come_with_their_definition_rights_and_option() -> None:
    made = controller(pytorch_jobs=True)
    assert definitions(made) == {"elasticjobs.elastic.pytorch.org", "pytorchjobs.kubeflow.org"}
    assert made.one("ClusterRole")["rules"] == cluster_rules(pytorch_jobs=True)
    assert made.one("Role")["rules"] == lease_rules(pytorch_jobs=True)
    assert "--pytorch-jobs" in options(made)


def test_each_scheduler_of_gangs_is_a_right_of_its_own() -> None:
    made = controller(gang_schedulers=("volcano",))
    assert made.one("ClusterRole")["rules"] == cluster_rules([GangScheduler.VOLCANO])
    (rule,) = [rule for rule in made.one("ClusterRole")["rules"] if "podgroups" in rule["resources"]]
    assert rule["apiGroups"] == ["scheduling.volcano.sh"]


def test_the_controller_has_seats_of_its_own_at_the_api_server() -> None:
    made = controller()
    (level,) = made.all("PriorityLevelConfiguration")
    leads_to = {each["spec"]["priorityLevelConfiguration"]["name"] for each in made.all("FlowSchema")}
    assert leads_to == {level["metadata"]["name"], "leader-election"}
    account = made.one("ServiceAccount")["metadata"]
    for schema in made.all("FlowSchema"):
        (rule,) = schema["spec"]["rules"]
        expected = {"name": account["name"], "namespace": account["namespace"]}
        assert rule["subjects"] == [{"kind": "ServiceAccount", "serviceAccount": expected}]
