"""The Pulumi program: from a stack's settings to its resources. Reads like a table of contents."""

import sys
from pathlib import Path

# The engine puts this folder first on sys.path; the rooms are imported as `infra.…`, from the checkout.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

# ruff: noqa: E402 - imports can only work after the line above
import pulumi

from infra.clusters import CHECKOUT
from infra.errors import TrainyardError
from infra.in_cluster.elastic_controller import ElasticController
from infra.in_cluster.etcd import Etcd
from infra.in_cluster.namespaces import Namespaces
from infra.in_cluster.pods import OwnPods
from infra.in_cluster.scheduling import Priorities
from infra.in_cluster.storage_claims import CheckpointClaim
from infra.parts import part_of_run
from infra.settings import from_engine
from infra.targets import registry_alone, target_of
from infra.wiring.storage import storage_of


def main() -> dict[str, object]:
    """Declare everything that the stack consists of; its outputs."""
    stack, (part, alone) = pulumi.get_stack(), part_of_run()
    settings = from_engine(pulumi.runtime.config.CONFIG.get(), stack, CHECKOUT, need_images=part is None)
    if part == "registry" and alone:
        return registry_alone(settings, stack)
    target = target_of(settings, stack)
    there = pulumi.ResourceOptions(provider=target.provider)
    storage, images, controller = storage_of(settings), settings.images, settings.images.controller

    names = Namespaces("namespaces", training=settings.namespace, opts=there)
    priorities, jobs = Priorities("priorities", opts=there), names.training
    classes = target.storage_classes(storage)
    claim = CheckpointClaim("checkpoints", namespace=jobs, volume=storage.checkpoints, classes=classes, opts=there)

    pods = OwnPods(namespace=names.system, jobs=jobs, **target.own_pods)
    after = pulumi.ResourceOptions(provider=target.provider, depends_on=[priorities])
    members, volume = settings.etcd.members, storage.etcd
    keeper = controller if settings.etcd.secure else None
    etcd = Etcd(
        "etcd", pods=pods, image=images.etcd, volume=volume, classes=classes, members=members, keeper=keeper, opts=after
    )
    login = etcd.login
    features = settings.controller.model_dump()
    ElasticController("elastic-controller", pods=pods, image=controller, login=login, **features, opts=after)
    target.machines(pods)

    return {**target.exports, "namespace": jobs, "rdzvEndpoint": etcd.endpoint, "checkpointClaim": claim.claim}


try:
    for name, value in main().items():
        pulumi.export(name, value)
except TrainyardError as error:
    raise pulumi.RunError(str(error)) from None
