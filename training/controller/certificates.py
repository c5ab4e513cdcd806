"""`python -m training.controller.certificates`: keys, certificates and users of the jobs' etcd, made in the cluster.

A Job of the stack runs this before etcd starts (certificates), one after (users), and a CronJob each hour (both). What
is there and good stays as it is, so it may run as often as anybody likes:

| Secret           | in                   | holds |
| ---------------- | -------------------- | ----- |
| etcd-authority   | etcd's namespace     | authority of the server certificates, with its key |
| etcd-peers       | etcd's namespace     | authority of the members: whoever it certifies is a member |
| etcd-server      | etcd's namespace     | certificate that etcd shows to clients |
| etcd-peer        | etcd's namespace     | certificate with which members meet |
| etcd-root        | etcd's namespace     | password of etcd's `root` |
| etcd-client      | the jobs' namespace  | authority, user and password of the jobs |

Jobs log in with a password and not with certificates: the JSON gateway of etcd, which the launcher uses, cannot tell
who showed a certificate.
"""

from __future__ import annotations

import argparse
import base64
import logging
import os
import secrets
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from training.launch.etcd_client import EtcdClient, EtcdError, EtcdUnreachableError, parse_endpoints
from training.launch.rendezvous import PREFIX

log = logging.getLogger("training.controller.certificates")

# Names, not secrets.
AUTHORITY_SECRET = "etcd-authority"  # noqa: S105
PEERS_SECRET = "etcd-peers"  # noqa: S105
SERVER_SECRET = "etcd-server"  # noqa: S105
PEER_SECRET = "etcd-peer"  # noqa: S105
ROOT_SECRET = "etcd-root"  # noqa: S105
CLIENT_SECRET = "etcd-client"  # noqa: S105

CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITY = "ca.crt"
USER = "user"
PASSWORD = "password"  # noqa: S105
CACERT_PATH = "cacert-path"
"""Field of the jobs' Secret: where their pods find `ca.crt`. A variable that comes from it is there exactly when the
Secret is."""
MOUNT = "/var/run/secrets/trainyard.dev/rendezvous"

RENDEZVOUS_USER = "rendezvous"
ROOT_USER = "root"
CHECK_KEY = b"\0"
"""The key that `EtcdClient.check` reads; there never is one."""

LIFETIME = timedelta(days=365)
RENEW_BEFORE = timedelta(days=90)
"""etcd reads its certificates again for each connection, so a renewed one needs no restart."""
AUTHORITY_LIFETIME = timedelta(days=3650)
AUTHORITY_RENEW_BEFORE = LIFETIME
"""So that no certificate outlives its authority. Jobs and members that run through this one day in nine years know the
old authorities only, and have to be restarted (how: decision 5)."""
ETCD_PATIENCE = timedelta(seconds=120)
# Of users and roles each write is waited for: the members' disks may be slow, and nobody is kept waiting.
ETCD_ATTEMPT, ETCD_CALL = timedelta(seconds=10), timedelta(seconds=30)
"""etcd and this program may start together."""
_CLOCK_SKEW = timedelta(minutes=5)

EXIT_FAILED = 1

Fields = dict[str, bytes]
"""What a Secret holds."""


class SetupError(Exception):
    """The keys or users cannot be made; says what to do."""


class Secrets(Protocol):
    """The Secrets of a cluster."""

    def get(self, namespace: str, name: str) -> Fields | None:
        """The fields of a Secret; None if there is none."""

    def put(self, namespace: str, name: str, fields: Fields) -> None:
        """Creates or replaces a Secret."""


@dataclass(frozen=True)
class Names:
    """Where all belongs, and by which names etcd is called."""

    namespace: str
    jobs_namespace: str
    server: tuple[str, ...]
    peer: tuple[str, ...]


def system_rules() -> list[dict[str, list[str]]]:
    """Rights in etcd's namespace.

    A right to create cannot be tied to names. Reading and replacing can: no other Secret there is seen or changed.
    """
    return _rules(AUTHORITY_SECRET, PEERS_SECRET, SERVER_SECRET, PEER_SECRET, ROOT_SECRET)


def client_rules() -> list[dict[str, list[str]]]:
    """Rights in the jobs' namespace; see `system_rules`."""
    return _rules(CLIENT_SECRET)


def _rules(*names: str) -> list[dict[str, list[str]]]:
    return [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "update"], "resourceNames": list(names)},
    ]


