"""Which volumes a stack has, and of which StorageClasses: decided for each target in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infra.settings import Settings

BLOCK_CLASS = "trainyard-block"
SHARED_CLASS = "trainyard-shared"


@dataclass(frozen=True)
class Volume:
    """What a PersistentVolumeClaim asks for."""

    size: str
    access_mode: str
    storage_class: str | None
    """None: the cluster's default."""


@dataclass(frozen=True)
class Storage:
    """The volumes of a stack."""

    own_classes: tuple[str, ...]
    """StorageClasses that the stack brings itself; the local cluster has none but these."""
    etcd: Volume
    checkpoints: Volume


def storage_of(settings: Settings) -> Storage:
    """The volumes of a stack."""
    local = settings.target == "local"
    return Storage(
        own_classes=(BLOCK_CLASS, SHARED_CLASS) if local else (),
        etcd=Volume(
            size=settings.etcd.storage,
            access_mode="ReadWriteOnce",
            storage_class=BLOCK_CLASS if local else settings.etcd.storage_class,
        ),
        checkpoints=Volume(
            size=settings.checkpoints.size,
            access_mode=settings.checkpoints.access_mode,
            storage_class=SHARED_CLASS if local else settings.checkpoints.storage_class,
        ),
    )
