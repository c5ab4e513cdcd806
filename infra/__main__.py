"""The Pulumi program: from a stack's settings to its resources. Reads like a table of contents."""

import sys
from pathlib import Path

# The engine puts this folder first on sys.path; the rooms are imported as `infra.…`, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402 - imports can only work after the line above
import pulumi

from infra.errors import TrainyardError
from infra.in_cluster.elastic_controller import ElasticController
from infra.in_cluster.etcd import Etcd
from infra.in_cluster.namespaces import Namespaces
from infra.in_cluster.pods import OwnPods
from infra.in_cluster.scheduling import Priorities
from infra.in_cluster.storage_claims import CheckpointClaim
from infra.settings import from_engine
from infra.targets import target_of
from infra.wiring.storage import storage_of


def main() -> None:
    """Declare everything that the stack consists of."""
    settings = from_engine(pulumi.runtime.config.CONFIG.get(), pulumi.get_stack())
    target = target_of(settings, pulumi.get_stack())
    there = pulumi.ResourceOptions(provider=target.provider)
    storage, images = storage_of(settings), settings.images

    names = Namespaces("namespaces", training=settings.namespace, opts=there)
    priorities = Priorities("priorities", opts=there)
    classes = target.storage_classes(storage)
    claim = CheckpointClaim(
        "checkpoints", namespace=names.training, volume=storage.checkpoints, classes=classes, opts=there
    )

    pods = OwnPods(namespace=names.system, jobs=names.training, **target.own_pods)
    after = pulumi.ResourceOptions(provider=target.provider, depends_on=[priorities])
    members, volume = settings.etcd.members, storage.etcd
    keeper = images.controller if settings.etcd.secure else None
    etcd = Etcd(
        "etcd", pods=pods, image=images.etcd, volume=volume, classes=classes, members=members, keeper=keeper, opts=after
    )
    replicas, login = settings.controller.replicas, etcd.login
    ElasticController(
        "elastic-controller", pods=pods, image=images.controller, replicas=replicas, login=login, opts=after
    )
    target.machines(pods)

    outputs = {"namespace": names.training, "rdzvEndpoint": etcd.endpoint, "checkpointClaim": claim.claim}
    for name, value in {**target.exports, **outputs}.items():
        pulumi.export(name, value)


try:
    main()
except TrainyardError as error:
    raise pulumi.RunError(str(error)) from None