def issue(store: Secrets, names: Names, *, now: datetime | None = None) -> list[str]:
    """Has every Secret there and good.

    Args:
        store: the cluster's Secrets.
        names: where they belong.
        now: the time; absent: now.

    Returns:
        The names of the Secrets that were made or renewed.
    """
    issuer = _Issuer(store, now or datetime.now(UTC))
    home, jobs = names.namespace, names.jobs_namespace
    authority = issuer.authority(home, AUTHORITY_SECRET)
    peers = issuer.authority(home, PEERS_SECRET)
    issuer.certificate(home, SERVER_SECRET, authority, names.server)
    issuer.certificate(home, PEER_SECRET, peers, names.peer)
    issuer.password(home, ROOT_SECRET, {})
    issuer.password(
        jobs,
        CLIENT_SECRET,
        {
            AUTHORITY: authority[CERTIFICATE],
            USER: RENDEZVOUS_USER.encode(),
            CACERT_PATH: f"{MOUNT}/{AUTHORITY}".encode(),
        },
    )
    return issuer.made


@dataclass
class _Issuer:
    """Keeps what is good and makes the rest."""

    store: Secrets
    now: datetime
    made: list[str] = field(default_factory=list)

    def authority(self, namespace: str, name: str) -> Fields:
        def good(held: Fields) -> bool:
            pair = _pair(held)
            return pair is not None and pair[0].not_valid_after_utc - self.now > AUTHORITY_RENEW_BEFORE

        return self._keep(namespace, name, good, lambda _: _authority(name, self.now))

    def certificate(self, namespace: str, name: str, authority: Fields, hosts: Sequence[str]) -> Fields:
        def good(held: Fields) -> bool:
            pair = _pair(held)
            return (
                pair is not None
                and held.get(AUTHORITY) == authority[CERTIFICATE]
                and _signed(pair[0], authority)
                and _hosts(pair[0]) == set(hosts)
                and pair[0].not_valid_after_utc - self.now > RENEW_BEFORE
            )

        return self._keep(namespace, name, good, lambda _: _certificate(name, authority, hosts, self.now))

    def password(self, namespace: str, name: str, beside: Fields) -> Fields:
        """A password, which stays when what stands beside it changes."""

        def good(held: Fields) -> bool:
            return bool(held.get(PASSWORD)) and beside.items() <= held.items()

        def make(held: Fields) -> Fields:
            return beside | {PASSWORD: held.get(PASSWORD) or secrets.token_urlsafe(32).encode()}

        return self._keep(namespace, name, good, make)

    def _keep(
        self, namespace: str, name: str, good: Callable[[Fields], bool], make: Callable[[Fields], Fields]
    ) -> Fields:
        held = self.store.get(namespace, name)
        if held is not None and good(held):
            return held
        fields = make(held or {})
        self.store.put(namespace, name, fields)
        log.info("%s secret %s in %s", "made" if held is None else "renewed", name, namespace)
        self.made.append(name)
        return fields


class Administrator(EtcdClient):
    """etcd's users and roles, over the same JSON gateway as all else. Each call may be repeated without harm."""

    def is_open(self) -> bool:
        """Whether etcd serves those who have not logged in."""
        return not self._call("/v3/auth/status", {}).get("enabled", False)

    def set_role(self, role: str, permissions: Sequence[Mapping[str, Any]]) -> None:
        """A role that has these permissions."""
        self._add("/v3/auth/role/add", {"name": role}, already="role name already exists")
        for permission in permissions:
            self._call("/v3/auth/role/grant", {"name": role, "perm": permission})

    def set_user(self, user: str, password: str, role: str) -> None:
        """A user with this password and this role."""
        login = {"name": user, "password": password}
        if not self._add("/v3/auth/user/add", login, already="user name already exists"):
            self._call("/v3/auth/user/changepw", login)
        self._call("/v3/auth/user/grant", {"user": user, "role": role})

    def close_to_strangers(self) -> None:
        """From now on only users are served; there must be a `root`."""
        self._call("/v3/auth/enable", {})

    def _add(self, path: str, request: dict[str, Any], *, already: str) -> bool:
        try:
            self._call(path, request)
        except EtcdError as error:
            if already in str(error):
                return False
            raise
        return True


