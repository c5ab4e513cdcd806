"""How the members of the jobs' etcd are arranged: names on which Services, StatefulSet, certificates and jobs agree."""

from __future__ import annotations

from dataclasses import dataclass

CLIENT_PORT = 2379
PEER_PORT = 2380
METRICS_PORT = 2381
"""Plain HTTP /livez, /readyz and /metrics for the kubelet, apart from the client port; it serves no data."""

SERVICE = "etcd"
"""Service of the clients, and name of the StatefulSet."""
_PEERS = "etcd-peers"


@dataclass(frozen=True)
class EtcdLayout:
    """One member, or three that outlive the loss of one; in the open, or with TLS and passwords."""

    members: int
    secure: bool

    @property
    def _simple(self) -> bool:
        return self.members == 1 and not self.secure

    @property
    def peers_service(self) -> str:
        """The headless Service that gives members their names.

        Members look each other up before they are ready, and clients must not meet one that isn't: two Services, unless
        a member is alone.
        """
        return SERVICE if self._simple else _PEERS

    @property
    def volume(self) -> str:
        """Name of the members' volumes.

        A member's data name all members and their URLs, and cannot be used in another layout: a change of either makes
        a new StatefulSet with new volumes. (What is lost are rendezvous, which running jobs make anew.)
        """
        return "data" if self._simple else f"data-{self.members}{'-tls' if self.secure else ''}"

    @property
    def scheme(self) -> str:
        """Of all URLs but the metrics'."""
        return "https" if self.secure else "http"

    def peer_url(self, member: str, namespace: str) -> str:
        """Where a member is for the others."""
        return f"{self.scheme}://{self._host(member, namespace)}:{PEER_PORT}"

    def client_url(self, member: str, namespace: str) -> str:
        """Where a member is for clients that ask it for the list of members."""
        return f"{self.scheme}://{self._host(member, namespace)}:{CLIENT_PORT}"

    def initial_cluster(self, namespace: str) -> str:
        """All members with their URLs, as `--initial-cluster` takes them."""
        return ",".join(f"{name}={self.peer_url(name, namespace)}" for name in self.member_names())

    def member_names(self) -> list[str]:
        """The pods' names."""
        return [f"{SERVICE}-{number}" for number in range(self.members)]

    def server_names(self, namespace: str) -> list[str]:
        """Every name by which a client may call etcd, for its certificate."""
        return _spellings(SERVICE, namespace) + self.peer_names(namespace)

    def peer_names(self, namespace: str) -> list[str]:
        """Every name by which a member may be called, for the certificate of the members."""
        hosts = [f"{name}.{self.peers_service}" for name in self.member_names()]
        return [name for host in hosts for name in _spellings(host, namespace)]

    def _host(self, member: str, namespace: str) -> str:
        return f"{member}.{self.peers_service}.{namespace}"


def _spellings(host: str, namespace: str) -> list[str]:
    return [host, f"{host}.{namespace}", f"{host}.{namespace}.svc", f"{host}.{namespace}.svc.cluster.local"]
