"""Mistakes in the example stacks, and the rules that catch each: resources as people get them wrong.

A variant changes the properties or the options of one resource, so that it can be tried without an engine and, through
a transform, on the real one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Props = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One mistake."""

    name: str
    stack: str
    kind: str
    """Last part of the type of the resource that it is made in."""
    resource: str
    """Its logical name."""
    expected: tuple[str, ...]
    """Rules that complain, and no others."""
    change: Callable[[Props], None] = lambda _: None
    protect: bool | None = None
    ignore_changes: tuple[str, ...] | None = None
    caught_at: tuple[str, ...] = ()
    """Logical names of the resources that the rules complain of; absent: the changed one."""
    of_stack: bool = False
    """They complain of the stack as a whole."""

    refused: bool = False
    """AWS or the API server refuses it anyway, so that no preview gets as far as the rules of stacks."""

    @property
    def places(self) -> set[str]:
        """Logical names of what the rules may complain of; the stack itself is another such."""
        return set(self.caught_at or (self.resource,))

    def clashes(self, other: Variant) -> bool:
        """Whether two mistakes have a resource in common, so that one may hide the other."""
        return bool({self.resource, *self.places} & {other.resource, *other.places})


def _set(*path: str | int, value: Any) -> Callable[[Props], None]:
    def change(props: Props) -> None:
        node: Any = props
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _drop(*path: str | int) -> Callable[[Props], None]:
    def change(props: Props) -> None:
        node: Any = props
        for key in path[:-1]:
            node = node[key]
        del node[path[-1]]

    return change


def _both(*changes: Callable[[Props], None]) -> Callable[[Props], None]:
    def change(props: Props) -> None:
        for each in changes:
            each(props)

    return change


def _pod(*path: str | int, value: Any) -> Callable[[Props], None]:
    return _set("spec", "template", "spec", *path, value=value)


def _statement(document: str, **members: Any) -> Callable[[Props], None]:
    """Add a statement to a policy document."""

    def change(props: Props) -> None:
        policy = json.loads(props[document])
        policy["Statement"].append({"Effect": "Allow", **members})
        props[document] = json.dumps(policy)

    return change


def _without_last_interface(props: Props) -> None:
    props["networkInterfaces"].pop()


def _old_layout(props: Props) -> None:
    """As popular modules still write it: EFA as the first interface of each card."""
    interfaces = props["networkInterfaces"]
    interfaces.pop(1)
    interfaces[0]["interfaceType"] = "efa"


def _without_taint(key: str) -> Callable[[Props], None]:
    def change(props: Props) -> None:
        props["taints"] = [one for one in props["taints"] if one["key"] != key]

    return change


_HINT = "k8s.io/cluster-autoscaler/node-template/resources/"
_TOLERATE_ALL = [{"operator": "Exists"}]
_NODES, _TEMPLATE = "NodeGroup", "LaunchTemplate"

