"""The Pulumi program: from a stack's settings to its resources. Reads like a table of contents."""

from __future__ import annotations

import sys
from pathlib import Path

# The engine puts this folder first on sys.path; the rooms are imported as `infra.…`, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402 - imports can only work after the line above
import pulumi
import pulumi_kubernetes as kubernetes

from infra import settings as stack_settings
from infra.clusters import kubeconfig_of
from infra.in_cluster.elastic_controller import ElasticController
from infra.in_cluster.etcd import Etcd
from infra.in_cluster.namespaces import Namespaces
from infra.in_cluster.scheduling import Priorities
from infra.in_cluster.storage_claims import CheckpointClaim, LocalStorageClasses


def main() -> None:
    """Declare everything that the stack consists of."""
    stack = pulumi.get_stack()
    settings = stack_settings.from_engine(pulumi.runtime.config.CONFIG.get(), stack)
    access = kubeconfig_of(settings, stack)
    cluster = kubernetes.Provider("cluster", kubeconfig=str(access.path), context=access.context)
    options = pulumi.ResourceOptions(provider=cluster)

    namespaces = Namespaces("namespaces", training=settings.namespace, opts=options)
    priorities = Priorities("priorities", opts=options)
    block: pulumi.Input[str] | None = settings.kubeconfig.storage_class if settings.kubeconfig else None
    shared = block
    if settings.target == "local":
        classes = LocalStorageClasses("storage-classes", opts=options)
        block, shared = classes.block, classes.shared

    checkpoints = CheckpointClaim(
        "checkpoints",
        namespace=namespaces.training,
        size=settings.checkpoints.size,
        storage_class=shared,
        opts=options,
    )
    etcd = Etcd(
        "etcd",
        namespace=namespaces.system,
        image=settings.images.etcd,
        storage=settings.etcd.storage,
        storage_class=block,
        opts=pulumi.ResourceOptions(provider=cluster, depends_on=[priorities]),
    )
    ElasticController(
        "elastic-controller",
        namespace=namespaces.system,
        image=settings.images.controller,
        replicas=settings.controller.replicas,
        opts=pulumi.ResourceOptions(provider=cluster, depends_on=[priorities]),
    )
    pulumi.export("kubeconfig", str(access.path))
    pulumi.export("namespace", namespaces.training)
    pulumi.export("rdzvEndpoint", etcd.endpoint)
    pulumi.export("checkpointClaim", checkpoints.claim)


try:
    main()
except stack_settings.SettingsError as mistakes:
    raise pulumi.RunError(str(mistakes)) from None
