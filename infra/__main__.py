"""The Pulumi program: from a stack's settings to its resources. Reads like a table of contents."""

from __future__ import annotations

import sys
from pathlib import Path

# The engine puts this folder first on sys.path; the rooms are imported as `infra.…`, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402 - imports can only work after the line above
import pulumi
import pulumi_kubernetes as kubernetes

from infra.clusters import kubeconfig_of
from infra.errors import TrainyardError
from infra.in_cluster.elastic_controller import ElasticController
from infra.in_cluster.etcd import Etcd
from infra.in_cluster.namespaces import Namespaces
from infra.in_cluster.pods import OwnPods
from infra.in_cluster.scheduling import Priorities
from infra.in_cluster.storage_claims import CheckpointClaim, LocalStorageClasses
from infra.settings import from_engine
from infra.wiring.naming import dns_policy
from infra.wiring.storage import storage_of


def main() -> None:
    """Declare everything that the stack consists of."""
    settings = from_engine(pulumi.runtime.config.CONFIG.get(), pulumi.get_stack())
    access = kubeconfig_of(settings, pulumi.get_stack())
    cluster = kubernetes.Provider("cluster", kubeconfig=str(access.path), context=access.context)
    there = pulumi.ResourceOptions(provider=cluster)
    storage, images = storage_of(settings), settings.images

    names = Namespaces("namespaces", training=settings.namespace, opts=there)
    priorities = Priorities("priorities", opts=there)
    classes = LocalStorageClasses("storage-classes", names=storage.own_classes, opts=there)
    claim = CheckpointClaim(
        "checkpoints", namespace=names.training, volume=storage.checkpoints, classes=classes, opts=there
    )

    pods = OwnPods(namespace=names.system, dns_policy=dns_policy(settings.target))
    after = pulumi.ResourceOptions(provider=cluster, depends_on=[priorities])
    etcd = Etcd("etcd", pods=pods, image=images.etcd, volume=storage.etcd, classes=classes, opts=after)
    ElasticController(
        "elastic-controller", pods=pods, image=images.controller, replicas=settings.controller.replicas, opts=after
    )

    pulumi.export("kubeconfig", str(access.path))
    pulumi.export("namespace", names.training)
    pulumi.export("rdzvEndpoint", etcd.endpoint)
    pulumi.export("checkpointClaim", claim.claim)


try:
    main()
except TrainyardError as error:
    raise pulumi.RunError(str(error)) from None
