"""Each volume gets a class that the target has."""

from __future__ import annotations

from infra.settings import Checkpoints, Etcd, Settings
from infra.settings.aws import AwsLustre, AwsNetwork, AwsStorage
from infra.wiring.naming import dns_policy
from infra.wiring.storage import BLOCK_CLASS, SHARED_CLASS, Volume, storage_of


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


# --- AWS ---


def on_aws(**fields: object) -> Settings:
    aws = {"region": "us-east-2", "network": AwsNetwork(zones=("us-east-2a", "us-east-2b")), **fields}
    return Settings.model_validate({"target": "aws", "aws": aws}, by_name=True)


LUSTRE = AwsLustre(zone="us-east-2a", capacity_gib=2400)


def test_disks_are_gp3_encrypted_and_made_where_their_pod_is() -> None:
    block = storage_of(on_aws()).classes[0]
    assert (block.name, block.provisioner, block.default, block.expansion) == (
        BLOCK_CLASS,
        "ebs.csi.aws.com",
        True,
        True,
    )
    assert block.parameters.items() >= {"type": "gp3", "encrypted": "true"}.items()
    assert (block.binding, block.needs) == ("WaitForFirstConsumer", ("kms-key",))


def test_etcd_is_on_disks_and_checkpoints_are_on_efs_where_nothing_else_is_said() -> None:
    storage = storage_of(on_aws())
    assert (storage.etcd.storage_class, storage.etcd.access_mode) == (BLOCK_CLASS, "ReadWriteOnce")
    assert (storage.checkpoints.storage_class, storage.checkpoints.access_mode) == (SHARED_CLASS, "ReadWriteMany")
    assert [each.name for each in storage.classes] == [BLOCK_CLASS, SHARED_CLASS]
    assert (storage.own_classes, storage.static_volumes) == ((), ())


def test_exactly_one_class_is_the_cluster_s_default() -> None:
    assert [each.default for each in storage_of(on_aws()).classes] == [True, False]


def test_switching_protection_changes_no_class_as_kubernetes_refuses_that() -> None:
    assert storage_of(on_aws(protect=True)).classes == storage_of(on_aws(protect=False)).classes


def test_checkpoints_on_lustre_take_the_stack_s_own_file_system_whole() -> None:
    storage = storage_of(on_aws(storage=AwsStorage(lustre=LUSTRE, efs=False, checkpoints="lustre")))
    (volume,) = storage.static_volumes
    assert (volume.driver, volume.size, volume.reclaim, volume.mount_options) == (
        "fsx.csi.aws.com",
        "2400Gi",
        "Retain",
        ("flock",),
    )
    # Or the kubelet would not heed the jobs' fsGroup, and only root could write; jobs mount it by the first mode.
    assert (volume.fs_type, volume.access_modes) == ("lustre", ("ReadWriteMany", "ReadWriteOnce"))
    # No class, not even the default one: the claim waits for this volume and no other.
    assert storage.checkpoints == Volume("2400Gi", "ReadWriteMany", "", volume_name=volume.name)
    assert [each.name for each in storage.classes] == [BLOCK_CLASS]


def test_lustre_for_data_sets_leaves_checkpoints_on_efs() -> None:
    storage = storage_of(on_aws(storage=AwsStorage(lustre=LUSTRE)))
    assert storage.checkpoints.storage_class == SHARED_CLASS
    assert len(storage.static_volumes) == 1
