"""A real Kubernetes control plane on loopback: etcd, API server, controller manager and scheduler as processes.

`ControlPlane.up()` starts what doesn't run, restarts what died or would be started differently today, and returns
when all four answer as healthy. State is in etcd and survives; certificates and ports are kept while they are good.
"""

import ssl
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from infra.local import ports
from infra.local.control_plane.access import KUBELET_CLIENT_USER, grant
from infra.local.control_plane.pki import Authority, Pair, Subject, kubeconfig, signing_key
from infra.local.errors import LocalClusterError
from infra.local.processes import Processes
from infra.local.state import State

ETCD, API_SERVER = "etcd", "kube-apiserver"
CONTROLLER_MANAGER, SCHEDULER = "kube-controller-manager", "kube-scheduler"
COMPONENTS = (ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER)
AUTHORITY, ETCD_AUTHORITY = "ca", "etcd-ca"

LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"  # the API server's own, first of the range
ANSWER_SECONDS = 15.0  # for the answer of a component on a busy computer, whose disk may stand still for some seconds
READY_TIMEOUT = 240.0  # seconds; a cold start takes about 5 on two cores, this is for a machine that swaps

# A node that stopped answering is NotReady after GRACE, its pods are evicted TOLERATION later. A cloud's defaults are
# 40 s and 300 s; here a fault drill shall not take minutes. Kubelets renew their lease every quarter of LEASE.
NODE_LEASE_SECONDS = 12
NODE_GRACE_SECONDS = 15
TOLERATION_SECONDS = 5

# Certificate requests: kubelets get theirs from `pki`, no signing key is handed to the controller manager. The others
# are a cloud's work.
CONTROLLERS_OFF = (
    "certificatesigningrequest-signing-controller",
    "certificatesigningrequest-approving-controller",
    "service-lb-controller",
    "node-route-controller",
    "cloud-node-lifecycle-controller",
)
# Endpoints and slices of Services: the API server accepts no loopback address in them, so where all pods have one these
# controllers would only fail again and again. Such pods find each other through hosts files (infra/local/cloud).
ENDPOINT_CONTROLLERS = ("endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller")


@dataclass(frozen=True)
class Ports:
    """The loopback ports of one control plane."""

    etcd: int
    etcd_peer: int
    api_server: int
    controller_manager: int
    scheduler: int