VARIANTS = (
    # The control plane.
    Variant(
        "the API is open to everybody",
        "prod",
        "Cluster",
        "cluster",
        ("eks-endpoint-restricted",),
        _set("vpcConfig", "publicAccessCidrs", value=["0.0.0.0/0"]),
    ),
    Variant(
        "secrets are not encrypted", "prod", "Cluster", "cluster", ("eks-secrets-encrypted",), _drop("encryptionConfig")
    ),
    Variant(
        "no audit log",
        "prod",
        "Cluster",
        "cluster",
        ("eks-control-plane-logs",),
        _set("enabledClusterLogTypes", value=["api"]),
    ),
    Variant(
        "a version out of support",
        "dev",
        "Cluster",
        "cluster",
        ("eks-version-supported",),
        _set("version", value="1.29"),
    ),
    # Machines.
    Variant(
        "IMDSv1",
        "prod",
        _TEMPLATE,
        "gpu-block",
        ("imdsv2-required",),
        _set("metadataOptions", "httpTokens", value="optional"),
    ),
    Variant(
        "metadata travels far",
        "dev",
        _TEMPLATE,
        "gpu-spot",
        ("imds-hop-limit",),
        _set("metadataOptions", "httpPutResponseHopLimit", value=5),
    ),
    Variant(
        "a disk in the clear",
        "prod",
        _TEMPLATE,
        "system",
        ("disk-encrypted",),
        _set("blockDeviceMappings", 0, "ebs", "encrypted", value="false"),
    ),
    Variant(
        "a disk of the old type",
        "prod",
        _TEMPLATE,
        "system",
        ("disk-type-current",),
        _set("blockDeviceMappings", 0, "ebs", "volumeType", value="gp2"),
    ),
    Variant(
        "public addresses",
        "prod",
        "Subnet",
        "private-us-east-2b",
        ("no-public-address",),
        _set("mapPublicIpOnLaunch", value=True),
    ),
    Variant("a key pair", "dev", _TEMPLATE, "gpu-spot", ("no-ssh-to-nodes",), _set("keyName", value="me")),
    Variant(
        "a secret in user data",
        "dev",
        _TEMPLATE,
        "system",
        ("no-secrets-in-user-data",),
        _set("userData", value=_encoded("export HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789")),
    ),
    # Node groups.
    Variant(
        "no taint on GPU machines",
        "prod",
        _NODES,
        "gpu-block-nodes",
        ("gpu-group-tainted",),
        _without_taint("nvidia.com/gpu"),
    ),
    Variant(
        "no taint on spot machines",
        "prod",
        _NODES,
        "gpu-spot-nodes",
        ("spot-group-tainted",),
        _without_taint("trainyard.dev/spot"),
    ),
    Variant(
        "no label for the autoscaler",
        "dev",
        _NODES,
        "gpu-spot-nodes",
        ("gpu-group-labelled",),
        _drop("labels", "k8s.amazonaws.com/accelerator"),
    ),
    Variant(
        "Kubernetes' spelling of a taint",
        "dev",
        _NODES,
        "gpu-spot-nodes",
        ("taint-effects-spelled", "gpu-group-tainted"),
        _set("taints", 0, "effect", value="NoSchedule"),
        refused=True,
    ),
    Variant(
        "types of two sizes",
        "dev",
        _NODES,
        "gpu-spot-nodes",
        ("types-alike", "gpu-count-capped", "cost-per-hour-capped"),
        _set("instanceTypes", value=["g6.xlarge", "g6.12xlarge"]),
    ),
    Variant(
        "a type that is mistyped",
        "dev",
        _NODES,
        "gpu-spot-nodes",
        ("types-known", "gpu-count-capped", "cost-per-hour-capped"),
        _set("instanceTypes", value=["g6.xlarge", "g5.xlrge"]),
        refused=True,
    ),
    Variant(
        "an image without a driver",
        "prod",
        _NODES,
        "gpu-spot-nodes",
        ("image-fits-machine",),
        _set("amiType", value="AL2023_x86_64_STANDARD"),
    ),
    Variant(
        "an image that is not pinned", "prod", _NODES, "gpu-spot-nodes", ("node-image-pinned",), _drop("releaseVersion")
    ),
    Variant(
        "the system pool on spot",
        "dev",
        _NODES,
        "system-nodes",
        ("untainted-pool-on-demand", "spot-group-tainted"),
        _set("capacityType", value="SPOT"),
    ),
    Variant(
        "a block without its reservation",
        "prod",
        _TEMPLATE,
        "gpu-block",
        ("capacity-block-complete",),
        _drop("capacityReservationSpecification"),
        refused=True,
    ),
    Variant(
        "the program sets the size back",
        "prod",
        _NODES,
        "gpu-spot-nodes",
        ("desired-size-left-alone",),
        ignore_changes=(),
    ),
    # EFA.
    Variant(
        "EFA's group lets traffic out to addresses only",
        "prod",
        "SecurityGroupEgressRule",
        "efa-out",
        ("efa-security-group-self",),
        _both(_drop("referencedSecurityGroupId"), _set("cidrIpv4", value="0.0.0.0/0")),
        caught_at=("efa",),
    ),
    Variant(
        "EFA's group lets in TCP only",
        "prod",
        "SecurityGroupIngressRule",
        "efa-in",
        ("efa-security-group-self",),
        _both(_set("ipProtocol", value="tcp"), _set("fromPort", value=0), _set("toPort", value=65535)),
        caught_at=("efa",),
    ),
    Variant(
        "one EFA interface too few",
        "prod",
        _TEMPLATE,
        "gpu-spot",
        ("efa-interface-count", "scale-from-zero-hints"),
        _without_last_interface,
        caught_at=("gpu-spot", "gpu-spot-nodes"),
    ),
    Variant("the older layout of interfaces", "prod", _TEMPLATE, "gpu-block", ("efa-interface-layout",), _old_layout),
    Variant(
        "a device index that p5 refuses",
        "prod",
        _TEMPLATE,
        "gpu-spot",
        ("efa-interface-layout",),
        _set("networkInterfaces", 5, "deviceIndex", value=2),
    ),
    Variant(
        "EFA over two zones",
        "prod",
        _NODES,
        "gpu-spot-nodes",
        ("efa-one-subnet",),
        lambda props: props["subnetIds"].append("subnet-of-another-zone"),
    ),
    Variant(
        "a placement group on a reservation",
        "prod",
        _TEMPLATE,
        "gpu-block",
        ("efa-placement",),
        _set("placement", value={"groupName": "near"}),
        refused=True,
    ),
    Variant(
        "the EFA plugin does not tolerate spot",
        "prod",
        "DaemonSet",
        "efa-device-plugin",
        ("device-plugins-cover-pools",),
        _pod("tolerations", value=[{"key": "nvidia.com/gpu", "operator": "Exists"}]),
        caught_at=("gpu-spot-nodes",),
    ),
    Variant(
        "a plugin that collides with EFA",
        "prod",
        "DaemonSet",
        "nvidia-device-plugin",
        ("known-bad-versions",),
        _pod("containers", 0, "image", value=f"nvcr.io/nvidia/k8s-device-plugin:v0.19.1@sha256:{'2' * 64}"),
    ),
    # Autoscaling.
    Variant(
        "the autoscaler is not told of EFA",
        "prod",
        _NODES,
        "gpu-spot-nodes",
        ("scale-from-zero-hints",),
        _drop("tags", f"{_HINT}vpc.amazonaws.com/efa"),
    ),
    Variant(
        "a queue for machines that are not there",
        "prod",
        "ResourceFlavor",
        "gpu-block",
        ("queue-matches-group",),
        _set("spec", "nodeLabels", value={"trainyard.dev/pool": "gpus"}),
    ),
    # Network, storage, identity.
    Variant(
        "a port open to the world",
        "prod",
        "SecurityGroupIngressRule",
        "efs-from-nodes-2049",
        ("no-ingress-from-everywhere",),
        _both(_drop("referencedSecurityGroupId"), _set("cidrIpv4", value="0.0.0.0/0")),
    ),
    Variant(
        "a bucket without versions",
        "prod",
        "BucketVersioning",
        "bucket-versioning",
        ("bucket-versioned",),
        _set("versioningConfiguration", "status", value="Suspended"),
        caught_at=("bucket",),
    ),
    Variant(
        "a bucket that may become public",
        "prod",
        "BucketPublicAccessBlock",
        "bucket-not-public",
        ("bucket-blocks-weak",),
        _set("blockPublicPolicy", value=False),
    ),
    Variant(
        "a file system in the clear",
        "prod",
        "FileSystem",
        "efs",
        ("file-system-encrypted",),
        _set("encrypted", value=False),
    ),
    Variant("a key that never rotates", "prod", "Key", "key", ("key-rotated",), _drop("enableKeyRotation")),
    Variant("a bucket that anybody deletes", "prod", "Bucket", "bucket", ("stateful-protected",), protect=False),
    Variant(
        "rights on everything",
        "dev",
        "RolePolicy",
        "autoscaler-scale",
        ("iam-no-star-action", "iam-no-star-resource"),
        _statement("policy", Action="ec2:*", Resource="*"),
    ),
    Variant(
        "a role for everybody",
        "prod",
        "Role",
        "node",
        ("role-trust-narrow",),
        _statement("assumeRolePolicy", Principal="*", Action="sts:AssumeRole"),
    ),
    # Images and pods.
    Variant(
        "tags that move",
        "prod",
        "Repository",
        "training-images",
        ("registry-tags-immutable",),
        _set("imageTagMutability", value="MUTABLE"),
    ),
    Variant(
        "the newest controller, whichever it is",
        "prod",
        "Deployment",
        "elastic-controller",
        ("image-not-latest",),
        _pod(
            "containers",
            0,
            "image",
            value="111122223333.dkr.ecr.us-east-2.amazonaws.com/trainyard-prod/controller:latest",
        ),
    ),
    Variant(
        "an image of Docker Hub by its tag",
        "dev",
        "Deployment",
        "elastic-controller",
        ("image-by-digest", "image-from-known-registry"),
        _pod("containers", 0, "image", value="trainyard/controller:0.1.0"),
    ),
    Variant(
        "a namespace without a level",
        "dev",
        "Namespace",
        "training",
        ("namespace-pod-security",),
        _drop("metadata", "labels", "pod-security.kubernetes.io/enforce"),
    ),
    Variant(
        "a controller on the machine's network",
        "prod",
        "Deployment",
        "elastic-controller",
        ("no-host-access",),
        _pod("hostNetwork", value=True),
    ),
    Variant(
        "an autoscaler as root",
        "prod",
        "Deployment",
        "cluster-autoscaler",
        ("pod-runs-restricted",),
        _pod("securityContext", "runAsNonRoot", value=False),
    ),
    Variant(
        "a password in the environment",
        "dev",
        "Deployment",
        "elastic-controller",
        ("no-secrets-in-pod-environment",),
        lambda props: props["spec"]["template"]["spec"]["containers"][0]["env"].append(
            {"name": "ETCD_PASSWORD", "value": "correct horse"}
        ),
    ),
    Variant(
        "no memory limit",
        "prod",
        "StatefulSet",
        "etcd",
        ("resources-set",),
        _pod("containers", 0, "resources", value={"requests": {"cpu": "1", "memory": "1Gi"}}),
    ),
    Variant(
        "a controller that lands on GPU machines",
        "prod",
        "Deployment",
        "elastic-controller",
        ("only-gpu-pods-tolerate-taint", "control-off-spot"),
        _pod("tolerations", value=_TOLERATE_ALL),
    ),
    # What keeps training alive, and what it costs.
    Variant(
        "two members of etcd on one machine",
        "prod",
        "StatefulSet",
        "etcd",
        ("etcd-durable",),
        _pod("affinity", value={}),
    ),
    Variant(
        "etcd that forgets", "dev", "StatefulSet", "etcd", ("etcd-durable",), _drop("spec", "volumeClaimTemplates")
    ),
    Variant(
        "a job that never ends",
        "dev",
        "Job",
        "etcd-certificates",
        ("job-ends",),
        _drop("spec", "activeDeadlineSeconds"),
    ),
    Variant(
        "a budget that stops every drain",
        "prod",
        "PodDisruptionBudget",
        "elastic-controller",
        ("replicated-has-budget",),
        _set("spec", "maxUnavailable", value=0),
    ),
    Variant(
        "a zero too many",
        "dev",
        _NODES,
        "gpu-spot-nodes",
        ("gpu-count-capped", "cost-per-hour-capped"),
        _set("scalingConfig", "maxSize", value=40),
        of_stack=True,
    ),
    Variant(
        "a budget that nobody hears of", "prod", "Budget", "budget", ("budget-exists",), _set("notifications", value=[])
    ),
)
