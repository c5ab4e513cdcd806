"""What goes into an EKS cluster, held against its pools: what must land lands, what must stay away stays away."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recorded_program import Recorded, Resource

pytest_plugins = ["stacks_fixture"]

EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute", "PREFER_NO_SCHEDULE": "PreferNoSchedule"}
CONTROL = (("StatefulSet", "etcd"), ("Deployment", "elastic-controller"), ("Deployment", "cluster-autoscaler"))


def pod(resource: Resource) -> dict[str, Any]:
    return dict(resource.inputs["spec"]["template"]["spec"])


def taints(stack: Recorded) -> list[dict[str, str]]:
    """All taints of all pools, in Kubernetes' spelling."""
    pools = stack.of("NodeGroup")
    found = [taint | {"effect": EFFECTS[taint["effect"]]} for each in pools for taint in each.inputs["taints"]]
    assert found
    return found


def tolerated(taint: dict[str, str], tolerations: list[dict[str, str]]) -> bool:
    """As Kubernetes matches them."""
    return any(
        each.get("key") in (None, taint["key"])
        and each.get("effect") in (None, taint["effect"])
        and (each.get("operator") == "Exists" or each.get("value") == taint["value"])
        for each in tolerations
    )


@pytest.mark.parametrize("stack", ["dev", "prod"])
def test_every_agent_of_gpu_machines_tolerates_every_taint_of_every_pool(
    stack: str, request: pytest.FixtureRequest
) -> None:
    made: Recorded = request.getfixturevalue(stack)
    agents = made.of("DaemonSet")
    assert {each.name for each in agents} >= {"nvidia-device-plugin", "dcgm-exporter"}
    for agent in agents:
        missing = [taint for taint in taints(made) if not tolerated(taint, pod(agent)["tolerations"])]
        assert not missing, f"{agent.name} does not land on machines with {missing}"


def test_so_does_the_server_of_the_node_monitoring_agent(prod: Recorded) -> None:
    """As it is shipped it tolerates nothing: a broken GPU would never be reported, and never repaired."""
    values = json.loads(prod.one("Addon", "eks-node-monitoring-agent").inputs["configurationValues"])
    for part in ("nodeAgent", "dcgmAgent"):
        assert all(tolerated(taint, values[part]["tolerations"]) for taint in taints(prod)), part


def test_add_ons_are_told_only_what_their_schemas_know(prod: Recorded) -> None:
    """EKS refuses anything else when it creates them; what is not said is a default that tolerates all taints."""
    told = {each.inputs["addonName"]: each.inputs.get("configurationValues", "{}") for each in prod.of("Addon")}
    system = {"nodeSelector": {"trainyard.dev/pool": "system"}}
    del told["eks-node-monitoring-agent"]
    assert {name: json.loads(values) for name, values in told.items() if values != "{}"} == {
        "vpc-cni": {"enableNetworkPolicy": "true"},
        "coredns": system,
        "aws-ebs-csi-driver": {"controller": system, "node": {"tolerateAllTaints": True}},
        "aws-efs-csi-driver": {"controller": system},
    }


@pytest.mark.parametrize(("kind", "name"), CONTROL)
def test_what_must_not_be_reclaimed_keeps_to_the_system_pool(prod: Recorded, kind: str, name: str) -> None:
    spec = pod(prod.one(kind, name))
    assert spec["nodeSelector"] == {"trainyard.dev/pool": "system"}
    assert not [taint for taint in taints(prod) if tolerated(taint, spec.get("tolerations", []))]
    labels = prod.one("NodeGroup", "system-nodes").inputs["labels"]
    assert labels["trainyard.dev/pool"] == "system"
    assert prod.one("NodeGroup", "system-nodes").inputs["capacityType"] == "ON_DEMAND"


def test_the_plugins_run_where_their_devices_are(prod: Recorded, dev: Recorded) -> None:
    labels = prod.one("NodeGroup", "gpu-spot-nodes").inputs["labels"]
    for name in ("nvidia-device-plugin", "efa-device-plugin", "dcgm-exporter"):
        selector = pod(prod.one("DaemonSet", name))["nodeSelector"]
        assert selector.items() <= labels.items(), f"{name} selects {selector}"
    assert not [each for each in dev.of("DaemonSet") if each.name == "efa-device-plugin"], "no pool of dev has EFA"


def test_the_cluster_is_entered_by_whoever_is_logged_in_and_the_kubeconfig_holds_no_secret(prod: Recorded) -> None:
    text = prod.outputs["kubeconfig"]
    config = json.loads(text)
    (user,) = config["users"]
    assert set(user["user"]) == {"exec"}
    assert user["user"]["exec"]["command"] == "aws", "found on the path: nothing of this computer"
    arguments = "eks get-token --region us-east-2 --cluster-name trainyard-prod --output json"
    assert user["user"]["exec"]["args"] == arguments.split()
    assert "token" not in text.replace("get-token", "")
    provider = next(each for each in prod.resources if each.type == "pulumi:providers:kubernetes")
    assert provider.inputs["kubeconfig"] == text


def test_everything_in_the_cluster_comes_after_machines_add_ons_rights_and_file_systems(prod: Recorded) -> None:
    """And goes before them: while pods end, the drivers that unmount their volumes are still there."""
    provider = next(each for each in prod.resources if each.type == "pulumi:providers:kubernetes")
    kinds = ("NodeGroup system-nodes", "Addon vpc-cni", "Addon aws-ebs-csi-driver", "Addon aws-fsx-csi-driver",
             "PodIdentityAssociation autoscaler-cluster-autoscaler", "PodIdentityAssociation training-default",
             "AccessPolicyAssociation access 111122223333:role/platform-admin AmazonEKSClusterAdminPolicy",
             "MountTarget efs-us-east-2a", "SecurityGroupIngressRule lustre-from-nodes-988")  # fmt: skip
    for each in kinds:
        kind, name = each.split(" ", 1)
        assert prod.one(kind, name).urn in provider.after, each
    assert prod.one("NodeGroup", "gpu-block-nodes").urn not in provider.after, "GPU machines may be out of stock"


def test_disks_and_folders_of_pods_are_encrypted_with_the_stack_s_key(prod: Recorded) -> None:
    classes = {each.name: each.inputs for each in prod.of("StorageClass")}
    assert classes["trainyard-block"]["parameters"]["kmsKeyId"].endswith(":key")
    assert classes["trainyard-block"]["parameters"]["encrypted"] == "true"
    assert classes["trainyard-shared"]["parameters"]["fileSystemId"] == "efs-id"


def test_checkpoints_of_prod_are_on_the_stack_s_lustre(prod: Recorded) -> None:
    volume = prod.one("PersistentVolume", "trainyard-lustre").inputs["spec"]
    assert volume["csi"]["volumeHandle"] == "lustre-id"
    assert volume["csi"]["volumeAttributes"]["mountname"] == "abcdefgh"
    assert volume["persistentVolumeReclaimPolicy"] == "Retain"
    claim = prod.one("PersistentVolumeClaim", "checkpoints").inputs["spec"]
    assert claim["volumeName"] == "trainyard-lustre"


def test_the_stack_tells_what_people_need_to_go_on(prod: Recorded) -> None:
    assert set(prod.outputs) == {
        "clusterName", "region", "kubeconfig", "namespace", "rdzvEndpoint", "checkpointClaim", "bucket", "registries",
        "pools",
    }  # fmt: skip
    assert prod.outputs["pools"]["gpu-block"]["limits"]["vpc.amazonaws.com/efa"] == "32"
    assert set(prod.outputs["registries"]) == {"training", "controller", "nccl-tests"}
