"""Who may do what in AWS: no wildcard that could be narrower, and nothing on the machines' own role."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from given_vpc import IN_A_GIVEN_VPC
from recorded_program import Recorded, Resource, run

pytest_plugins = ["stacks_fixture"]

# AWS does not limit these to resources (Service Authorization Reference); all of them only look.
UNLIMITED = {
    "autoscaling:DescribeAutoScalingGroups", "autoscaling:DescribeAutoScalingInstances",
    "autoscaling:DescribeLaunchConfigurations", "autoscaling:DescribeScalingActivities", "autoscaling:DescribeTags",
    "ec2:DescribeImages", "ec2:DescribeInstanceTypes", "ec2:DescribeLaunchTemplateVersions",
    "ec2:GetInstanceTypesFromInstanceRequirements",
}  # fmt: skip
IAM_LONGEST = 64


def allowed(stack: Recorded) -> Iterator[tuple[Resource, dict[str, Any]]]:
    """What the policies of roles allow."""
    for policy in stack.of("RolePolicy"):
        yield from ((policy, each) for each in policy.statements() if each["Effect"] == "Allow")


def test_no_policy_allows_a_wildcard_of_actions(prod: Recorded) -> None:
    (key,) = prod.of("Key")
    documents = [*allowed(prod), *((key, each) for each in key.statements())]
    assert len(documents) >= 10
    for policy, each in documents:
        assert not [action for action in each["Action"] if "*" in action], f"{policy.name} allows a wildcard"


def test_all_resources_are_meant_only_where_aws_knows_nothing_narrower(prod: Recorded) -> None:
    for policy, each in allowed(prod):
        if "*" in each["Resource"]:
            assert set(each["Action"]) <= UNLIMITED, f"{policy.name} could be narrower"


def test_the_machines_may_join_and_pull_images_and_nothing_else(prod: Recorded) -> None:
    attached = {
        each.inputs["policyArn"].rsplit("/", 1)[-1]
        for each in prod.of("RolePolicyAttachment")
        if each.inputs["role"] == "trainyard-prod-node"
    }
    assert attached == {"AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"}
    assert not [each for each in prod.of("RolePolicy") if each.inputs["role"] == "trainyard-prod-node"]


def test_pods_get_their_rights_by_pod_identity(prod: Recorded) -> None:
    for name in ("autoscaler", "training", "vpc-cni", "aws-ebs-csi-driver", "aws-efs-csi-driver"):
        (trust,) = prod.one("Role", name).statements("assumeRolePolicy")
        assert trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
        assert set(trust["Action"]) == {"sts:AssumeRole", "sts:TagSession"}
    given = {
        each.inputs["addonName"]: [pair["serviceAccount"] for pair in each.inputs["podIdentityAssociations"]]
        for each in prod.of("Addon")
        if each.inputs.get("podIdentityAssociations")
    }
    assert given == {
        "vpc-cni": ["aws-node"],
        "aws-ebs-csi-driver": ["ebs-csi-controller-sa"],
        "aws-efs-csi-driver": ["efs-csi-controller-sa"],
    }


def test_the_autoscaler_scales_only_the_groups_of_its_own_cluster(prod: Recorded) -> None:
    look, look_at_groups, scale = prod.one("RolePolicy", "autoscaler-scale").statements()
    assert look["Resource"] == ["*"]
    assert look_at_groups["Action"] == ["eks:DescribeNodegroup"], "without it pools of no machine are never scaled up"
    assert look_at_groups["Resource"] == ["arn:aws:eks:us-east-2:123456789012:nodegroup/trainyard-prod/*"]
    assert scale["Condition"]["StringEquals"] == {
        "aws:ResourceTag/k8s.io/cluster-autoscaler/enabled": "true",
        "aws:ResourceTag/k8s.io/cluster-autoscaler/trainyard-prod": "owned",
    }


def test_the_autoscaler_s_pods_are_those_that_have_its_role(prod: Recorded) -> None:
    association = prod.one("PodIdentityAssociation", "autoscaler-cluster-autoscaler").inputs
    pods = prod.one("Deployment", "cluster-autoscaler").inputs
    assert association["namespace"] == "trainyard-system"
    assert association["serviceAccount"] == pods["spec"]["template"]["spec"]["serviceAccountName"]


def test_jobs_read_data_sets_and_write_checkpoints_and_nothing_beside_them(prod: Recorded) -> None:
    may = {each["Sid"]: each for each in prod.one("RolePolicy", "training-bucket").statements()}
    assert [each.rsplit(":::", 1)[-1] for each in may["ReadDataSets"]["Resource"]] == ["bucket-id/datasets/*"]
    assert may["ReadDataSets"]["Action"] == ["s3:GetObject"]
    assert [each.rsplit(":::", 1)[-1] for each in may["Checkpoints"]["Resource"]] == ["bucket-id/checkpoints/*"]
    prefixes = may["ListOwnPrefixes"]["Condition"]["StringLike"]["s3:prefix"]
    assert prefixes == ["checkpoints/*", "datasets/*"]
    association = prod.one("PodIdentityAssociation", "training-default").inputs
    assert (association["namespace"], association["serviceAccount"]) == ("training", "default")


def test_people_have_access_entries_and_researchers_only_in_the_jobs_namespace(prod: Recorded) -> None:
    assert prod.one("Cluster", "cluster").inputs["accessConfig"]["authenticationMode"] == "API"
    granted = {each.name: each.inputs for each in prod.of("AccessPolicyAssociation")}
    admin = granted["access 111122223333:role/platform-admin AmazonEKSClusterAdminPolicy"]
    researcher = granted["access 111122223333:role/researcher AmazonEKSEditPolicy"]
    assert len(granted) == 2
    assert admin["policyArn"] == "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
    assert admin["accessScope"] == {"type": "cluster"}
    assert researcher["accessScope"] == {"type": "namespace", "namespaces": ["training"]}


def test_researchers_run_jobs_which_eks_s_own_policy_does_not_know(prod: Recorded, dev: Recorded) -> None:
    (entry,) = [each for each in prod.of("AccessEntry") if each.name == "access 111122223333:role/researcher"]
    binding, role = prod.one("RoleBinding", "researchers").inputs, prod.one("Role", "researchers").inputs
    assert entry.inputs["kubernetesGroups"] == [binding["subjects"][0]["name"]]
    assert role["metadata"]["namespace"] == "training"
    assert "elasticjobs" in role["rules"][0]["resources"]
    assert not [each for each in dev.of("RoleBinding") if each.name == "researchers"], "dev names none"


def test_the_key_is_used_by_services_only_on_behalf_of_this_account(prod: Recorded) -> None:
    """As `aws/ebs`: so the role of EC2 Auto Scaling needs no mention, which in a new account does not exist yet."""
    for each in prod.one("Key", "key").statements():
        if each["Principal"] == {"AWS": "*"}:
            condition = each["Condition"]["StringEquals"]
            assert condition["kms:CallerAccount"] == "123456789012"
            assert "ec2.us-east-2.amazonaws.com" in condition["kms:ViaService"]


def test_names_fit_into_iam_also_for_the_longest_name_of_a_cluster() -> None:
    longest = "c" * 40
    stack = run({**IN_A_GIVEN_VPC, "aws": {**IN_A_GIVEN_VPC["aws"], "clusterName": longest}})
    names = [each.inputs["name"] for each in stack.of("Role") if each.type.startswith("aws:")]
    assert len(names) >= 6
    assert [name for name in names if len(name) > IAM_LONGEST] == []
    assert all(name.startswith(longest) for name in names)


@pytest.mark.parametrize("partition", ["aws-cn", "aws-us-gov"])
def test_other_partitions_have_their_own_arns_and_principals(partition: str) -> None:
    stack = run(IN_A_GIVEN_VPC, partition=partition)
    said = json.dumps([each.inputs for each in stack.resources if each.type.startswith("aws:")])
    assert "arn:aws:" not in said
    assert f"arn:{partition}:" in said
    (trust,) = stack.one("Role", "node").statements("assumeRolePolicy")
    suffix = "amazonaws.com.cn" if partition == "aws-cn" else "amazonaws.com"
    assert trust["Principal"] == {"Service": f"ec2.{suffix}"}
