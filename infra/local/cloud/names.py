"""Service names in the pods' hosts files, where a real cluster has DNS.

A Service's names lead to the addresses of its pods themselves; there is no virtual address in front of them, as there
is no kube-proxy here. So a client must use the port on which the pods listen.

The kubelet writes each pod's hosts file before each start of a container; our lines follow its own in a marked block.
The file is bound into containers, so it is always the same file (inode) that changes.
"""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOMAIN = "cluster.local"
BEGIN = "# Services of this cluster, kept up to date by trainyard's local cloud\n"
END = "# End of Services\n"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PodView:
    """What names depend on, of one pod."""

    uid: str
    namespace: str
    name: str
    node: str
    address: str
    ready: bool
    leaving: bool
    over: bool
    hostname: str
    subdomain: str
    labels: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, pod: Mapping[str, Any]) -> "PodView":
        """From the object of the API."""
        metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
        return cls(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            node=spec.get("nodeName") or "",
            address=status.get("podIP") or "",
            ready=conditions.get("Ready") == "True",
            leaving=bool(metadata.get("deletionTimestamp")),
            over=status.get("phase") in {"Succeeded", "Failed"},
            hostname=spec.get("hostname") or "",
            subdomain=spec.get("subdomain") or "",
            labels=tuple(sorted((metadata.get("labels") or {}).items())),
        )


@dataclass(frozen=True)
class ServiceView:
    """What names depend on, of one Service."""

    namespace: str
    name: str
    selector: tuple[tuple[str, str], ...]
    publish_not_ready: bool

    @classmethod
    def of(cls, service: Mapping[str, Any]) -> "ServiceView":
        """From the object of the API."""
        metadata, spec = service["metadata"], service.get("spec") or {}
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            selector=tuple(sorted((spec.get("selector") or {}).items())),
            publish_not_ready=bool(spec.get("publishNotReadyAddresses")),
        )

    def includes(self, pod: PodView) -> bool:
        """Whether the Service's name leads to this pod now."""
        if not self.selector or pod.namespace != self.namespace or not pod.address or pod.over:
            return False
        if not set(self.selector) <= set(pod.labels):
            return False
        return self.publish_not_ready or (pod.ready and not pod.leaving)


def block(namespace: str, services: Iterable[ServiceView], pods: Iterable[PodView]) -> str:
    """The lines that a pod of `namespace` gets; empty when there is nothing to say."""
    everyone = sorted(pods, key=lambda pod: (pod.namespace, pod.name))
    single, shared = [], []
    for service in sorted(services, key=lambda service: (service.namespace, service.name)):
        for pod in everyone:
            if not service.includes(pod):
                continue
            if pod.hostname and pod.subdomain == service.name:
                host = f"{pod.hostname}.{service.name}"
                single.append(_line(pod.address, host, service.namespace, local=service.namespace == namespace))
            shared.append(_line(pod.address, service.name, service.namespace, local=service.namespace == namespace))
    # Names of single pods first: looking up the name of an address finds the first line.
    lines = single + shared
    return BEGIN + "".join(lines) + END if lines else ""


def with_block(content: str, lines: str) -> str:
    """A hosts file with our block replaced, everything else kept."""
    before, begin, rest = content.partition(BEGIN)
    if begin:
        before += rest.partition(END)[2]
    if lines and before and not before.endswith("\n"):
        before += "\n"
    return before + lines


def _line(address: str, name: str, namespace: str, *, local: bool) -> str:
    names = [f"{name}.{namespace}.svc.{DOMAIN}", f"{name}.{namespace}.svc", f"{name}.{namespace}"]
    return "\t".join([address, *names, *([name] if local else [])]) + "\n"


class Names:
    """Keeps the hosts files of all pods below `nodes` up to date."""

    def __init__(self, nodes: Path) -> None:
        self._nodes = nodes
        self._pods: dict[str, PodView] = {}
        self._services: dict[tuple[str, str], ServiceView] = {}
        self._blocks: dict[str, str] = {}

    def set_pod(self, pod: PodView, *, gone: bool) -> bool:
        """Take note of a pod; returns whether anything that matters changed."""
        if gone:
            return self._pods.pop(pod.uid, None) is not None
        if self._pods.get(pod.uid) == pod:
            return False
        self._pods[pod.uid] = pod
        return True

    def set_service(self, service: ServiceView, *, gone: bool) -> bool:
        """Take note of a Service; returns whether anything that matters changed."""
        key = (service.namespace, service.name)
        if gone:
            return self._services.pop(key, None) is not None
        if self._services.get(key) == service:
            return False
        self._services[key] = service
        return True

    def refresh(self) -> None:
        """Bring every hosts file to the present picture."""
        self._blocks.clear()
        for pod in self._pods.values():
            self._apply(pod)

    def refresh_one(self, uid: str) -> None:
        """The kubelet wrote the hosts file of one pod."""
        if pod := self._pods.get(uid):
            self._apply(pod)

    def pods_folder(self, node: str) -> Path:
        """Where the kubelet of a node keeps a folder for each of its pods."""
        return self._nodes / node / "kubelet" / "pods"

    def _apply(self, pod: PodView) -> None:
        if not pod.node or pod.over:
            return
        if pod.namespace not in self._blocks:
            self._blocks[pod.namespace] = block(pod.namespace, self._services.values(), self._pods.values())
        path = self.pods_folder(pod.node) / pod.uid / "etc-hosts"
        try:
            write_in_place(path, self._blocks[pod.namespace])
        except FileNotFoundError:
            pass  # not there yet (we're told when it is), a pod on the host's network, or gone already
        except OSError as error:
            log.warning("%s: %s", path, error)


def write_in_place(path: Path, lines: str) -> bool:
    """Put our block into an existing hosts file; returns whether it had to change."""
    # Opened for writing only to write: closing such a file reports it as written, to us as well.
    old = path.read_bytes()
    if not old:
        return False  # the kubelet is about to write it; the end of its writing is told
    new = with_block(old.decode(errors="surrogateescape"), lines).encode(errors="surrogateescape")
    if new == old:
        return False
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(descriptor, new, 0)
        os.ftruncate(descriptor, len(new))
    finally:
        os.close(descriptor)
    return True
