"""Volumes of this computer: a folder for each claim, removed when its volume is released and the class says so.

All nodes are this computer, so one folder serves any number of pods on any nodes (ReadWriteMany). The size asked for
is recorded and not enforced.
"""

import logging
import shutil
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from lightkube import ApiError, Client
from lightkube.resources.core_v1 import Event, PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass

from infra.local.cloud import PROVISIONER

WANTED_BY = "volume.kubernetes.io/storage-provisioner"  # set by the controller manager when it's our turn
MADE_BY = "pv.kubernetes.io/provisioned-by"
# Any user of a container may write, as in a fresh volume of a shared file system; the state folder above it is 0700,
# so other users of the computer can't get here.
FOLDER_MODE = 0o777
_DELETING = ".deleting-"

log = logging.getLogger(__name__)


class Volumes:
    """The provisioner, with its folders under `root`."""

    def __init__(self, client: Client, root: Path) -> None:
        self._client = client
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in root.glob(f"{_DELETING}*"):
            self._remove(left)

    def provision(self, claim: PersistentVolumeClaim) -> None:
        """Give a claim its volume, when it waits for one of ours."""
        found = claim.to_dict()
        metadata, spec = found["metadata"], found["spec"]
        wanted = (metadata.get("annotations") or {}).get(WANTED_BY)
        if wanted != PROVISIONER or spec.get("volumeName") or metadata.get("deletionTimestamp"):
            return
        if spec.get("volumeMode", "Filesystem") != "Filesystem":
            self._say(found, "Warning", "ProvisioningFailed", "only volumes with a file system exist on this computer")
            return
        storage = self._client.get(StorageClass, str(spec.get("storageClassName")))
        folder = self._root / folder_name(metadata)
        folder.mkdir(exist_ok=True)
        folder.chmod(FOLDER_MODE)
        volume = volume_for(found, str(storage.reclaimPolicy or "Delete"), list(storage.mountOptions or ()), folder)
        try:
            self._client.create(cast(PersistentVolume, PersistentVolume.from_dict(volume)))
        except ApiError as error:
            if error.status.reason != "AlreadyExists":
                raise
            return
        self._say(found, "Normal", "ProvisioningSucceeded", f"volume {volume['metadata']['name']} is {folder}")

    def reclaim(self, volume: PersistentVolume) -> None:
        """Remove a released volume with its folder, when it is one of ours and its policy is Delete."""
        found = volume.to_dict()
        metadata, spec = found["metadata"], found["spec"]
        ours = (metadata.get("annotations") or {}).get(MADE_BY) == PROVISIONER
        released = (found.get("status") or {}).get("phase") == "Released"
        if not (ours and released and spec.get("persistentVolumeReclaimPolicy") == "Delete"):
            return
        if metadata.get("deletionTimestamp"):
            return
        folder = Path((spec.get("hostPath") or {}).get("path", ""))
        # The object may have been edited: nothing outside our own folder is ever removed.
        if folder.parent == self._root and folder.name == folder_name(spec["claimRef"]) and folder.is_dir():
            doomed = self._root / f"{_DELETING}{folder.name}"
            folder.rename(doomed)
            self._remove(doomed)
        try:
            self._client.delete(PersistentVolume, metadata["name"])
        except ApiError as error:
            if error.status.reason != "NotFound":
                raise

    def _remove(self, folder: Path) -> None:
        # In a thread of its own: a large folder takes a while, and names must not wait for it.
        threading.Thread(target=shutil.rmtree, args=(folder,), kwargs={"ignore_errors": True}, daemon=True).start()

    def _say(self, claim: Mapping[str, Any], kind: str, reason: str, message: str) -> None:
        metadata = claim["metadata"]
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        event = {
            "metadata": {"generateName": f"{metadata['name'][:200]}-", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": PROVISIONER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._client.create(cast(Event, Event.from_dict(event)))
        except ApiError as error:
            log.warning("event %s for %s: %s", reason, metadata["name"], error)


def folder_name(claim: Mapping[str, Any]) -> str:
    """The folder of a claim, from its metadata or from a reference to it; readable, and unique through the uid."""
    return f"{claim['namespace']}-{claim['name'][:100]}-{claim['uid']}"


def volume_for(claim: Mapping[str, Any], reclaim_policy: str, mount_options: list[str], folder: Path) -> dict[str, Any]:
    """The PersistentVolume object that answers a claim."""
    metadata, spec = claim["metadata"], claim["spec"]
    return {
        "metadata": {"name": f"pvc-{metadata['uid']}", "annotations": {MADE_BY: PROVISIONER}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": reclaim_policy,
            "storageClassName": spec.get("storageClassName"),
            "volumeMode": "Filesystem",
            **({"mountOptions": mount_options} if mount_options else {}),
            "hostPath": {"path": str(folder), "type": "Directory"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
        },
    }
