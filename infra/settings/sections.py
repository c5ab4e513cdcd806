"""Everything that a stack file can say: the root and its sections. Those of `target: aws` are in aws.py."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from infra.settings.aws import Aws
from infra.settings.base import Name, Section, Size, Switch, Whole, Words
from infra.settings.images import Images
from infra.wiring.naming import TAKEN_NAMESPACES

Target = Literal["local", "kubeconfig", "aws"]
Capacity = Literal["on-demand", "spot"]
AccessMode = Literal["ReadWriteMany", "ReadWriteOnce"]

LOCAL_NODES_MAX = 250
"""Nodes of the local cluster: the third part of 127.A.number.0, see infra/local/nodes."""


def _free_namespace(value: str) -> str:
    if value in TAKEN_NAMESPACES:
        raise ValueError(
            f"must be a namespace of the jobs' own: the stack makes it, and {', '.join(TAKEN_NAMESPACES)}"
            " are there already or Trainyard's own"
        )
    return value


class NodePool(Section):
    """Machines of one kind."""

    name: Name
    """Also the value of the node label `trainyard.dev/pool`."""
    nodes: Annotated[int, Field(ge=0, le=100), Whole] = 1
    """How many machines the pool has; all pools together at most 250."""
    gpus_per_node: Annotated[int, Field(ge=0, le=16), Whole] = 0
    """GPUs of one machine, offered as `nvidia.com/gpu`. On the local target they are numbers, not devices."""
    cpus_per_node: Annotated[int, Field(ge=1, le=1024, examples=[4]), Whole] | None = None
    """CPUs offered to pods; absent: what the machine has."""
    memory_per_node: Size | None = None
    """Memory offered to pods; absent: what the machine has."""
    capacity: Capacity = "on-demand"
    """`spot` machines carry a taint that only workloads which survive a reclaim tolerate."""


class Etcd(Section):
    """The rendezvous store of the training jobs (not the store of the API server)."""

    storage: Size = "1Gi"
    """Size of the volume of each member."""
    storage_class: Words | None = None
    """StorageClass of its volume; absent: the cluster's default. Only for `target: kubeconfig`: the others bring their
    own."""
    members: Annotated[Literal[1, 3], Whole] = 1
    """How many; three keep the rendezvous through the loss of a machine. Absent: 3 with `target: aws`, else 1."""
    secure: Switch = False
    """TLS, and a user with a password for the jobs. Absent: true with `target: aws`, else false."""


class Checkpoints(Section):
    """The shared volume that jobs mount at /checkpoints."""

    size: Size = "10Gi"
    """Size of the volume. The local target and EFS do not enforce it; on Lustre it is the file system's."""
    storage_class: Words | None = None
    """StorageClass of the volume; absent: the cluster's default. Only for `target: kubeconfig`: the others bring their
    own."""
    access_mode: AccessMode = "ReadWriteMany"
    """`ReadWriteMany` lets workers on all nodes mount it, and needs a class that offers it (NFS, EFS, …). The default
    classes of kind, k3d and minikube do not: there `ReadWriteOnce` keeps all workers of a job on one node."""


class Controller(Section):
    """The ElasticJob controller."""

    replicas: Annotated[int, Field(ge=1, le=3), Whole] = 1
    """More than one: the others stand by, elected by a Lease."""
    gang_schedulers: tuple[Literal["volcano", "scheduler-plugins"], ...] = ()
    """Schedulers that jobs may ask for in `schedulingPolicy.scheduler`: the controller gets the rights to their
    PodGroups. The stack does not install them."""
    pytorch_jobs: Switch = False
    """Serve PyTorchJobs (`kubeflow.org/v1`) too, and bring their definition. Not where a training operator is
    installed, which brings its own."""


class Local(Section):
    """Only for `target: local`."""

    api_server_port: Annotated[int, Field(ge=1024, le=65535, examples=[6443]), Whole] | None = None
    """A fixed port for the API server; absent: a free one is chosen and kept."""


class Kubeconfig(Section):
    """Only for `target: kubeconfig`: a cluster that exists already (kind, k3d, minikube, any)."""

    path: Annotated[Words, Field(examples=["~/.kube/config"])]
    """Path of the kubeconfig file; `~` is expanded, a relative path begins at the folder of Pulumi.yaml."""
    context: Words | None = None
    """Context in that file; absent: its current one."""


def _pools_of(earlier: dict[str, Any]) -> tuple[NodePool, ...]:
    return (NodePool(name="system"),) if earlier.get("target") == "local" else ()


class Settings(Section):
    """Everything that a stack file can say."""

    target: Annotated[Target, Field(examples=["local"])]
    """Where the cluster is: `local` (this computer), `kubeconfig` (one that exists), `aws` (an EKS cluster, which the
    stack makes)."""
    namespace: Annotated[Name, AfterValidator(_free_namespace)] = "training"
    """Namespace of the training jobs; the stack makes it."""
    node_pools: tuple[NodePool, ...] = Field(default_factory=_pools_of)
    """Only for `target: local`: the machines, one kubelet each; absent: one pool `system` of one machine. A pool
    without GPUs that is not spot takes etcd and the controller."""
    etcd: Etcd = Field(default=Etcd(), validate_default=True)
    """The rendezvous store of the training jobs (not the store of the API server)."""
    checkpoints: Checkpoints = Checkpoints()
    """The shared volume that jobs mount at /checkpoints."""
    controller: Controller = Controller()
    """The ElasticJob controller."""
    images: Images = Images()
    """The torch of the training images, and what the stack's own pods run."""
    local: Local | None = None
    """Only for `target: local`."""
    kubeconfig: Kubeconfig | None = None
    """Only for `target: kubeconfig`."""
    aws: Aws | None = None
    """Only for `target: aws`."""

    @field_validator("etcd")
    @classmethod
    def _etcd_of_the_target(cls, etcd: Etcd, info: ValidationInfo) -> Etcd:
        if info.data.get("target") != "aws":
            return etcd
        usual: dict[str, Any] = {"members": 3, "secure": True}
        return etcd.model_copy(update={key: usual[key] for key in usual.keys() - etcd.model_fields_set})
