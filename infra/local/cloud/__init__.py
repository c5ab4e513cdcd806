"""What a cloud's own controllers do on a real cluster, done for the cluster on this computer.

One small daemon, `python -m infra.local.cloud`, with three jobs:

- `machines`: addresses, zone, provider id, accelerators of a Node that registered (a cloud controller manager and a
  device plugin would do it);
- `volumes`: a folder for each claim of a storage class that names our provisioner (a CSI driver would do it);
- `names`: the addresses of a Service's pods in every pod's hosts file (cluster DNS would do it).

Everything else on a node is done by the real kubelet, everything else in the cluster by the real control plane.
"""

from pathlib import Path

PROVISIONER = "local.trainyard.dev/folder"  # what a StorageClass names to get folders of this computer
USER = "trainyard:local-cloud"

# The daemon touches its heartbeat while it acts and all its watches stand; one that is older than BEAT_LIMIT is none.
BEAT_SECONDS = 5.0
BEAT_LIMIT = 20.0

# The least that the three jobs need.
ROLE_RULES: list[dict[str, list[str]]] = [
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods", "services", "persistentvolumeclaims"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": ["list", "watch", "create", "delete"]},
    {"apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
]


def heartbeat(state: Path) -> Path:
    """The heartbeat file of the cluster whose state folder is given."""
    return state / "cloud" / "heartbeat"
