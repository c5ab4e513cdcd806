"""The control plane: an EKS cluster, its logs, and who has access."""

from __future__ import annotations

import json

import pulumi
from pulumi_aws.cloudwatch import LogGroup
from pulumi_aws.eks import (
    AccessEntry,
    AccessPolicyAssociation,
    AccessPolicyAssociationAccessScopeArgs,
    ClusterAccessConfigArgs,
    ClusterEncryptionConfigArgs,
    ClusterEncryptionConfigProviderArgs,
    ClusterUpgradePolicyArgs,
    ClusterVpcConfigArgs,
)
from pulumi_aws.eks import Cluster as EksCluster

from infra.aws.account import Account
from infra.aws.identity import Identity
from infra.aws.names import RESEARCHERS, control_plane_log_group
from infra.settings.aws import Aws, AwsAccess


class Cluster(pulumi.ComponentResource):
    """An EKS cluster whose rights come from access entries alone (no `aws-auth` ConfigMap)."""

    cluster: str
    """The cluster's name, as plain text: what is named after it."""
    name: pulumi.Output[str]
    """The same as an output: whoever uses it comes after the cluster."""
    version: pulumi.Output[str]
    """Minor version of Kubernetes, as an output for the same reason."""
    security_group_id: pulumi.Output[str]
    """The group that EKS makes: control plane and machines reach each other through it."""
    access: list[pulumi.Resource]
    """Entries of people; those who go on with the cluster come after them."""
    kubeconfig: pulumi.Output[str]
    """How to reach the cluster. No secret: whoever uses it logs in with AWS credentials of their own."""

    def __init__(
        self,
        name: str,
        *,
        cluster: str,
        version: str,
        aws: Aws,
        account: Account,
        identity: Identity,
        key_arn: pulumi.Input[str],
        subnet_ids: list[pulumi.Output[str]],
        jobs_namespace: str,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Make the cluster.

        Args:
            name: logical name.
            cluster: name of the cluster.
            version: minor version of Kubernetes.
            aws: the settings: endpoint, access, logs, protection.
            account: where it is made.
            identity: the role of the control plane.
            key_arn: key of Secrets and logs.
            subnet_ids: private subnets, in two zones at least.
            jobs_namespace: where researchers may work.
            opts: the component's options.
        """
        super().__init__("trainyard:aws:Cluster", name, None, opts)
        logs = LogGroup(
            "control-plane-logs",
            # Made before the cluster: EKS would make it, with logs that are kept for ever and without our key.
            name=control_plane_log_group(cluster),
            retention_in_days=aws.logs.retention_days,
            kms_key_id=key_arn,
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        eks = EksCluster(
            "cluster",
            name=cluster,
            version=version,
            role_arn=identity.cluster_role_arn,
            vpc_config=ClusterVpcConfigArgs(
                subnet_ids=subnet_ids,
                endpoint_private_access=True,
                endpoint_public_access=bool(aws.endpoint.public_cidrs),
                public_access_cidrs=list(aws.endpoint.public_cidrs) or None,
            ),
            access_config=ClusterAccessConfigArgs(
                authentication_mode="API",
                bootstrap_cluster_creator_admin_permissions=True,  # the program itself goes on inside the cluster
            ),
            encryption_config=ClusterEncryptionConfigArgs(
                provider=ClusterEncryptionConfigProviderArgs(key_arn=key_arn), resources=["secrets"]
            ),
            enabled_cluster_log_types=list(aws.logs.types),
            upgrade_policy=ClusterUpgradePolicyArgs(
                support_type="STANDARD"
            ),  # extended support costs six times as much
            bootstrap_self_managed_addons=False,  # all add-ons are EKS's own, by version
            deletion_protection=aws.protect,
            opts=pulumi.ResourceOptions(
                parent=self,
                protect=aws.protect,
                retain_on_delete=aws.protect,
                delete_before_replace=True,
                depends_on=[logs, *identity.attachments],
            ),
        )
        self.cluster, self.name, self.version = cluster, eks.name, eks.version
        self.security_group_id = eks.vpc_config.cluster_security_group_id
        self.access = _access(eks.name, aws.access, account, jobs_namespace, pulumi.ResourceOptions(parent=self))
        self.kubeconfig = pulumi.Output.all(
            name=eks.name, endpoint=eks.endpoint, certificate=eks.certificate_authority.data
        ).apply(lambda found: _kubeconfig(account.region, **found))
        self.register_outputs({"name": eks.name, "kubeconfig": self.kubeconfig})


def _access(
    cluster: pulumi.Output[str],
    access: AwsAccess,
    account: Account,
    jobs_namespace: str,
    child: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    made: list[pulumi.Resource] = []
    scopes = {
        "AmazonEKSClusterAdminPolicy": AccessPolicyAssociationAccessScopeArgs(type="cluster"),
        "AmazonEKSEditPolicy": AccessPolicyAssociationAccessScopeArgs(type="namespace", namespaces=[jobs_namespace]),
    }
    people: list[tuple[str, str, list[str] | None]] = [
        (arn, "AmazonEKSClusterAdminPolicy", None) for arn in access.administrators
    ]
    # EKS's policy for editors knows the objects of Kubernetes; what it does not know (ElasticJobs) comes by the group.
    people += [(arn, "AmazonEKSEditPolicy", [RESEARCHERS]) for arn in access.researchers]
    for arn, policy, groups in people:
        who = arn.split(":", 4)[-1]  # 123456789012:role/name
        entry = AccessEntry(
            f"access {who}", cluster_name=cluster, principal_arn=arn, kubernetes_groups=groups, opts=child
        )
        made.append(
            AccessPolicyAssociation(
                f"access {who} {policy}",
                cluster_name=cluster,
                principal_arn=entry.principal_arn,
                policy_arn=account.access_policy(policy),
                access_scope=scopes[policy],
                # There is one association of a principal and a policy: made anew before, it would then be deleted.
                opts=pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(delete_before_replace=True)),
            )
        )
    return made


def _kubeconfig(region: str, *, name: str, endpoint: str, certificate: str) -> str:
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1",
            "command": "aws",
            "args": ["eks", "get-token", "--region", region, "--cluster-name", name, "--output", "json"],
            "interactiveMode": "Never",
        }
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": endpoint, "certificate-authority-data": certificate}}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        indent=2,
    )
