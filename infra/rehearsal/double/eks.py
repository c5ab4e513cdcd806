"""EKS clusters. moto keeps them, but not all of their settings: what it lacks is in the book."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from infra.rehearsal.double.aws import Aws, AwsRefusedError
from infra.rehearsal.double.ec2_resource import GONE
from infra.rehearsal.double.eks_common import (
    ABSENT,
    ACCESS_ENTRIES,
    ACCESS_POLICIES,
    ADDONS,
    CLUSTERS,
    POD_IDENTITIES,
    authentication_mode,
    now,
    retag,
    role_rules,
    zones_of,
)
from infra.rehearsal.double.kind import Call, Failure, Kind, Made, only, whole_or_gone
from infra.rehearsal.double.values import UNKNOWN, has_unknown, is_known

_MODES = ("CONFIG_MAP", "API_AND_CONFIG_MAP", "API")


class Cluster(Kind):
    """The control plane: in a rehearsal the real API server of the connection."""

    token = "aws:eks/cluster:Cluster"  # noqa: S105
    replace_on = frozenset({
        "accessConfig.bootstrapClusterCreatorAdminPermissions", "bootstrapSelfManagedAddons",
        "kubernetesNetworkConfig", "name", "roleArn",
    })  # fmt: skip
    computed = frozenset({
        "certificateAuthority", "createdAt", "endpoint", "identities", "platformVersion", "status",
        "vpcConfig.clusterSecurityGroupId", "vpcConfig.vpcId",
    })  # fmt: skip

    def requests(self, inputs: Mapping[str, Any]) -> list[Call]:  # noqa: D102
        encryption = inputs.get("encryptionConfig")
        request = only(
            name=inputs.get("name"),
            version=inputs.get("version"),
            roleArn=inputs.get("roleArn"),
            resourcesVpcConfig=_vpc_request(inputs),
            kubernetesNetworkConfig=inputs.get("kubernetesNetworkConfig"),
            logging=_logging(inputs),
            encryptionConfig=encryption if encryption is None or encryption is UNKNOWN else [encryption],
            accessConfig=inputs.get("accessConfig"),
            bootstrapSelfManagedAddons=inputs.get("bootstrapSelfManagedAddons"),
            upgradePolicy=inputs.get("upgradePolicy"),
            zonalShiftConfig=inputs.get("zonalShiftConfig"),
            deletionProtection=inputs.get("deletionProtection"),
            tags=inputs.get("tags") or None,  # AWS takes no empty ones
        )
        names = {"resourcesVpcConfig": "vpcConfig", "logging": "enabledClusterLogTypes"}
        return [Call("eks", "CreateCluster", request, names)]

    def rules(self, inputs: Mapping[str, Any], aws: Aws) -> Iterable[Failure]:  # noqa: D102
        network = inputs.get("vpcConfig") or {}
        subnets = network.get("subnetIds")
        zones = zones_of(aws, subnets)
        if (subnets is not None and subnets is not UNKNOWN and len(subnets) < 2) or (zones and len(set(zones)) < 2):
            yield Failure("vpcConfig.subnetIds", "a cluster needs subnets in at least two availability zones")
        if network.get("endpointPublicAccess") is False and network.get("endpointPrivateAccess", False) is False:
            yield Failure("vpcConfig", "the API must be reachable in one way at least: public or private")
        version = inputs.get("version")
        if isinstance(version, str) and not re.fullmatch(r"1\.\d+", version):
            yield Failure("version", f"{version} is no minor version of Kubernetes, e.g. 1.36")
        resources = (inputs.get("encryptionConfig") or {}).get("resources", ["secrets"])
        if not has_unknown(resources) and list(resources) != ["secrets"]:
            yield Failure("encryptionConfig.resources", "EKS encrypts secrets and nothing else")
        yield from role_rules(aws, "roleArn", inputs.get("roleArn"))

    def replaces(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[str]:
        """Encryption of secrets by a key can be added, and never be taken away."""
        if old.get("encryptionConfig") is not None and new.get("encryptionConfig") is None:
            yield "encryptionConfig"

    def changes(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[Failure]:
        """Upgrades go one minor version at a time, never back; so do the ways of knowing people. The key stays."""
        had, wants = (_key_of(side) for side in (old, new))
        if is_known(had) and is_known(wants) and had != wants:
            yield Failure(
                "encryptionConfig.provider.keyArn",
                f"a cluster keeps the key that encrypts its secrets, {had}; AWS's provider would change nothing."
                " Leave the key, or give the cluster another name: it is then made anew",
            )
        had, wanted = minor_of(old.get("version")), minor_of(new.get("version"))
        if had is not None and wanted is not None and wanted not in {had, had + 1}:
            yield Failure(
                "version",
                f"Kubernetes goes up one minor version at a time and never back, not from {old['version']} to"
                f" {new['version']}",
            )
        before, after = authentication_mode(old), authentication_mode(new)
        if {before, after} <= set(_MODES) and _MODES.index(after) < _MODES.index(before):
            yield Failure("accessConfig.authenticationMode", f"it cannot go back from {before} to {after}")

    def known(self, inputs: Mapping[str, Any], aws: Aws) -> Mapping[str, Any]:  # noqa: D102
        name = inputs.get("name")
        return {"arn": name if name is UNKNOWN else aws.arn("eks", f"cluster/{name}")}

    def create(self, aws: Aws, name: str, inputs: Mapping[str, Any]) -> Made:  # noqa: ARG002, D102
        vpc = _vpc_of(aws, inputs)
        made = aws.run(self.requests(inputs)[0])["cluster"]
        with whole_or_gone(self, aws, inputs["name"], {}):
            group = _cluster_security_group(aws, inputs["name"], vpc, made["version"])
        outputs = {
            "arn": made["arn"],
            "endpoint": aws.connection.server,
            "certificateAuthority": {"data": aws.connection.certificate_authority},
            "identities": [{"oidcs": [{"issuer": _issuer(aws, inputs["name"])}]}],
            "createdAt": now(),
            "platformVersion": "eks.1",
            "status": "ACTIVE",
            "version": made["version"],
            "vpcConfig": {
                **inputs["vpcConfig"],
                "clusterSecurityGroupId": group,
                "vpcId": vpc,
            },
        }
        aws.book.put(CLUSTERS, inputs["name"], {**inputs, **outputs})
        return Made(inputs["name"], outputs)

    def read(self, aws: Aws, id: str, state: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: A002, ARG002, D102
        answer = aws.call("eks", "DescribeCluster", absent=ABSENT, name=id)
        record = aws.book.get(CLUSTERS, id)
        return {**record, "tags": answer["cluster"].get("tags", {})} if answer and record else None

    def update(self, aws: Aws, id: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: A002
        """EKS changes one thing at a time: network, logs, access, version, each with a call of its own."""
        network = self._network(aws, old, new)
        if _vpc_request(old) != _vpc_request(new):
            aws.call("eks", "UpdateClusterConfig", name=id, resourcesVpcConfig=_vpc_request(new))
        if old.get("enabledClusterLogTypes") != new.get("enabledClusterLogTypes"):
            types = [kind for kind in old.get("enabledClusterLogTypes") or [] if kind not in _log_types(new)]
            wanted = [{"types": list(_log_types(new)), "enabled": True}, {"types": types, "enabled": False}]
            logging = {"clusterLogging": [entry for entry in wanted if entry["types"]]}
            aws.call("eks", "UpdateClusterConfig", name=id, logging=logging)
        # moto has no operation for these; the requests must be right all the same.
        if authentication_mode(old) != authentication_mode(new):
            mode = {"authenticationMode": authentication_mode(new)}
            aws.checked("eks", "UpdateClusterConfig", name=id, accessConfig=mode)
        if old.get("encryptionConfig") is None and (encryption := new.get("encryptionConfig")) is not None:
            aws.checked("eks", "AssociateEncryptionConfig", clusterName=id, encryptionConfig=[encryption])
        for key in ("upgradePolicy", "zonalShiftConfig", "deletionProtection"):
            if old.get(key) != new.get(key):
                aws.checked("eks", "UpdateClusterConfig", name=id, **{key: new.get(key)})
        if old.get("version") != new.get("version"):
            aws.checked("eks", "UpdateClusterVersion", name=id, version=new.get("version"))
        retag(aws, old["arn"], old, new)
        record = aws.book.get(CLUSTERS, id) or {}
        aws.book.put(CLUSTERS, id, {**record, **new, "vpcConfig": network})
        return {"vpcConfig": network}

    def delete(self, aws: Aws, id: str, state: Mapping[str, Any]) -> None:  # noqa: A002
        """With the cluster go its security group, add-ons and access entries; node groups must be gone."""
        if state.get("deletionProtection"):
            raise AwsRefusedError(
                f"AWS refuses to delete cluster {id}: deletionProtection is on. Switch it off and apply that first:"
                " pulumi config set --path trainyard:aws.protect false"
            )
        aws.call("eks", "DeleteCluster", absent=ABSENT, name=id)
        group = (state.get("vpcConfig") or {}).get("clusterSecurityGroupId")
        if group:
            aws.call("ec2", "DeleteSecurityGroup", absent=GONE, GroupId=group)
        for kind in (ADDONS, ACCESS_ENTRIES, ACCESS_POLICIES, POD_IDENTITIES):
            for key, record in aws.book.all(kind).items():
                if record["clusterName"] == id:
                    aws.book.drop(kind, key)
        aws.book.drop(CLUSTERS, id)

    @staticmethod
    def _network(aws: Aws, old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: old["vpcConfig"].get(key) for key in ("clusterSecurityGroupId", "vpcId")}
        if (vpc := _vpc_of(aws, new)) != kept["vpcId"]:
            raise AwsRefusedError(
                f"AWS would refuse this: a cluster stays in its VPC {kept['vpcId']}, and the subnets are in {vpc}."
                " Give the cluster another name: it is then made anew"
            )
        return {**new["vpcConfig"], **kept}


def _cluster_security_group(aws: Aws, cluster: str, vpc: str, version: str) -> str:
    """The group that EKS makes for the control plane and the machines: everything within, everything out."""
    number = int(hashlib.sha256(f"{cluster}/{vpc}".encode()).hexdigest()[:8], 16)
    name = f"eks-cluster-sg-{cluster}-{number}"
    tags = {"Name": name, f"kubernetes.io/cluster/{cluster}": "owned", "aws:eks:cluster-name": cluster}
    group: str = aws.call(
        "ec2",
        "CreateSecurityGroup",
        GroupName=name,
        Description="EKS created security group applied to ENI that is attached to EKS Control Plane master nodes",
        VpcId=vpc,
        TagSpecifications=[
            {"ResourceType": "security-group", "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
        ],
    )["GroupId"]
    within = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    aws.call("ec2", "AuthorizeSecurityGroupIngress", GroupId=group, IpPermissions=within)
    if (minor_of(version) or 0) >= 33:  # since 1.33 EKS adds this, without which EFA fails (eksctl PR 8509)
        aws.call("ec2", "AuthorizeSecurityGroupEgress", GroupId=group, IpPermissions=within)
    return group


def minor_of(version: Any) -> int | None:
    """The minor version of `1.35`; None where it is not known or not of this form."""
    found = re.fullmatch(r"1\.(\d+)", version) if isinstance(version, str) else None
    return int(found[1]) if found else None


def _key_of(inputs: Mapping[str, Any]) -> Any:
    return ((inputs.get("encryptionConfig") or {}).get("provider") or {}).get("keyArn")


def _vpc_request(inputs: Mapping[str, Any]) -> Any:
    network = inputs.get("vpcConfig")
    if not isinstance(network, Mapping):
        return network
    computed = {"clusterSecurityGroupId", "vpcId"}
    return {key: value for key, value in network.items() if key not in computed and value is not None}


def _vpc_of(aws: Aws, inputs: Mapping[str, Any]) -> str:
    ids = inputs["vpcConfig"]["subnetIds"]
    answer = aws.call("ec2", "DescribeSubnets", absent=GONE, SubnetIds=ids)
    if answer is None:
        raise AwsRefusedError(
            f"AWS would refuse this: not all of the subnets {', '.join(ids)} exist. A rehearsal has only what its stack"
            " makes: to rehearse, leave out trainyard:aws.network.vpcId and privateSubnets"
        )
    vpcs = sorted({subnet["VpcId"] for subnet in answer["Subnets"]})
    if len(vpcs) != 1:
        raise AwsRefusedError(
            f"AWS would refuse this: the cluster's subnets are in {' and '.join(vpcs)}, not in one VPC"
        )
    return str(vpcs[0])


def _logging(inputs: Mapping[str, Any]) -> Any:
    types = inputs.get("enabledClusterLogTypes")
    return types if types is None or types is UNKNOWN else {"clusterLogging": [{"types": types, "enabled": True}]}


def _log_types(inputs: Mapping[str, Any]) -> Iterable[str]:
    return inputs.get("enabledClusterLogTypes") or ()


def _issuer(aws: Aws, cluster: str) -> str:
    digest = hashlib.sha256(f"{aws.account}/{aws.region}/{cluster}".encode()).hexdigest()[:32].upper()
    return f"https://oidc.eks.{aws.region}.{aws.dns_suffix}/id/{digest}"


KINDS: tuple[Kind, ...] = (Cluster(),)