def authenticate(store: Secrets, names: Names, endpoint: str, *, patience: timedelta = ETCD_PATIENCE) -> bool:
    """Has etcd ask everybody for a password: `root`, and a user for the jobs who reaches the rendezvous' keys only.

    Nothing is written where all is as it should be: a change of users would cost running jobs a new login.

    Args:
        store: the Secrets that `issue` has made.
        names: where they are.
        endpoint: URL of etcd; it may be starting still.
        patience: how long to wait for it.

    Returns:
        Whether something had to be changed.

    Raises:
        SetupError: a Secret is missing, etcd does not answer, or it knows another `root`.
        EtcdError: etcd refuses a change.
    """
    authority = _field(store, names.namespace, AUTHORITY_SECRET, CERTIFICATE)
    root_password = _field(store, names.namespace, ROOT_SECRET, PASSWORD)
    jobs_password = _field(store, names.jobs_namespace, CLIENT_SECRET, PASSWORD)
    endpoints, _ = parse_endpoints(endpoint)
    tls = ssl.create_default_context(cadata=authority)
    limits: dict[str, Any] = {"attempt_timeout": ETCD_ATTEMPT, "call_timeout": ETCD_CALL}
    stranger = Administrator(endpoints, tls=tls, **limits)
    root = Administrator(endpoints, tls=tls, user=ROOT_USER, password=root_password, **limits)
    job = EtcdClient(endpoints, tls=tls, user=RENDEZVOUS_USER, password=jobs_password, **limits)
    _await(stranger, patience)
    was_open = stranger.is_open()
    if not was_open and _served(job):
        return False
    if not was_open and not _served(root):
        raise SetupError(
            f"etcd at {endpoint} knows another password of root than secret {ROOT_SECRET} in {names.namespace}. Bring"
            f" that secret back, or give up etcd's volumes with what is in them (running jobs make their rendezvous"
            f" anew): kubectl -n {names.namespace} delete statefulset etcd; pulumi up --refresh; kubectl -n"
            f" {names.namespace} create job --from=cronjob/etcd-upkeep etcd-passwords"
        )
    administrator = stranger if was_open else root
    administrator.set_role(RENDEZVOUS_USER, rendezvous_permissions())
    administrator.set_user(RENDEZVOUS_USER, jobs_password, RENDEZVOUS_USER)
    if was_open:
        stranger.set_user(ROOT_USER, root_password, ROOT_USER)
        stranger.close_to_strangers()
    if stranger.is_open() or _served(stranger) or not _served(job):
        raise SetupError(
            f"etcd at {endpoint} does not behave as it was told to: strangers are served, or the jobs' user is not."
            " Look at its log, then run this Job again"
        )
    log.info("etcd asks for passwords", extra={"endpoint": endpoint})
    return True


def rendezvous_permissions() -> list[dict[str, str]]:
    """What jobs may: all with keys below the rendezvous' prefix, and look whether they are let in at all."""
    below = f"{PREFIX}/".encode()
    behind = below[:-1] + bytes([below[-1] + 1])
    return [
        {"permType": "READWRITE", "key": _encoded(below), "range_end": _encoded(behind)},
        {"permType": "READ", "key": _encoded(CHECK_KEY)},
    ]


def _served(client: EtcdClient) -> bool:
    """Whether etcd serves a client.

    Raises:
        EtcdUnreachableError: it does not answer.
    """
    try:
        client.check()
    except EtcdUnreachableError:
        raise
    except EtcdError as error:
        log.debug("%s", error)
        return False
    return True


def _await(client: EtcdClient, patience: timedelta) -> None:
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        try:
            _served(client)
        except EtcdUnreachableError as error:
            if time.monotonic() >= deadline:
                raise SetupError(
                    f"{error}. Are its pods running? kubectl get pods -l app.kubernetes.io/name=etcd"
                ) from error
        else:
            return


