"""Who may do what: the roles of the control plane, of the machines, and of pods.

Pods get their rights by EKS Pod Identity, each service account a role of its own; the machines' role is left with what
the kubelet needs to join and to pull images. So a training pod that reaches the metadata service finds little there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pulumi
from pulumi_aws.eks import PodIdentityAssociation
from pulumi_aws.iam import Role, RolePolicy, RolePolicyAttachment

from infra.aws.account import Account, Statement, document, trust


class Identity(pulumi.ComponentResource):
    """The two roles that a cluster begins with."""

    cluster_role_arn: pulumi.Output[str]
    node_role_arn: pulumi.Output[str]
    attachments: list[pulumi.Resource]
    """Without these the roles are empty: cluster and machines come after them, and go before them."""

    def __init__(self, name: str, *, cluster: str, account: Account, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainyard:aws:Identity", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, delete_before_replace=True)  # names are taken once
        control_plane = Role(
            "control-plane",
            name=f"{cluster}-control-plane",
            description=f"The control plane of cluster {cluster}",
            assume_role_policy=trust("eks.amazonaws.com"),
            opts=child,
        )
        machines = Role(
            "node",
            name=f"{cluster}-node",
            description=f"The machines of cluster {cluster}: join and pull images, nothing else",
            assume_role_policy=trust(pulumi.Output.concat("ec2.", account.dns_suffix)),
            opts=child,
        )
        self.attachments = [
            *_attached("control-plane", control_plane, account, ("AmazonEKSClusterPolicy",), child),
            *_attached(
                "node",
                machines,
                account,
                ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly"),
                child,
            ),
        ]
        self.cluster_role_arn, self.node_role_arn = control_plane.arn, machines.arn
        self.register_outputs({"clusterRoleArn": control_plane.arn, "nodeRoleArn": machines.arn})


class PodRole(pulumi.ComponentResource):
    """A role that pods take on by Pod Identity: EKS's agent hands out its credentials, no key is kept anywhere."""

    arn: pulumi.Output[str]
    rights: list[pulumi.Resource]
    """What the role may do; pods that need it come after these."""

    def __init__(
        self,
        name: str,
        *,
        cluster: str,
        use: str,
        account: Account,
        aws_policies: Sequence[str] = (),
        policies: Mapping[str, Sequence[Statement]] | None = None,
        opts: pulumi.ResourceOptions,
    ) -> None:
        """Make the role `<cluster>-<use>`.

        Args:
            name: logical name.
            cluster: the cluster's name; with `use` at most 64 characters, IAM's limit.
            use: what the role is for, in a word: `autoscaler`.
            account: where the role is made.
            aws_policies: policies that AWS keeps, by name.
            policies: policies of the role's own, by name.
            opts: the component's options.
        """
        super().__init__("trainyard:aws:PodRole", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, delete_before_replace=True)  # names are taken once
        role = Role(
            use,
            name=f"{cluster}-{use}",
            description=f"Pods of cluster {cluster}: {use}",
            assume_role_policy=trust("pods.eks.amazonaws.com", actions=("sts:AssumeRole", "sts:TagSession")),
            opts=child,
        )
        self.rights = [
            *_attached(use, role, account, aws_policies, child),
            *(
                RolePolicy(f"{use}-{policy}", name=policy, role=role.name, policy=document(statements), opts=child)
                for policy, statements in (policies or {}).items()
            ),
        ]
        self.arn, self._use = role.arn, use
        self.register_outputs({"arn": role.arn})

    def of(
        self, service_account: str, *, cluster_name: pulumi.Input[str], namespace: pulumi.Input[str]
    ) -> PodIdentityAssociation:
        """Give the role to a service account; the account itself need not exist yet."""
        return PodIdentityAssociation(
            f"{self._use}-{service_account}",
            cluster_name=cluster_name,
            namespace=namespace,
            service_account=service_account,
            role_arn=self.arn,
            opts=pulumi.ResourceOptions(parent=self, depends_on=self.rights),
        )


def autoscaler_rights(cluster: str, account: Account) -> list[Statement]:
    """What the cluster autoscaler needs: look at everything, change only the groups of this cluster.

    Without `eks:DescribeNodegroup` a group of no machines has neither labels nor taints for it, and is never scaled up.
    The calls that only look and that AWS does not limit to resources stand on `*`.
    """
    owned = {
        "aws:ResourceTag/k8s.io/cluster-autoscaler/enabled": "true",
        f"aws:ResourceTag/k8s.io/cluster-autoscaler/{cluster}": "owned",
    }
    return [
        {
            "Sid": "Look",
            "Effect": "Allow",
            "Action": [
                "autoscaling:DescribeAutoScalingGroups",
                "autoscaling:DescribeAutoScalingInstances",
                "autoscaling:DescribeLaunchConfigurations",
                "autoscaling:DescribeScalingActivities",
                "autoscaling:DescribeTags",
                "ec2:DescribeImages",
                "ec2:DescribeInstanceTypes",
                "ec2:DescribeLaunchTemplateVersions",
                "ec2:GetInstanceTypesFromInstanceRequirements",
            ],
            "Resource": "*",
        },
        {
            "Sid": "LookAtNodeGroups",
            "Effect": "Allow",
            "Action": ["eks:DescribeNodegroup"],
            "Resource": account.arn("eks", f"nodegroup/{cluster}/*"),
        },
        {
            "Sid": "ScaleOwnGroups",
            "Effect": "Allow",
            "Action": ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"],
            "Resource": account.arn("autoscaling", "autoScalingGroup:*:autoScalingGroupName/*"),
            "Condition": {"StringEquals": owned},
        },
    ]


def _attached(
    prefix: str, role: Role, account: Account, policies: Sequence[str], opts: pulumi.ResourceOptions
) -> list[pulumi.Resource]:
    return [
        RolePolicyAttachment(
            f"{prefix}-{policy.rsplit('/', 1)[-1]}", role=role.name, policy_arn=account.aws_policy(policy), opts=opts
        )
        for policy in policies
    ]
