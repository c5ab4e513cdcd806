"""What the storage drivers of a cloud would do: a volume for each claim that waits for one, as an object only.

`python -m infra.rehearsal.volumes --kubeconfig FILE` runs beside a rehearsed cluster. Nothing is stored anywhere; what
is rehearsed is that claims name a class that exists, that volumes are bound when and where a real driver would bind
them, and that pods which wait for them are scheduled.
"""

from __future__ import annotations

import argparse
import logging
import queue
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import httpx2
from lightkube import ApiError, Client
from lightkube.resources.core_v1 import Node, PersistentVolume, PersistentVolumeClaim
from lightkube.resources.storage_v1 import StorageClass

from infra.local.cloud.watching import Change, Watch, client_of

WANTED_BY = "volume.kubernetes.io/storage-provisioner"  # set by the controller manager when it is the driver's turn
NODE_CHOSEN = "volume.kubernetes.io/selected-node"  # set by the scheduler for classes that wait for a consumer
MADE_BY = "pv.kubernetes.io/provisioned-by"
ZONE = "topology.kubernetes.io/zone"
BLOCK_DRIVERS = ("ebs.csi.aws.com", "ebs.csi.eks.amazonaws.com")
"""Drivers whose volumes belong to one zone: a pod that has one cannot be scheduled to another."""
_RETRY_SECONDS = 0.5

log = logging.getLogger("volumes")


def volume_for(claim: Mapping[str, Any], storage: Mapping[str, Any], zone: str | None) -> dict[str, Any]:
    """The PersistentVolume that answers a claim.

    Args:
        claim: the PersistentVolumeClaim.
        storage: its StorageClass.
        zone: that of the node that the scheduler chose; None where none was chosen.
    """
    metadata, spec, driver = claim["metadata"], claim["spec"], storage["provisioner"]
    zonal = zone is not None and driver in BLOCK_DRIVERS
    affinity = {
        "required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]}
    }
    return {
        "metadata": {"name": f"pvc-{metadata['uid']}", "annotations": {MADE_BY: driver}},
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "persistentVolumeReclaimPolicy": storage.get("reclaimPolicy") or "Delete",
            "storageClassName": spec.get("storageClassName"),
            "volumeMode": spec.get("volumeMode") or "Filesystem",
            "csi": {"driver": driver, "volumeHandle": f"rehearsed-{metadata['uid']}"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            **({"nodeAffinity": affinity} if zonal else {}),
        },
    }


class Volumes:
    """Answers claims and removes released volumes, whatever driver they name."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def provision(self, claim: PersistentVolumeClaim) -> None:
        """Give a claim its volume when it waits for one.

        Which claims do is the controller manager's decision: it writes the driver's name on them, for classes that
        wait for a consumer after the scheduler has chosen the node.
        """
        found = claim.to_dict()
        metadata, spec = found["metadata"], found["spec"]
        annotations = metadata.get("annotations") or {}
        if WANTED_BY not in annotations or spec.get("volumeName") or metadata.get("deletionTimestamp"):
            return
        storage = self._client.get(StorageClass, str(spec.get("storageClassName"))).to_dict()
        waits = storage.get("volumeBindingMode") == "WaitForFirstConsumer"
        node = annotations.get(NODE_CHOSEN)
        if waits and not node:
            return
        zone = (self._client.get(Node, node).to_dict()["metadata"].get("labels") or {}).get(ZONE) if node else None
        volume = volume_for(found, storage, zone)
        self._client.create(cast(PersistentVolume, PersistentVolume.from_dict(volume)))
        log.info("%s/%s: %s", metadata["namespace"], metadata["name"], volume["metadata"]["name"])

    def reclaim(self, volume: PersistentVolume) -> None:
        """Remove a released volume that its driver made and whose policy is Delete."""
        found = volume.to_dict()
        metadata, spec = found["metadata"], found["spec"]
        made = MADE_BY in (metadata.get("annotations") or {})
        released = (found.get("status") or {}).get("phase") == "Released"
        gone = metadata.get("deletionTimestamp")
        if made and released and not gone and spec.get("persistentVolumeReclaimPolicy") == "Delete":
            self._client.delete(PersistentVolume, metadata["name"])


def serve(client: Client) -> None:
    """Act until the process is ended."""
    inbox: queue.Queue[tuple[str, Change]] = queue.Queue()
    volumes = Volumes(client)
    waiting: dict[str, tuple[str, Change]] = {}  # by uid: what is tried again, until it works or is gone
    Watch(client, PersistentVolumeClaim, lambda change: inbox.put(("claim", change)), namespaced=True).start()
    Watch(client, PersistentVolume, lambda change: inbox.put(("volume", change)), namespaced=False).start()
    while True:
        try:
            todo = [inbox.get(timeout=_RETRY_SECONDS if waiting else None)]
        except queue.Empty:
            todo = list(waiting.values())
        for kind, change in todo:
            waiting.pop(change.object.metadata.uid, None)
            if change.gone:
                continue
            try:
                (volumes.provision if kind == "claim" else volumes.reclaim)(change.object)
            except (ApiError, httpx2.HTTPError) as error:
                if isinstance(error, ApiError) and error.status.reason == "AlreadyExists":
                    continue
                if isinstance(error, ApiError) and error.status.code == 404 and kind == "volume":
                    continue
                log.warning("%s %s: %s; again", kind, change.object.metadata.name, error)
                waiting[change.object.metadata.uid] = (kind, change)


def main() -> None:
    """Start the daemon."""
    parser = argparse.ArgumentParser(prog="python -m infra.rehearsal.volumes", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="whom to be, and where the API server is")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    serve(client_of(options.kubeconfig))


if __name__ == "__main__":
    main()
