"""Programs of others: the same said in another way is judged the same, and what only looks right is found."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pulumi_policy import PolicyResource

from policies.once import convert_once
from policies.pack import RuleError, policy
from policies.rule import Resource, Settings
from policies.rules import all_rules
from policies.testing import (
    UNKNOWN,
    assert_complies,
    assert_undecided,
    assert_violates,
    from_yaml,
    remediated,
    resource,
    run,
)
from policies.values import Value
from policies.workloads import quantity

Props = dict[str, Any]

TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
INSTANCE = "aws:ec2/instance:Instance"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
ROLE = "aws:iam/role:Role"
BUCKET = "aws:s3/bucket:Bucket"
POD = "kubernetes:core/v1:Pod"
JOB = "kubernetes:elastic.pytorch.org/v1alpha1:ElasticJob"


def complies(rule: str, *tested: PolicyResource, config: Mapping[str, Any] | None = None) -> None:
    """A rule of this pack has nothing to say."""
    of_stack = all_rules()[rule].of_stack
    assert_complies(policy(all_rules()[rule]), tested if of_stack else tested[0], config)


def violates(rule: str, *tested: PolicyResource, match: str = "", config: Mapping[str, Any] | None = None) -> None:
    """A rule of this pack finds something."""
    of_stack = all_rules()[rule].of_stack
    assert_violates(policy(all_rules()[rule]), tested if of_stack else tested[0], match, config)


def undecided(rule: str, *tested: PolicyResource, match: str = "") -> None:
    """A rule of this pack says what it does not know."""
    of_stack = all_rules()[rule].of_stack
    assert_undecided(policy(all_rules()[rule]), tested if of_stack else tested[0], match)


def rights(**statement: Any) -> PolicyResource:
    return resource(ROLE_POLICY, {"policy": json.dumps({"Statement": {"Effect": "Allow", **statement}})})


class TestRightsOfRoles:
    @pytest.mark.parametrize("action", ["*", "s3:*", "S3:*", "ec2:**", "iam:*?", ["s3:GetObject", "iam:*"]])
    def test_a_whole_service_in_any_spelling_is_found(self, action: Any) -> None:
        violates("iam-no-star-action", rights(Action=action, Resource="*"))

    @pytest.mark.parametrize("everything", ["*", ["arn:aws:s3:::x", "*"], "arn:aws:*", "arn:*", "arn:aws:*:*:*:*"])
    def test_every_resource_in_any_spelling_is_found(self, everything: Any) -> None:
        violates("iam-no-star-resource", rights(Action="ec2:TerminateInstances", Resource=everything))

    def test_all_resources_but_some_are_nearly_all(self) -> None:
        violates("iam-no-star-resource", rights(Action="ec2:TerminateInstances", NotResource="arn:aws:ec2:x"))

    @pytest.mark.parametrize("action", ["secretsmanager:GetSecretValue", "ssm:Get*", "S3:getobject", "s3:Get*"])
    def test_reading_secrets_and_data_of_everybody_is_no_mere_looking(self, action: str) -> None:
        violates("iam-no-star-resource", rights(Action=action, Resource="*"))

    @pytest.mark.parametrize("action", ["EC2:describeinstances", "ec2:Describe*", "kms:ListAliases", "s3:ListBucket"])
    def test_looking_is_fine_in_any_spelling(self, action: str) -> None:
        complies("iam-no-star-resource", rights(Action=action, Resource="*"))

    def test_a_policy_with_something_unknown_in_it_is_not_passed(self) -> None:
        for statement in (UNKNOWN, [{"Effect": UNKNOWN, "Action": "*"}], [{"Effect": "Allow", "Action": [UNKNOWN]}]):
            undecided("iam-no-star-action", resource(ROLE_POLICY, {"policy": {"Statement": statement}}), match="policy")

    @pytest.mark.parametrize("kind", ["rolePolicyAttachment:RolePolicyAttachment", "policyAttachment:PolicyAttachment"])
    def test_policies_of_aws_that_allow_everything_are_found_where_they_are_attached(self, kind: str) -> None:
        made = resource(f"aws:iam/{kind}", {"policyArn": "arn:aws:iam::aws:policy/AdministratorAccess"})
        violates("iam-no-star-action", made, match="AdministratorAccess")
        complies("iam-no-star-action", made, config={"managed": ["AdministratorAccess"]})
        complies("iam-no-star-action", resource(f"aws:iam/{kind}", {"policyArn": UNKNOWN}))

    def test_policies_of_aws_are_found_in_a_role_as_well(self) -> None:
        arns = ["arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy", "arn:aws-cn:iam::aws:policy/AmazonS3FullAccess"]
        violates("iam-no-star-action", resource(ROLE, {"managedPolicyArns": arns}), match="AmazonS3FullAccess")
        complies("iam-no-star-action", resource(ROLE, {"managedPolicyArns": arns[:1]}))


class TestTrustOfRoles:
    @staticmethod
    def trusting(condition: Any) -> PolicyResource:
        statement = {
            "Effect": "Allow",
            "Principal": {"Federated": "arn:aws:iam::1:oidc-provider/token.actions.githubusercontent.com"},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": condition,
        }
        return resource(ROLE, {"assumeRolePolicy": json.dumps({"Statement": [statement]})})

    @pytest.mark.parametrize("subject", ["repo:me/mine:ref:refs/heads/main", ["repo:me/mine:*"], "repo:me/*"])
    def test_a_subject_that_is_somebody_is_enough(self, subject: Any) -> None:
        complies("role-trust-narrow", self.trusting({"StringLike": {"token.actions:sub": subject}}))

    @pytest.mark.parametrize("subject", ["*", "repo:*", "repo:*/*", "repo:*:ref:refs/heads/main", [], ["x", "*"]])
    def test_a_subject_that_is_anybody_is_not(self, subject: Any) -> None:
        violates("role-trust-narrow", self.trusting({"StringLike": {"token.actions:sub": subject}}))

    @pytest.mark.parametrize("operator", ["StringNotEquals", "StringEqualsIfExists", "ForAllValues:StringEquals"])
    def test_a_condition_that_others_meet_is_not(self, operator: str) -> None:
        violates("role-trust-narrow", self.trusting({operator: {"token.actions:sub": "repo:me/mine"}}))


class TestBuckets:
    @staticmethod
    def refusing(**changed: Any) -> PolicyResource:
        statement = {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": ["arn:aws:s3:::b", "arn:aws:s3:::b/*"],
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            **changed,
        }
        text = json.dumps({"Statement": statement})
        return resource("aws:s3/bucketPolicy:BucketPolicy", {"bucket": "b", "policy": text}, name="tls")

    @pytest.mark.parametrize(
        "same",
        [
            {"Principal": {"AWS": ["*"]}},
            {"Action": ["S3:*"]},
            {"Action": "*", "Resource": "*"},
            {"Condition": {"Bool": {"aws:SecureTransport": ["false"]}}},
            {"Condition": {"BoolIfExists": {"AWS:securetransport": False}}},
        ],
    )
    def test_a_refusal_of_plain_requests_is_known_in_any_spelling(self, same: Props) -> None:
        complies("bucket-tls-only", resource(BUCKET, {"bucket": "b"}), self.refusing(**same))

    @pytest.mark.parametrize(
        "less",
        [
            {"Effect": "Allow"},
            {"Action": "s3:PutObject"},
            {"Principal": {"AWS": "arn:aws:iam::1:role/one"}},
            {"Resource": "arn:aws:s3:::b"},
            {"Condition": {"Bool": {"aws:SecureTransport": "false"}, "StringEquals": {"aws:PrincipalTag/x": "y"}}},
            {"Condition": {"Null": {"aws:SecureTransport": "false"}}},
        ],
    )
    def test_a_refusal_of_some_plain_requests_is_not_enough(self, less: Props) -> None:
        violates("bucket-tls-only", resource(BUCKET, {"bucket": "b"}), self.refusing(**less))

    def test_buckets_of_the_older_kind_say_everything_inline(self) -> None:
        default = {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": UNKNOWN}}
        props = {
            "versionings": [{"enabled": True}],
            "serverSideEncryptionConfigurations": [{"rules": [default]}],
            "lifecycleRules": [{"enabled": True, "abortIncompleteMultipartUploadDays": 7}],
        }
        for rule in ("bucket-versioned", "bucket-encrypted", "bucket-ends-uploads"):
            complies(rule, resource("aws:s3/bucketV2:BucketV2", props))
            violates(rule, resource("aws:s3/bucketV2:BucketV2", {}))

    def test_a_scratch_file_system_takes_no_key(self) -> None:
        kind = "aws:fsx/lustreFileSystem:LustreFileSystem"
        complies("file-system-encrypted", resource(kind, {"deploymentType": "SCRATCH_2"}))
        violates("file-system-encrypted", resource(kind, {"deploymentType": "PERSISTENT_2"}))


class TestMachines:
    def test_a_template_that_describes_no_disk_has_one_all_the_same(self) -> None:
        for kind in (TEMPLATE, INSTANCE, "aws:ec2/launchConfiguration:LaunchConfiguration"):
            violates("disk-encrypted", resource(kind, {"instanceType": "g6.xlarge"}), match="no disk")

    def test_machines_by_other_kinds_of_resources_are_looked_at(self) -> None:
        for kind in ("launchConfiguration:LaunchConfiguration", "spotInstanceRequest:SpotInstanceRequest"):
            made = resource(f"aws:ec2/{kind}", {"associatePublicIpAddress": "true"})
            violates("imdsv2-required", made)
            violates("no-public-address", made)

    @pytest.mark.parametrize("pack", [lambda raw: raw, gzip.compress], ids=["plain", "compressed"])
    @pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes], ids=["one-line", "lines"])
    def test_secrets_in_user_data_are_found_however_it_is_encoded(self, encode: Any, pack: Any) -> None:
        script = b"#!/bin/sh\n# " + b"x" * 60 + b"\nexport HF_TOKEN=hf_" + b"a" * 34
        made = resource(TEMPLATE, {"userData": encode(pack(script)).decode()})
        violates("no-secrets-in-user-data", made, match="Hugging Face")

    def test_a_port_that_may_be_open_opens_no_protocol_that_has_none(self) -> None:
        kind = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
        props = {"cidrIpv4": "0.0.0.0/0", "fromPort": 443, "toPort": 443}
        config = {"ports": ["443"]}
        complies("no-ingress-from-everywhere", resource(kind, {**props, "ipProtocol": "tcp"}), config=config)
        violates("no-ingress-from-everywhere", resource(kind, {**props, "ipProtocol": "-1"}), config=config)


class TestNodeGroups:
    def test_the_older_images_with_a_driver_are_known(self) -> None:
        made = resource(NODE_GROUP, {"instanceTypes": ["g6.xlarge"], "amiType": "AL2_x86_64_GPU"})
        complies("image-fits-machine", made)

    def test_a_group_with_an_image_of_its_own_cannot_name_a_version(self) -> None:
        complies("eks-version-supported", resource(NODE_GROUP, {"amiType": "CUSTOM"}))

    def test_gpus_of_a_type_that_nobody_knows_are_not_counted_as_none(self) -> None:
        scaling = {"minSize": 0, "maxSize": 4}
        strange = resource(NODE_GROUP, {"instanceTypes": ["p9.48xlarge"], "scalingConfig": scaling})
        undecided("gpu-count-capped", strange, match="GPUs of p9.48xlarge")
        complies("gpu-count-capped", resource(NODE_GROUP, {"instanceTypes": ["x9.large"], "scalingConfig": scaling}))

    def test_hints_on_the_scaling_group_are_hints(self) -> None:
        group = resource(
            NODE_GROUP,
            {"instanceTypes": ["g6.xlarge"], "scalingConfig": {"minSize": 0, "maxSize": 4}},
            name="gpus",
        )
        key = "k8s.io/cluster-autoscaler/node-template/resources/ephemeral-storage"
        tag = resource(
            "aws:autoscaling/tag:Tag",
            {"autoscalingGroupName": UNKNOWN, "tag": {"key": key, "value": "100Gi", "propagateAtLaunch": False}},
            name="hint",
            depends={"autoscalingGroupName": [group]},
        )
        violates("scale-from-zero-hints", group)
        complies("scale-from-zero-hints", group, tag)

    def test_machines_of_scaling_groups_and_single_ones_are_counted_as_well(self) -> None:
        template = resource(TEMPLATE, {"instanceType": "p5.48xlarge"}, name="template")
        scaling = resource(
            "aws:autoscaling/group:Group",
            {"maxSize": 9, "launchTemplate": {"id": UNKNOWN}},
            name="workers",
            depends={"launchTemplate": [template]},
        )
        violates("gpu-count-capped", template, scaling, match="workers 72")
        overridden = {"maxSize": 9, "mixedInstancesPolicy": {"launchTemplate": {"overrides": UNKNOWN}}}
        undecided("gpu-count-capped", resource("aws:autoscaling/group:Group", overridden))
        undecided("gpu-count-capped", resource("aws:autoscaling/group:Group", {"maxSize": 9}), match="scaling group")
        single = resource(INSTANCE, {"instanceType": "p5.48xlarge"}, provider={"region": "us-east-2"})
        violates("cost-per-hour-capped", single, match="USD an hour on demand; at most 50", config={"maximumUsd": 50})
        violates("budget-exists", single)

    def test_the_place_for_everything_else_is_asked_of_stacks_that_make_the_cluster(self) -> None:
        tainted = {"taints": [{"key": "trainyard.dev/spot", "effect": "NO_SCHEDULE"}]}
        group = resource(NODE_GROUP, tainted, name="gpus")
        complies("untainted-pool-on-demand", group)
        cluster = "aws:eks/cluster:Cluster"
        violates("untainted-pool-on-demand", group, resource(cluster, {}))
        complies("untainted-pool-on-demand", group, resource(cluster, {"computeConfig": {"enabled": True}}))
        undecided("untainted-pool-on-demand", group, resource(cluster, {"computeConfig": UNKNOWN}))
        fargate = resource("aws:eks/fargateProfile:FargateProfile", {}, name="system")
        complies("untainted-pool-on-demand", group, resource(cluster, {}), fargate)

    def test_a_budget_that_tells_an_empty_list_tells_nobody(self) -> None:
        group = resource(NODE_GROUP, {"instanceTypes": ["g6.xlarge"]}, name="gpus")
        kind = "aws:budgets/budget:Budget"
        violates("budget-exists", group, resource(kind, {"notifications": [{"subscriberEmailAddresses": []}]}))
        complies("budget-exists", group, resource(kind, {"notifications": [{"subscriberSnsTopicArns": [UNKNOWN]}]}))

    def test_default_tags_that_are_unknown_are_not_missing(self) -> None:
        vpc = "aws:ec2/vpc:Vpc"
        undecided("required-tags", resource(vpc, {}, provider={"defaultTags": UNKNOWN}))
        told = json.dumps({"tags": {"environment": "x"}})
        complies("required-tags", resource(vpc, {"tags": UNKNOWN}, provider={"defaultTags": told}))


def pod(container: Props, **spec: Any) -> PolicyResource:
    metadata = {"name": "train", "namespace": "training"}
    return resource(POD, {"metadata": metadata, "spec": {"containers": [{"name": "train", **container}], **spec}})


def gpus(number: int = 1, key: str = "nvidia.com/gpu") -> Props:
    return {"resources": {"limits": {key: number}}}


class TestPods:
    def test_a_patch_is_not_asked_for_what_it_leaves_as_it_is(self) -> None:
        kind = "kubernetes:apps/v1:DaemonSetPatch"
        env = [{"name": "ENABLE_PREFIX_DELEGATION", "value": "true"}]
        spec = {"template": {"spec": {"containers": [{"name": "aws-node", "env": env}]}}}
        for rule in ("resources-set", "image-not-latest", "pod-runs-restricted", "image-by-digest"):
            complies(rule, resource(kind, {"metadata": {"namespace": "training"}, "spec": spec}))
        spec["template"]["spec"]["hostPID"] = True  # type: ignore[assignment]
        violates("no-host-access", resource(kind, {"metadata": {"namespace": "training"}, "spec": spec}))

    @pytest.mark.parametrize("capability", ["SYS_ADMIN", "CAP_SYS_ADMIN", "ALL", "sys_ptrace"])
    def test_capabilities_that_are_as_good_as_root_are_found(self, capability: str) -> None:
        context = {"capabilities": {"add": [capability], "drop": ["ALL"]}}
        violates("no-host-access", pod({"securityContext": context}))

    def test_dropping_all_capabilities_and_adding_some_is_not_restricted(self) -> None:
        shared = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for added, fine in (("CHOWN", False), ("NET_BIND_SERVICE", True), ("IPC_LOCK", True)):
            context = {"allowPrivilegeEscalation": False, "capabilities": {"add": [added], "drop": ["ALL"]}}
            made = pod({"securityContext": context}, securityContext=shared)
            (complies if fine else violates)("pod-runs-restricted", made)

    def test_a_slice_of_a_gpu_is_a_gpu(self) -> None:
        tolerant = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
        complies("only-gpu-pods-tolerate-taint", pod(gpus(key="nvidia.com/mig-1g.10gb"), **tolerant))
        violates("gpu-pods-tolerate-taint", pod(gpus(key="nvidia.com/mig-1g.10gb")))
        complies("only-gpu-pods-tolerate-taint", pod({}, resourceClaims=[{"name": "gpu"}], **tolerant))

    def test_a_toleration_of_another_effect_is_none(self) -> None:
        only = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}]
        violates("gpu-pods-tolerate-taint", pod(gpus(), tolerations=only))

    def test_a_pod_that_selects_spot_may_be_reclaimed_without_a_toleration(self) -> None:
        violates("spot-pods-have-time", pod(gpus(), nodeSelector={"eks.amazonaws.com/capacityType": "SPOT"}))
        complies("spot-pods-have-time", pod(gpus(), nodeSelector={"eks.amazonaws.com/capacityType": "ON_DEMAND"}))

    @pytest.mark.parametrize("name", ["PGPASSWORD", "MINIO_SECRET_KEY", "SECRET_KEY", "SMTP_PASS", "WANDB_API_KEY"])
    def test_variables_that_are_called_like_secrets_are_found(self, name: str) -> None:
        violates("no-secrets-in-pod-environment", pod({"env": [{"name": name, "value": "s3cr3t-value"}]}))

    @pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "MAX_TOKENS", "BYPASS", "PWD_CHECK"])
    def test_variables_that_only_sound_so_are_not(self, name: str) -> None:
        complies("no-secrets-in-pod-environment", pod({"env": [{"name": name, "value": "s3cr3t-value"}]}))


SPOT: Props = {"tolerations": [{"key": "trainyard.dev/spot", "operator": "Exists"}]}
MOUNTED: Props = {"volumeMounts": [{"name": "out", "mountPath": "/out"}], **gpus()}


class TestCheckpoints:
    @pytest.mark.parametrize(
        "volume",
        [
            {"ephemeral": {"volumeClaimTemplate": {}}},
            {"csi": {"driver": "secrets-store.csi.k8s.io"}},
            {"persistentVolumeClaim": {"claimName": "c", "readOnly": True}},
            {"emptyDir": {}},
        ],
    )
    def test_volumes_that_go_with_the_pod_or_take_nothing_keep_none(self, volume: Props) -> None:
        violates("spot-pods-keep-checkpoints", pod(MOUNTED, volumes=[{"name": "out", **volume}], **SPOT))

    @pytest.mark.parametrize("volume", [{"persistentVolumeClaim": UNKNOWN}, {"nfs": {"server": "x", "path": "/"}}])
    def test_volumes_that_stay_do(self, volume: Props) -> None:
        complies("spot-pods-keep-checkpoints", pod(MOUNTED, volumes=[{"name": "out", **volume}], **SPOT))

    @pytest.mark.parametrize(
        ("words", "fine"),
        [
            (["train.py", "--checkpoint-dir=s3://b/run"], True),
            (["train.py", "--output", "s3://b/run"], True),
            (["sh", "-c", "python train.py --save_dir s3://b/run"], True),
            (["train.py", "s3://b/ckpt"], True),
            (["train.py", "--data=s3://b/data"], False),
            (["train.py", "--data", "s3://b/data", "--save_dir", "/out"], False),
        ],
    )
    def test_a_bucket_of_data_is_no_place_for_checkpoints(self, words: list[str], *, fine: bool) -> None:
        (complies if fine else violates)("spot-pods-keep-checkpoints", pod({"args": words, **gpus()}, **SPOT))


class TestWhatKeepsTrainingRunning:
    @staticmethod
    def controller_and_budget(selector: Props, **spec: Any) -> list[PolicyResource]:
        template = {"metadata": {"labels": {"app": "c"}}, "spec": {"containers": []}}
        workload = {"metadata": {"namespace": "x"}, "spec": {"replicas": 2, "template": template}}
        budget = {"metadata": {"namespace": "x"}, "spec": {"selector": selector, **(spec or {"maxUnavailable": 1})}}
        return [
            resource("kubernetes:apps/v1:Deployment", workload, name="controller"),
            resource("kubernetes:policy/v1:PodDisruptionBudget", budget, name="budget"),
        ]

    @pytest.mark.parametrize(
        "selector",
        [{}, {"matchExpressions": [{"key": "app", "operator": "In", "values": ["c"]}]}, {"matchLabels": {"app": "c"}}],
    )
    def test_budgets_select_in_three_ways(self, selector: Props) -> None:
        complies("replicated-has-budget", *self.controller_and_budget(selector))

    def test_budgets_of_other_pods_do_not_count(self) -> None:
        other = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["c"]}]}
        violates("replicated-has-budget", *self.controller_and_budget(other))

    def test_a_budget_whose_number_is_unknown_is_not_passed(self) -> None:
        labels = {"matchLabels": {"app": "c"}}
        undecided("replicated-has-budget", *self.controller_and_budget(labels, maxUnavailable=UNKNOWN))

    def test_members_of_etcd_may_be_kept_apart_by_spreading_them(self) -> None:
        example = all_rules()["etcd-durable"].right
        apart = "topologySpreadConstraints: [{topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule}]"
        start, end = example.index("affinity:"), example.index("containers:")
        complies("etcd-durable", *from_yaml(f"{example[:start]}{apart}\n          {example[end:]}"))


class TestImages:
    DIGEST = f"sha256:{'1' * 64}"

    def test_a_name_that_ends_like_a_repository_of_the_stack_is_another_one(self) -> None:
        own = resource(
            "aws:ecr/repository:Repository", {"name": "training", "imageTagMutability": "IMMUTABLE"}, name="own"
        )
        complies("image-by-digest", own, pod({"image": "1.dkr.ecr.us-east-2.amazonaws.com/training:1"}))
        violates("image-by-digest", own, pod({"image": "docker.io/somebody/training:1"}))

    def test_a_path_that_looks_like_a_registry_is_none(self) -> None:
        violates("image-from-known-registry", pod({"image": "evil.example/x.dkr.ecr.us-east-2.amazonaws.com"}))


class TestCorrections:
    def test_what_complies_in_its_own_way_is_left_alone(self) -> None:
        repository = {"imageTagMutability": "IMMUTABLE_WITH_EXCLUSION"}
        tags = policy(all_rules()["registry-tags-immutable"])
        assert remediated(tags, resource("aws:ecr/repository:Repository", repository)) is None
        assert remediated(tags, resource("aws:ecr/repository:Repository", {"imageTagMutability": UNKNOWN})) is None

    def test_asymmetric_keys_are_not_told_to_rotate(self) -> None:
        props = {"customerMasterKeySpec": "RSA_2048", "deletionWindowInDays": 1}
        assert remediated(policy(all_rules()["key-rotated"]), resource("aws:kms/key:Key", props)) is None

    def test_only_the_disk_that_is_of_an_older_type_becomes_gp3(self) -> None:
        disks = [{"ebs": {"volumeType": kind}} for kind in ("gp2", "io2", "sc1")]
        tested = resource(TEMPLATE, {"blockDeviceMappings": disks})
        after = remediated(policy(all_rules()["disk-type-current"]), tested)
        assert after is not None
        assert [one["ebs"]["volumeType"] for one in after["blockDeviceMappings"]] == ["gp3", "io2", "sc1"]

    def test_a_machine_is_not_taken_for_its_disk(self) -> None:
        props = {"instanceType": "g6.xlarge", "availabilityZone": "us-east-2a"}
        assert remediated(policy(all_rules()["disk-encrypted"]), resource(INSTANCE, props)) is None


def test_a_rule_that_fails_itself_says_which_and_where() -> None:
    def careless(subject: Resource, settings: Settings) -> Iterator[str]:
        yield subject.props.raw["missing"]

    broken = replace(all_rules()["disk-encrypted"], check=careless, each=None)
    with pytest.raises(RuleError, match=r"disk-encrypted at LaunchTemplate it: KeyError: 'missing'\. Report it"):
        run(policy(broken), resource(TEMPLATE, {}))


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "number"),
        [("1e3", 1e3), ("1Ei", 2.0**60), ("2P", 2e15), ("100m", 0.1), ("5u", 5e-6), ("8", 8.0), ("64Gi", 2.0**36)],
    )
    def test_quantities_are_read_as_kubernetes_reads_them(self, text: str, number: float) -> None:
        assert quantity(Value(text)) == pytest.approx(number)

    @pytest.mark.parametrize("text", ["nan", "inf", "1.2.3", "9" * 400, "1e999", "", "eight"])
    def test_what_is_no_number_is_none_and_raises_nothing(self, text: str) -> None:
        assert quantity(Value(text)) is None
        assert Value(text).number() is None
        for rule in all_rules().values():
            if rule.of_stack:
                run(policy(rule), [pod(gpus()), resource(NODE_GROUP, {"scalingConfig": {"maxSize": text}})])
            else:
                run(policy(rule), pod({"resources": {"limits": {"nvidia.com/gpu": text}}}))

    def test_interfaces_at_places_that_are_no_numbers_raise_nothing(self) -> None:
        rule = all_rules()["efa-interface-layout"]
        for text in ("nan", "inf"):
            run(policy(rule), from_yaml(rule.right.replace("deviceIndex: 0", f'deviceIndex: "{text}"')))


class TestConvertingOnce:
    @staticmethod
    def sdk() -> tuple[ModuleType, list[object]]:
        calls: list[object] = []

        def convert(message: object, **named: object) -> Props:
            calls.append((message, named))
            return {}

        module = ModuleType("sdk")
        module.json_format = SimpleNamespace(MessageToDict=convert, ParseDict=dict)  # type: ignore[attr-defined]
        module.deserialize_properties = lambda props, *_: dict(props)  # type: ignore[attr-defined]
        module.unknown_checking_proxy = lambda props: props  # type: ignore[attr-defined]
        return module, calls

    def test_one_message_is_converted_once(self) -> None:
        module, calls = self.sdk()
        assert convert_once(module)
        message = SimpleNamespace(SerializeToString=lambda **_: b"same")
        first = module.json_format.MessageToDict(message)
        assert module.json_format.MessageToDict(message) is first
        assert len(calls) == 1

    def test_what_a_later_sdk_may_ask_besides_goes_through(self) -> None:
        module, calls = self.sdk()
        convert_once(module)
        message = SimpleNamespace(SerializeToString=lambda **_: b"same")
        module.json_format.MessageToDict(message, preserving_proto_field_name=True)
        assert calls == [(message, {"preserving_proto_field_name": True})]
        assert module.json_format.ParseDict is dict

    def test_an_sdk_with_other_names_is_left_as_it_is(self) -> None:
        assert not convert_once(ModuleType("other"))

    def test_the_sdk_that_is_pinned_has_these_names(self) -> None:
        import pulumi_policy.policy as real  # noqa: PLC0415 - changed below, in a copy

        copy = ModuleType("copy")
        copy.__dict__.update(vars(real))
        assert convert_once(copy)
