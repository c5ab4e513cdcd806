"""What differs between the targets: how the program reaches the cluster, its storage, and what only its machines need.

Everything else is the same in every cluster, see `infra.__main__`.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import pulumi
import pulumi_kubernetes as kubernetes

from infra.clusters import kubeconfig_of
from infra.errors import UsageError
from infra.in_cluster.pods import OwnPods
from infra.in_cluster.storage_claims import LocalStorageClasses, StorageClasses
from infra.settings import Settings
from infra.wiring.naming import dns_policy
from infra.wiring.storage import Storage


class Target(Protocol):
    """A cluster, and what belongs to it alone."""

    provider: kubernetes.Provider
    """Through which all objects in the cluster are made."""
    own_pods: Mapping[str, Any]
    """How Trainyard's own pods run there: arguments of `OwnPods`."""
    exports: Mapping[str, Any]
    """Outputs of the stack."""

    def storage_classes(self, storage: Storage) -> StorageClasses:
        """The classes and volumes that the stack brings."""

    def machines(self, pods: OwnPods) -> None:
        """Whatever looks after machines and queues."""


class GivenCluster:
    """A cluster that is there: the local one, which the command has started, or one by its kubeconfig."""

    def __init__(self, settings: Settings, stack: str) -> None:
        access = kubeconfig_of(settings, stack)
        self.provider = kubernetes.Provider("cluster", kubeconfig=str(access.path), context=access.context)
        self.own_pods: Mapping[str, Any] = {"dns_policy": dns_policy(settings.target)}
        self.exports: Mapping[str, Any] = {"kubeconfig": str(access.path)}

    def storage_classes(self, storage: Storage) -> StorageClasses:
        """Those of the local cluster; any other has its own."""
        there = pulumi.ResourceOptions(provider=self.provider)
        return LocalStorageClasses("storage-classes", names=storage.own_classes, opts=there)

    def machines(self, pods: OwnPods) -> None:
        """Nothing: its machines are there."""


def registry_alone(settings: Settings, stack: str) -> dict[str, object]:
    """Declare of an AWS stack only its registry with the key of that, see `infra.parts`; the outputs of the stack.

    Raises:
        UsageError: the target has no registry.
    """
    if settings.aws is None:
        raise UsageError(f"stack {stack} has target {settings.target}; only AWS stacks have a registry of their own")
    with _many_classes():
        from infra.aws.account import Account  # noqa: PLC0415
        from infra.aws.stack import RegistryAlone  # noqa: PLC0415

    account = Account.of(stack, settings.aws)
    return RegistryAlone("aws", settings=settings, aws=settings.aws, stack=stack, account=account).exports


def target_of(settings: Settings, stack: str) -> Target:
    """The target that the settings name.

    Raises:
        ClusterUnreachableError: a cluster that should be there is not.
    """
    if settings.aws is None:
        return GivenCluster(settings, stack)
    # Only now, so that the other targets do not wait for AWS's package.
    from infra.aws.account import Account  # noqa: PLC0415

    # Two seconds of imports, while AWS's plugin starts and answers.
    with _many_classes(), ThreadPoolExecutor(max_workers=1) as beside:
        module = beside.submit(importlib.import_module, "infra.aws.target")
        account = Account.of(stack, settings.aws)
        rooms = module.result()
    target: Target = rooms.AwsTarget(settings, settings.aws, stack, account)
    return target


@contextmanager
def _many_classes() -> Iterator[None]:
    """For imports that make classes by the thousand, which stay to the end.

    Python's garbage collector goes through all of them again and again while they are made, and once more when the
    program ends, and finds nothing: that was a quarter of the imports' time, and a second after the last resource.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.freeze()