class ControlPlane:
    """The control plane of the cluster in `state`.

    Args:
        state: The cluster's folder.
        engines: Paths of the programs, by the names in `COMPONENTS`.
        api_server_port: A port that the user fixed; else a free one is chosen and kept.
        like_cloud: As on a managed cluster, pods have addresses of their own, so that Services have endpoints, and
            may be privileged where pod security lets them. Here pods are processes of this computer: neither holds.
    """

    def __init__(
        self,
        state: State,
        engines: Mapping[str, Path],
        api_server_port: int | None = None,
        *,
        like_cloud: bool = False,
    ) -> None:
        self._state = state
        self._like_cloud = like_cloud
        self._engines = engines
        self._fixed_port = api_server_port
        self._processes = Processes(state)
        self._folder = state.path("control_plane")
        self.ports = Ports(0, 0, 0, 0, 0)

    @cached_property
    def authority(self) -> Authority:
        """Signs users, kubelets and the API server."""
        return Authority(self._state, self._folder, AUTHORITY)

    @cached_property
    def _etcd_authority(self) -> Authority:
        return Authority(self._state, self._folder, ETCD_AUTHORITY)

    @property
    def server(self) -> str:
        """The API server's address as a URL; known after `up` or `attach`."""
        return f"https://{LOOPBACK}:{self.ports.api_server}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._state.path("kubeconfig")

    def attach(self) -> bool:
        """Learn the ports of a control plane that was brought up earlier; returns whether there was one."""
        known = self._known_ports()
        if known is None:
            return False
        self.ports = known
        return True

    def up(self) -> None:
        """Bring the control plane to life, whatever state it is in, and wait until all of it is healthy.

        Raises:
            LocalClusterError: a fixed port is taken, or a component doesn't become healthy.
        """
        self.start()
        self.wait_healthy()

    def start(self) -> None:
        """Like `up`, but return as soon as the API server answers; the others become healthy meanwhile."""
        certificates = self.start_api_server()
        # These two poll once a second for a server that isn't there: quicker to start them when it is.
        self._start_controller_manager(certificates)
        self._start_scheduler(certificates)

    def start_api_server(self) -> dict[str, Pair]:
        """Start etcd and the API server alone: enough for who only looks; nothing is scheduled or looked after.

        Returns:
            The certificates of the parts.
        """
        self.ports = self._choose_ports()
        certificates = self._certificates()
        # etcd and the API server start together: the server needs a second to load anyway and waits for etcd.
        self._start_etcd(certificates)
        self._start_api_server(certificates)
        self.write_kubeconfig(self.kubeconfig, certificates["admin"], "trainyard-admin")
        self._wait(ETCD, self._health_urls()[ETCD], certificates["etcd-client"])
        self._wait(API_SERVER, self._health_urls()[API_SERVER], certificates["admin"])
        grant(self.kubeconfig)
        return certificates

    def wait_healthy(self) -> None:
        """Wait for what `start` didn't wait for."""
        for name in (CONTROLLER_MANAGER, SCHEDULER):
            self._wait(name, self._health_urls()[name], self._certificates()["admin"])

    def down(self) -> list[str]:
        """End the four processes, those that talk first; returns the names of those that ran."""
        ended = self._processes.stop(CONTROLLER_MANAGER, SCHEDULER, grace=3.0)
        ended += self._processes.stop(API_SERVER, grace=5.0)
        return ended + self._processes.stop(ETCD)

    def health(self) -> dict[str, bool]:
        """Whether each component answers as healthy now; only reads, so what lacks its certificates is not."""
        if not self.attach():
            return dict.fromkeys(COMPONENTS, False)
        healthy = {}
        for name, url in self._health_urls().items():
            try:
                pair = Pair.named("etcd-client" if name == ETCD else "admin", self._folder)
                healthy[name] = self._answers(url, pair)()
            except (OSError, ValueError):
                healthy[name] = False
        return healthy

    def component_ports(self) -> dict[str, int]:
        """The port on which each component listens."""
        return {
            ETCD: self.ports.etcd,
            API_SERVER: self.ports.api_server,
            CONTROLLER_MANAGER: self.ports.controller_manager,
            SCHEDULER: self.ports.scheduler,
        }

    def write_kubeconfig(self, path: Path, pair: Pair, user: str) -> Path:
        """Write a kubeconfig (mode 0600) for one user of this API server."""
        self._state.write(path, kubeconfig(self.server, self.authority.certificate_pem, pair, user))
        return path

    def client_kubeconfig(self, user: str, groups: tuple[str, ...] = (), folder: Path | None = None) -> Path:
        """A kubeconfig for a user with a client certificate of its own."""
        place = folder or self._folder
        name = user.rpartition(":")[2]
        pair = self.authority.issue(f"{name}-client", Subject(user, groups), place)
        return self.write_kubeconfig(place / f"{name}.kubeconfig", pair, user)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _known_ports(self) -> Ports | None:
        stored = self._state.read_json(self._folder / "ports.json")
        try:
            known = Ports(**stored)
        except TypeError:
            return None
        values = list(vars(known).values())
        return known if all(isinstance(value, int) and 0 < value < 65536 for value in values) else None

    def _choose_ports(self) -> Ports:
        """Keep the ports while they are ours or free; choose anew where somebody else sits on one."""
        running = self._processes.running()
        wanted = vars(self._known_ports() or Ports(0, 0, 0, 0, 0)).copy()
        owners = {
            "etcd": ETCD,
            "etcd_peer": ETCD,
            "api_server": API_SERVER,
            "controller_manager": CONTROLLER_MANAGER,
            "scheduler": SCHEDULER,
        }
        fixed = self._fixed_port
        if fixed is not None:
            if API_SERVER not in running or wanted["api_server"] != fixed:
                # Nothing was changed yet: an API server on another port goes on where this one is taken.
                ports.require_free(fixed, "the API server", "apiServerPort in the stack file")
            wanted["api_server"] = fixed
            del owners["api_server"]
        for field, owner in owners.items():
            if owner in running:
                continue
            if wanted[field] in {0, fixed} or not ports.becomes_free(wanted[field]):
                wanted[field] = ports.choose(f"{self._state.directory}:{field}", 1, wanted.values())[0]
        chosen = Ports(**wanted)
        self._state.write_json(self._folder / "ports.json", vars(chosen))
        return chosen

    def _certificates(self) -> dict[str, Pair]:
        issue, local = self.authority.issue, ("localhost", LOOPBACK)
        service = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
        masters = ("system:masters",)
        return {
            "etcd": self._etcd_authority.issue("etcd-server", Subject("etcd", addresses=local)),
            "etcd-client": self._etcd_authority.issue("etcd-client", Subject("kube-apiserver-etcd-client")),
            "api-server": issue(
                "apiserver", Subject("kube-apiserver", addresses=(*service, *local, SERVICE_ADDRESS), client=False)
            ),
            "kubelet-client": issue("apiserver-kubelet-client", Subject(KUBELET_CLIENT_USER)),
            "admin": issue("admin", Subject("trainyard-admin", masters)),
            CONTROLLER_MANAGER: issue("controller-manager", Subject("system:kube-controller-manager", addresses=local)),
            SCHEDULER: issue("scheduler", Subject("system:kube-scheduler", addresses=local)),
        }

    def _start_etcd(self, certificates: Mapping[str, Pair]) -> None:
        client = f"https://{LOOPBACK}:{self.ports.etcd}"
        peer = f"https://{LOOPBACK}:{self.ports.etcd_peer}"
        pair, authority = certificates["etcd"], self._etcd_authority.pair.certificate
        self._start(
            ETCD,
            {
                "name": "local",
                "data-dir": self._state.folder("control_plane", "etcd"),
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peer,
                "initial-advertise-peer-urls": peer,
                "initial-cluster": f"local={peer}",
                "cert-file": pair.certificate,
                "key-file": pair.key,
                "client-cert-auth": "true",
                "trusted-ca-file": authority,
                "peer-cert-file": pair.certificate,
                "peer-key-file": pair.key,
                "peer-client-cert-auth": "true",
                "peer-trusted-ca-file": authority,
                "snapshot-count": 5000,
                "max-wals": 2,
                "max-snapshots": 2,
                # What was written survives the end of etcd, however it ends, but not a power cut. In return a disk on
                # which a flush takes seconds does not stop the cluster.
                "unsafe-no-fsync": "true",
                "auto-compaction-retention": 0,  # the API server compacts every five minutes
                "logger": "zap",
                "log-level": "warn",
            },
            inputs=(pair.certificate, authority),
        )

    def _start_api_server(self, certificates: Mapping[str, Pair]) -> None:
        signing = signing_key(self._state, self._folder / "service-account.key")
        etcd, own, kubelet = (certificates[name] for name in ("etcd-client", "api-server", "kubelet-client"))
        self._start(
            API_SERVER,
            {
                "bind-address": LOOPBACK,
                "advertise-address": LOOPBACK,
                "secure-port": self.ports.api_server,
                "etcd-servers": f"https://{LOOPBACK}:{self.ports.etcd}",
                "etcd-cafile": self._etcd_authority.pair.certificate,
                "etcd-certfile": etcd.certificate,
                "etcd-keyfile": etcd.key,
                "tls-cert-file": own.certificate,
                "tls-private-key-file": own.key,
                "client-ca-file": self.authority.pair.certificate,
                "kubelet-certificate-authority": self.authority.pair.certificate,
                "kubelet-client-certificate": kubelet.certificate,
                "kubelet-client-key": kubelet.key,
                "kubelet-preferred-address-types": "InternalIP",
                "authorization-mode": "Node,RBAC",
                "enable-admission-plugins": "NodeRestriction",
                "anonymous-auth": "false",
                "allow-privileged": str(self._like_cloud).lower(),
                "profiling": "false",
                "service-cluster-ip-range": SERVICE_RANGE,
                "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
                "service-account-key-file": signing,
                "service-account-signing-key-file": signing,
                "endpoint-reconciler-type": "none",  # it would write its loopback address, which is refused
                "default-not-ready-toleration-seconds": TOLERATION_SECONDS,
                "default-unreachable-toleration-seconds": TOLERATION_SECONDS,
                "shutdown-delay-duration": "0s",
            },
            inputs=(own.certificate, etcd.certificate, kubelet.certificate, self.authority.pair.certificate, signing),
        )

    def _start_controller_manager(self, certificates: Mapping[str, Pair]) -> None:
        pair = certificates[CONTROLLER_MANAGER]
        off = CONTROLLERS_OFF if self._like_cloud else CONTROLLERS_OFF + ENDPOINT_CONTROLLERS
        signing = signing_key(self._state, self._folder / "service-account.key")
        config = self.write_kubeconfig(
            self._folder / "controller-manager.kubeconfig", pair, "system:kube-controller-manager"
        )
        self._start(
            CONTROLLER_MANAGER,
            {
                "bind-address": LOOPBACK,
                "secure-port": self.ports.controller_manager,
                "tls-cert-file": pair.certificate,
                "tls-private-key-file": pair.key,
                "kubeconfig": config,
                "authentication-kubeconfig": config,
                "authorization-kubeconfig": config,
                "use-service-account-credentials": "true",
                # Forty controllers fetch tokens at the start; at the default of 20 requests a second that takes long.
                "kube-api-qps": 200,
                "kube-api-burst": 400,
                "service-account-private-key-file": signing,
                "root-ca-file": self.authority.pair.certificate,
                "leader-elect": "false",
                "profiling": "false",
                "controllers": ",".join(["*", *(f"-{name}" for name in off)]),
                "node-monitor-period": "2s",
                "node-monitor-grace-period": f"{NODE_GRACE_SECONDS}s",
                # A cluster of a few nodes that loses half of them is no sign of a broken network here.
                "large-cluster-size-threshold": 1,
                "secondary-node-eviction-rate": 10,
                "node-eviction-rate": 10,
            },
            inputs=(config, pair.certificate, self.authority.pair.certificate, signing),
        )

    def _start_scheduler(self, certificates: Mapping[str, Pair]) -> None:
        pair = certificates[SCHEDULER]
        config = self.write_kubeconfig(self._folder / "scheduler.kubeconfig", pair, "system:kube-scheduler")
        self._start(
            SCHEDULER,
            {
                "bind-address": LOOPBACK,
                "secure-port": self.ports.scheduler,
                "tls-cert-file": pair.certificate,
                "tls-private-key-file": pair.key,
                "kubeconfig": config,
                "authentication-kubeconfig": config,
                "authorization-kubeconfig": config,
                "leader-elect": "false",
                "profiling": "false",
            },
            inputs=(config, pair.certificate),
        )

    def _start(self, name: str, options: Mapping[str, object], inputs: tuple[Path, ...]) -> None:
        program = self._engines.get(name)
        if program is None or not program.exists():
            raise LocalClusterError(
                f"the program {name} is missing", why=f"looked for it at {program}", remedy="trainyard doctor"
            )
        self._processes.start(
            name, [program, *(f"--{option}={value}" for option, value in options.items())], inputs=inputs
        )

    # -- health --------------------------------------------------------------------------------------------------

    def _health_urls(self) -> dict[str, str]:
        return {
            ETCD: f"https://{LOOPBACK}:{self.ports.etcd}/health",
            API_SERVER: f"{self.server}/readyz",
            CONTROLLER_MANAGER: f"https://{LOOPBACK}:{self.ports.controller_manager}/healthz",
            SCHEDULER: f"https://{LOOPBACK}:{self.ports.scheduler}/healthz",
        }

    def _wait(self, name: str, url: str, pair: Pair) -> None:
        self._processes.wait_ready(name, self._answers(url, pair), timeout=READY_TIMEOUT)

    def _answers(self, url: str, pair: Pair) -> Callable[[], bool]:
        """A function that says whether `url` answers 200 to this client."""
        authorities = [Pair.named(name, self._folder).certificate.read_text() for name in (AUTHORITY, ETCD_AUTHORITY)]
        context = ssl.create_default_context(cadata="".join(authorities))
        context.load_cert_chain(pair.certificate, pair.key)
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({})
        )

        def ask() -> bool:
            try:
                with opener.open(url, timeout=ANSWER_SECONDS) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        return ask
