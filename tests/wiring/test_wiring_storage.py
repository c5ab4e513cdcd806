"""Each volume gets a class that the target has."""

from __future__ import annotations

from infra.settings import Checkpoints, Etcd, Settings
from infra.wiring.naming import dns_policy
from infra.wiring.storage import storage_of


def test_the_local_stack_brings_a_class_for_each_volume() -> None:
    storage = storage_of(Settings(target="local"))
    assert storage.own_classes == (storage.etcd.storage_class, storage.checkpoints.storage_class)
    assert (storage.etcd.access_mode, storage.checkpoints.access_mode) == ("ReadWriteOnce", "ReadWriteMany")


def test_an_existing_cluster_is_asked_for_its_default_classes_or_for_those_that_the_stack_names() -> None:
    etcd, checkpoints = Etcd(storage_class="fast"), Checkpoints(storage_class="nfs")
    default = storage_of(Settings(target="kubeconfig"))
    named = storage_of(Settings(target="kubeconfig", etcd=etcd, checkpoints=checkpoints))
    assert (default.etcd.storage_class, default.checkpoints.storage_class) == (None, None)
    assert (named.etcd.storage_class, named.checkpoints.storage_class) == ("fast", "nfs")
    assert default.own_classes == named.own_classes == ()


def test_shared_volumes_can_be_had_of_a_class_that_serves_one_node() -> None:
    settings = Settings(target="kubeconfig", checkpoints=Checkpoints(access_mode="ReadWriteOnce"))
    assert storage_of(settings).checkpoints.access_mode == "ReadWriteOnce"


def test_only_the_local_cluster_has_no_cluster_dns() -> None:
    assert (dns_policy("local"), dns_policy("kubeconfig")) == ("Default", "ClusterFirst")