def _field(store: Secrets, namespace: str, name: str, key: str) -> str:
    value = (store.get(namespace, name) or {}).get(key)
    if not value:
        raise SetupError(f"secret {name} in {namespace} has no {key}; `issue` makes it")
    return value.decode()


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _authority(name: str, now: datetime) -> Fields:
    key = ec.generate_private_key(ec.SECP256R1())
    # The serial in the name: who meets a certificate of an earlier authority says "unknown authority" instead of "bad
    # signature".
    subject = _named(f"trainyard {name} {x509.random_serial_number() % 10**8}")
    builder = (
        _builder(subject, subject, key, now, AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
    )
    return _fields(builder.sign(key, hashes.SHA256()), key)


def _certificate(name: str, authority: Fields, hosts: Sequence[str], now: datetime) -> Fields:
    signer = _pair(authority)
    if signer is None:
        raise SetupError(f"the authority of {name} is damaged; delete its secret and run this again")
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]  # members call each other
    builder = (
        _builder(_named(f"trainyard {name}"), signer[0].subject, key, now, LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer[1].public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
    )
    return _fields(builder.sign(signer[1], hashes.SHA256()), key) | {AUTHORITY: authority[CERTIFICATE]}


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _fields(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Fields:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {CERTIFICATE: certificate.public_bytes(serialization.Encoding.PEM), KEY: private}


def _pair(fields: Fields) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """Certificate and key of a Secret; None where they are missing, damaged or do not belong together."""
    try:
        certificate = x509.load_pem_x509_certificate(fields[CERTIFICATE])
        key = serialization.load_pem_private_key(fields[KEY], password=None)
    except (KeyError, ValueError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    return certificate, key


def _signed(certificate: x509.Certificate, authority: Fields) -> bool:
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority[CERTIFICATE]))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _hosts(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return set(names.get_values_for_type(x509.DNSName))


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def cluster_secrets() -> Secrets:
    """The Secrets of the cluster that this pod runs in, or of `KUBECONFIG`."""
    from lightkube import ApiError, Client  # noqa: PLC0415 - the program of the stack reads names here and calls nobody
    from lightkube.models.meta_v1 import ObjectMeta  # noqa: PLC0415
    from lightkube.resources.core_v1 import Secret  # noqa: PLC0415

    client = Client()

    class ClusterSecrets:
        def get(self, namespace: str, name: str) -> Fields | None:
            try:
                data = client.get(Secret, name, namespace=namespace).data or {}
            except ApiError as error:
                if error.status.code == 404:
                    return None
                raise
            return {key: base64.b64decode(value) for key, value in data.items()}

        def put(self, namespace: str, name: str, fields: Fields) -> None:
            labels = {"app.kubernetes.io/managed-by": "trainyard"}
            secret = Secret(
                metadata=ObjectMeta(name=name, namespace=namespace, labels=labels),
                type="Opaque",
                data={key: _encoded(value) for key, value in fields.items()},
            )
            if self.get(namespace, name) is None:
                client.create(secret)
            else:
                client.replace(secret)

    return ClusterSecrets()


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m training.controller.certificates",
        description="Makes the keys, certificates and users of the jobs' etcd where they are missing or end soon.",
    )
    parser.add_argument(
        "--namespace", default=os.environ.get("POD_NAMESPACE"), help="namespace of etcd (default: the pod's own)"
    )
    parser.add_argument("--jobs-namespace", required=True, help="namespace whose jobs may log in")
    parser.add_argument("--server-name", action="append", required=True, help="name by which clients call etcd; repeat")
    parser.add_argument("--peer-name", action="append", required=True, help="name by which members call one; repeat")
    parser.add_argument("--endpoint", help="URL of etcd: also has it ask for passwords (default: certificates only)")
    args = parser.parse_args(argv)
    if not args.namespace:
        parser.error("--namespace is needed outside a pod, or the variable POD_NAMESPACE in it")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs once; returns the exit code."""
    import httpx2  # noqa: PLC0415 - see `cluster_secrets`
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415

    from training.controller.client import explain  # noqa: PLC0415
    from training.controller.main import JsonFormatter  # noqa: PLC0415

    args = parse_args(sys.argv[1:] if argv is None else argv)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level="INFO", handlers=[handler], force=True)
    for chatty in ("httpx2", "httpcore2"):
        logging.getLogger(chatty).setLevel("WARNING")
    names = Names(args.namespace, args.jobs_namespace, tuple(args.server_name), tuple(args.peer_name))
    try:
        store = cluster_secrets()
        made = issue(store, names)
        changed = authenticate(store, names, args.endpoint) if args.endpoint else False
    except (SetupError, EtcdError, ConfigError) as error:
        log.error("%s", error)  # noqa: TRY400 - a sentence for the user, without a traceback
        return EXIT_FAILED
    except httpx2.HTTPError as error:
        log.error("the API server refuses or does not answer: %s", explain(error))  # noqa: TRY400
        return EXIT_FAILED
    log.info("done", extra={"made": made, "users_changed": changed})
    return 0


if __name__ == "__main__":
    sys.exit(main())
