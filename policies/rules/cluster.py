"""The control plane: who reaches it, what it writes down, which Kubernetes it runs."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from policies.catalogue import kubernetes_versions
from policies.registry import Topic
from policies.rule import Resource, Setting, Settings

CLUSTER = "aws:eks/cluster:Cluster"
topic = Topic("EKS control plane")
_CIS = "CIS EKS Benchmark"


@topic.rule(
    "eks-endpoint-restricted",
    "The Kubernetes API answers to named networks only, or inside the VPC.",
    severity="critical",
    types=(CLUSTER,),
    frameworks=("CKV_AWS_38", "CKV_AWS_39", f"{_CIS} 5.4.1"),
    settings={"shortestPrefix": Setting(16, "Networks with a shorter prefix count as open to everybody.")},
    why="An API server that the whole internet reaches is one stolen token, or one flaw, away from your GPUs. Without "
    "publicAccessCidrs EKS takes 0.0.0.0/0.",
    wrong="""
cluster:
  type: aws:eks/cluster:Cluster
  properties:
    vpcConfig: {endpointPublicAccess: true, publicAccessCidrs: [0.0.0.0/0], subnetIds: [subnet-1, subnet-2]}
""",
    right="""
cluster:
  type: aws:eks/cluster:Cluster
  properties:
    vpcConfig: {endpointPublicAccess: true, publicAccessCidrs: [203.0.113.0/24], subnetIds: [subnet-1, subnet-2]}
""",
    steps="Name your office's or VPN's networks (trainyard:aws.endpoint.publicCidrs), or set "
    "vpcConfig.endpointPublicAccess to false.",
    references=("https://docs.aws.amazon.com/eks/latest/userguide/cluster-endpoint.html",),
)
def endpoint_restricted(cluster: Resource, settings: Settings) -> Iterator[str]:
    """A private endpoint, or CIDRs that are networks of somebody."""
    vpc = cluster.props.at("vpcConfig")
    if vpc.at("endpointPublicAccess").flag() is False:
        return
    cidrs = vpc.at("publicAccessCidrs")
    if not cidrs.items():
        yield "vpcConfig.publicAccessCidrs is not set, so that EKS opens the API to 0.0.0.0/0"
    for cidr in cidrs.items():
        if is_wide(cidr.text(), int(settings["shortestPrefix"])):
            yield f"{cidr.path} is {cidr.text() or 'no network'}: the API is open to everybody"


def is_wide(cidr: str, shortest: int) -> bool:
    """Whether a network is (nearly) everybody; what is no network counts as everybody."""
    try:
        network = ipaddress.ip_network(cidr, strict=False)
    except ValueError:
        return True
    return network.prefixlen < shortest


@topic.rule(
    "eks-secrets-encrypted",
    "Kubernetes Secrets are encrypted with a KMS key of yours.",
    severity="high",
    types=(CLUSTER,),
    frameworks=("CKV_AWS_58", f"{_CIS} 5.3.1"),
    presence=("keyArn",),
    why="Secrets hold the tokens of experiment trackers and registries. With a key of yours, access to them is logged "
    "and can be taken away; it cannot be switched on later without work.",
    wrong="""
cluster:
  type: aws:eks/cluster:Cluster
  properties: {name: training, vpcConfig: {endpointPublicAccess: false}}
""",
    right="""
key: {type: aws:kms/key:Key, properties: {enableKeyRotation: true}}
cluster:
  type: aws:eks/cluster:Cluster
  properties:
    encryptionConfig: {provider: {keyArn: "${key.arn}"}, resources: [secrets]}
""",
    steps="Set encryptionConfig with provider.keyArn and resources: [secrets].",
    references=("https://docs.aws.amazon.com/eks/latest/userguide/enable-kms.html",),
)
def secrets_encrypted(cluster: Resource, _: Settings) -> Iterator[str]:
    """A key, for secrets."""
    encryption = cluster.props.at("encryptionConfig")
    if not encryption.at("provider", "keyArn").is_set:
        yield "encryptionConfig.provider.keyArn is not set"
    elif "secrets" not in encryption.at("resources").texts():
        yield "encryptionConfig.resources does not name secrets"


@topic.rule(
    "eks-control-plane-logs",
    "The control plane writes the logs that an investigation needs.",
    severity="medium",
    level="advisory",
    types=(CLUSTER,),
    frameworks=("CKV_AWS_37", f"{_CIS} 2.1.1"),
    settings={"types": Setting(["api", "audit", "authenticator"], "Logs that must be on.", "array")},
    why="Who deleted the job, who was refused, who scaled the pool: after the fact only these logs tell.",
    wrong="""
cluster:
  type: aws:eks/cluster:Cluster
  properties: {enabledClusterLogTypes: [api]}
""",
    right="""
cluster:
  type: aws:eks/cluster:Cluster
  properties: {enabledClusterLogTypes: [api, audit, authenticator]}
""",
    steps="Add the missing ones to enabledClusterLogTypes (trainyard:aws.logs.types).",
    references=("https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html",),
)
def control_plane_logs(cluster: Resource, settings: Settings) -> Iterator[str]:
    """All that are asked for."""
    there = cluster.props.at("enabledClusterLogTypes").texts()
    if missing := [one for one in settings["types"] if one not in there]:
        yield f"enabledClusterLogTypes lacks {', '.join(missing)}"


@topic.rule(
    "eks-version-supported",
    "The cluster and its machines run a Kubernetes version that is named and supported.",
    severity="high",
    types=(CLUSTER, "aws:eks/nodeGroup:NodeGroup"),
    frameworks=("CKV_AWS_339",),
    settings={"allowed": Setting([], "Minors that are allowed; empty: those of the version lock.", "array")},
    why="A minor outside of standard support costs six times as much an hour and gets no image for new GPUs. One that "
    "is not named is whatever EKS takes for the newest on the day.",
    wrong="""
cluster:
  type: aws:eks/cluster:Cluster
  properties: {version: "1.27"}
""",
    right="""
cluster:
  type: aws:eks/cluster:Cluster
  properties: {version: "1.36"}
""",
    steps="Set version to one of the version lock (infra/catalog/versions.toml); go up one minor at a time.",
    references=("https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html",),
)
def version_supported(resource: Resource, settings: Settings) -> Iterator[str]:
    """One of the list; machines with an image of your own have the one that is in it, and EKS takes no other."""
    if resource.props.at("amiType").text() == "CUSTOM":
        return
    allowed = settings["allowed"] or kubernetes_versions()
    version = resource.props.at("version").text()
    if version not in allowed:
        yield f"version is {version or 'not set'}; allowed: {', '.join(allowed)}"
