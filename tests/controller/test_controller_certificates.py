"""Keys, certificates and users of the jobs' etcd: made once, kept while good, and real etcd members live by them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from real_api_server import end, engine, free_port

from training.controller import certificates
from training.controller.api import ElasticJob
from training.controller.certificates import (
    AUTHORITY,
    AUTHORITY_SECRET,
    CERTIFICATE,
    CLIENT_SECRET,
    KEY,
    PASSWORD,
    PEER_SECRET,
    PEERS_SECRET,
    ROOT_SECRET,
    SERVER_SECRET,
    Fields,
    Names,
    SetupError,
    authenticate,
    issue,
)
from training.controller.main import parse_args
from training.controller.pods import RendezvousLogin, worker_pod
from training.launch import rendezvous
from training.launch.etcd_client import EtcdClient, EtcdError, EtcdUnreachableError, parse_endpoints

NAMES = Names(
    "trainyard-system", "training", ("localhost", "etcd.trainyard-system"), ("localhost", "etcd-0.etcd-peers")
)
ALL = [AUTHORITY_SECRET, PEERS_SECRET, SERVER_SECRET, PEER_SECRET, ROOT_SECRET, CLIENT_SECRET]


class Store:
    """The Secrets of a cluster in a dictionary."""

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, str], Fields] = {}

    def get(self, namespace: str, name: str) -> Fields | None:
        return self.secrets.get((namespace, name))

    def put(self, namespace: str, name: str, fields: Fields) -> None:
        self.secrets[namespace, name] = fields

    def certificate(self, name: str) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.secrets["trainyard-system", name][CERTIFICATE])


class TestIssue:
    def test_all_is_made_once_and_stays(self) -> None:
        store = Store()
        assert issue(store, NAMES) == ALL
        before = dict(store.secrets)
        assert issue(store, NAMES) == []
        assert store.secrets == before

    def test_jobs_get_authority_and_password_and_no_key(self) -> None:
        store = Store()
        issue(store, NAMES)
        client = store.secrets["training", CLIENT_SECRET]
        assert client[AUTHORITY] == store.secrets["trainyard-system", AUTHORITY_SECRET][CERTIFICATE]
        assert set(client) == {"ca.crt", "user", "password", "cacert-path"}
        assert [name for namespace, name in store.secrets if namespace == "training"] == [CLIENT_SECRET]

    def test_members_and_clients_have_different_authorities(self) -> None:
        """Whoever holds a certificate of the members' authority is a member: the server's is not one of them."""
        store = Store()
        issue(store, NAMES)
        server, peer = store.certificate(SERVER_SECRET), store.certificate(PEER_SECRET)
        server.verify_directly_issued_by(store.certificate(AUTHORITY_SECRET))
        peer.verify_directly_issued_by(store.certificate(PEERS_SECRET))
        assert server.issuer != peer.issuer

    def test_what_ends_soon_is_renewed_and_nothing_besides(self) -> None:
        store = Store()
        start = datetime.now(UTC)
        issue(store, NAMES, now=start)
        assert issue(store, NAMES, now=start + timedelta(days=274)) == []
        assert issue(store, NAMES, now=start + timedelta(days=276)) == [SERVER_SECRET, PEER_SECRET]
        assert issue(store, NAMES, now=start + timedelta(days=276)) == []

    def test_no_certificate_outlives_its_authority(self) -> None:
        store = Store()
        start = datetime.now(UTC)
        for days in range(0, 3650, 120):
            issue(store, NAMES, now=start + timedelta(days=days))
            for name, authority in ((SERVER_SECRET, AUTHORITY_SECRET), (PEER_SECRET, PEERS_SECRET)):
                leaf, signer = store.certificate(name), store.certificate(authority)
                leaf.verify_directly_issued_by(signer)
                assert leaf.not_valid_after_utc <= signer.not_valid_after_utc

    def test_a_new_authority_brings_new_certificates_and_the_jobs_keep_their_password(self) -> None:
        store = Store()
        issue(store, NAMES)
        password = store.secrets["training", CLIENT_SECRET][PASSWORD]
        del store.secrets["trainyard-system", AUTHORITY_SECRET]
        assert issue(store, NAMES) == [AUTHORITY_SECRET, SERVER_SECRET, CLIENT_SECRET]
        assert store.secrets["training", CLIENT_SECRET][PASSWORD] == password

    @pytest.mark.parametrize("field", [CERTIFICATE, KEY, AUTHORITY])
    def test_a_damaged_secret_is_made_anew(self, field: str) -> None:
        store = Store()
        issue(store, NAMES)
        store.secrets["trainyard-system", SERVER_SECRET][field] = b"damaged"
        assert issue(store, NAMES) == [SERVER_SECRET]

    def test_another_name_of_etcd_brings_another_certificate(self) -> None:
        store = Store()
        issue(store, NAMES)
        more = Names(NAMES.namespace, NAMES.jobs_namespace, (*NAMES.server, "etcd.elsewhere"), NAMES.peer)
        assert issue(store, more) == [SERVER_SECRET]


def test_the_rights_reach_no_secret_of_others() -> None:
    for rules, names in (
        (certificates.system_rules(), {AUTHORITY_SECRET, PEERS_SECRET, SERVER_SECRET, PEER_SECRET, ROOT_SECRET}),
        (certificates.client_rules(), {CLIENT_SECRET}),
    ):
        create, known = rules
        assert create["verbs"] == ["create"]  # which cannot be tied to names
        assert (set(known["resourceNames"]), known["verbs"]) == (names, ["get", "update"])


def job(endpoint: str, **container: object) -> ElasticJob:
    template = {"spec": {"containers": [{"name": "elasticjob-worker", "image": "i", **container}]}}
    return ElasticJob.model_validate(
        {
            "metadata": {"name": "digits", "namespace": "training", "uid": "0123456789abcdef"},
            "spec": {
                "rdzvEndpoint": endpoint,
                "replicaSpecs": {"Worker": {"replicas": 1, "restartPolicy": "ExitCode", "template": template}},
            },
        }
    )


class TestLoginOfWorkers:
    LOGIN = RendezvousLogin(CLIENT_SECRET, "etcd.trainyard-system")

    @pytest.mark.parametrize(
        "endpoint",
        [
            "etcd.trainyard-system:2379",
            "https://etcd.trainyard-system:2379",
            "etcd.trainyard-system.svc:2379",
            "etcd.trainyard-system.svc.cluster.local:2379",
        ],
    )
    def test_who_meets_at_this_etcd_gets_user_password_and_authority(self, endpoint: str) -> None:
        spec = worker_pod(job(endpoint), 0, 1, "1:1", self.LOGIN)["spec"]
        refs = {v["name"]: v["valueFrom"]["secretKeyRef"] for v in spec["containers"][0]["env"] if "ETCD" in v["name"]}
        assert set(refs) <= set(rendezvous._ENVIRONMENT.values()), "the launcher knows these"
        assert {name: ref["key"] for name, ref in refs.items()} == {
            "TRAINYARD_ETCD_USER": "user",
            "TRAINYARD_ETCD_PASSWORD": "password",
            "TRAINYARD_ETCD_CACERT": "cacert-path",
        }
        assert all(ref["optional"] and ref["name"] == CLIENT_SECRET for ref in refs.values())
        assert spec["volumes"][0]["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
        assert spec["containers"][0]["volumeMounts"][0]["mountPath"] == certificates.MOUNT

    @pytest.mark.parametrize(
        "endpoint",
        [
            "etcd.trainyard-system.example.com:2379",
            "etcd:2379",
            "10.0.0.1:2379",
            "etcd.my-own:2379",
            "etcd.trainyard-system:2379;etcd.my-own:2379",  # the launcher may try either
            "etcd.trainyard-system:not-a-port",
        ],
    )
    def test_no_password_is_sent_anywhere_else(self, endpoint: str) -> None:
        assert worker_pod(job(endpoint), 0, 1, "1:1", self.LOGIN) == worker_pod(job(endpoint), 0, 1, "1:1")

    def test_what_the_user_has_set_stays(self) -> None:
        mine = [{"name": "TRAINYARD_ETCD_USER", "value": "me"}]
        spec = worker_pod(job("etcd.trainyard-system:2379", env=mine), 0, 1, "1:1", self.LOGIN)["spec"]
        users = [v for v in spec["containers"][0]["env"] if v["name"] == "TRAINYARD_ETCD_USER"]
        assert users == mine

    def test_a_secret_without_a_host_is_a_mistake(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            parse_args(["--rendezvous-secret", "etcd-client"])
        assert "belong together" in capsys.readouterr().err


@contextlib.contextmanager
def members(folder: Path, store: Store, count: int) -> Iterator[str]:
    """A real etcd with the certificates of a store; yields the URL of a member."""
    put_into(folder, store)
    ports = [(free_port(), free_port()) for _ in range(count)]
    cluster = ",".join(f"m{index}=https://localhost:{peer}" for index, (_, peer) in enumerate(ports))
    server, peer_files = folder / SERVER_SECRET, folder / PEER_SECRET
    processes = [
        subprocess.Popen(
            [
                engine("etcd"),
                f"--name=m{index}",
                f"--data-dir={folder / f'm{index}'}",
                f"--listen-client-urls=https://127.0.0.1:{client}",
                f"--advertise-client-urls=https://localhost:{client}",
                f"--listen-peer-urls=https://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=https://localhost:{peer}",
                f"--initial-cluster={cluster}",
                f"--cert-file={server}/tls.crt",
                f"--key-file={server}/tls.key",
                f"--peer-cert-file={peer_files}/tls.crt",
                f"--peer-key-file={peer_files}/tls.key",
                f"--peer-trusted-ca-file={peer_files}/ca.crt",
                "--peer-client-cert-auth=true",
                "--peer-skip-client-san-verification=true",
                "--unsafe-no-fsync",
                "--log-level=error",
            ],
            stderr=(folder / f"m{index}.log").open("wb"),
        )
        for index, (client, peer) in enumerate(ports)
    ]
    try:
        yield f"https://localhost:{ports[0][0]}"
    finally:
        for process in processes:
            end(process)


def put_into(folder: Path, store: Store) -> None:
    for name in (SERVER_SECRET, PEER_SECRET):
        (folder / name).mkdir(exist_ok=True)
        for field, value in store.secrets["trainyard-system", name].items():
            (folder / name / field).write_bytes(value)


def shown_by(store: Store, url: str) -> int:
    """Serial number of the certificate that a member shows to who connects now."""
    (endpoint,), _ = parse_endpoints(url)
    context = ssl.create_default_context(cadata=store.secrets["training", CLIENT_SECRET][AUTHORITY].decode())
    with (
        socket.create_connection((endpoint.host, endpoint.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=endpoint.host) as connection,
    ):
        shown = connection.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def client_of(store: Store, url: str, *, tls: bool = True, password: str | None = None) -> EtcdClient:
    authority = store.secrets["training", CLIENT_SECRET][AUTHORITY].decode()
    return EtcdClient(
        parse_endpoints(url)[0],
        tls=ssl.create_default_context(cadata=authority) if tls else None,
        user="rendezvous" if password is not None else None,
        password=password,
        # Who does not speak TLS is never answered and gives up soon; the others are, on a slow computer later.
        attempt_timeout=timedelta(seconds=30 if tls else 1),
        call_timeout=timedelta(seconds=120 if tls else 2),
    )


@pytest.fixture(scope="module")
def store() -> Store:
    store = Store()
    issue(store, NAMES)
    return store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the members find the Secrets, as in a pod."""
    return tmp_path_factory.mktemp("etcd")


@pytest.fixture(scope="module")
def url(store: Store, folder: Path) -> Iterator[str]:
    with members(folder, store, 3) as url:
        yield url


@pytest.mark.engines
class TestAuthenticate:
    """In the order of the file, on one etcd."""

    def test_three_members_meet_by_their_certificates_and_are_told_to_ask_for_passwords(
        self, store: Store, url: str
    ) -> None:
        assert authenticate(store, NAMES, url) is True

    def test_a_second_run_changes_nothing(self, store: Store, url: str) -> None:
        assert authenticate(store, NAMES, url) is False

    def test_strangers_are_refused(self, store: Store, url: str) -> None:
        with pytest.raises(EtcdUnreachableError):
            client_of(store, url, tls=False).check()
        with pytest.raises(EtcdError, match="user name is empty"):
            client_of(store, url).check()
        with pytest.raises(EtcdError, match="authentication failed"):
            client_of(store, url, password="guessed").check()

    def test_jobs_reach_the_keys_of_the_rendezvous_and_no_others(self, store: Store, url: str) -> None:
        jobs = client_of(store, url, password=store.secrets["training", CLIENT_SECRET][PASSWORD].decode())
        jobs.check()
        below = f"{rendezvous.PREFIX}/digits/state".encode()
        lease = jobs.grant_lease(timedelta(seconds=30))
        assert jobs.compare_and_swap(below, b"1", 0, lease=lease)[0]
        assert jobs.count(f"{rendezvous.PREFIX}/digits/".encode()) == 1
        assert jobs.keep_lease(lease)
        for elsewhere in (b"/registry/secrets", rendezvous.PREFIX.encode(), b"\0"):
            with pytest.raises(EtcdError, match="permission denied"):
                jobs.put(elsewhere, b"1")
        with pytest.raises(EtcdError, match="permission denied"):
            jobs.get(b"/registry/secrets")

    def test_a_password_that_was_lost_is_replaced(self, store: Store, url: str) -> None:
        del store.secrets["training", CLIENT_SECRET]
        issue(store, NAMES)
        assert authenticate(store, NAMES, url) is True
        client_of(store, url, password=store.secrets["training", CLIENT_SECRET][PASSWORD].decode()).check()

    def test_a_renewed_certificate_needs_no_restart(self, store: Store, url: str, folder: Path) -> None:
        before = shown_by(store, url)
        del store.secrets["trainyard-system", SERVER_SECRET]
        assert issue(store, NAMES) == [SERVER_SECRET]
        put_into(folder, store)  # as the kubelet does with Secrets that are mounted
        assert shown_by(store, url) == store.certificate(SERVER_SECRET).serial_number != before

    def test_another_root_is_told_with_what_to_do(self, store: Store, url: str) -> None:
        lost = Store()
        lost.secrets = dict(store.secrets)
        del lost.secrets["trainyard-system", ROOT_SECRET]
        del lost.secrets["training", CLIENT_SECRET]
        issue(lost, NAMES)
        with pytest.raises(SetupError, match="another password of root than secret etcd-root"):
            authenticate(lost, NAMES, url)


@pytest.mark.engines
def test_an_etcd_that_does_not_come_is_told_after_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.controller.certificates.ETCD_CALL", timedelta(seconds=1))
    store = Store()
    issue(store, NAMES)
    with pytest.raises(SetupError, match="etcd does not answer"):
        authenticate(store, NAMES, f"https://localhost:{free_port()}", patience=timedelta(seconds=0))


def test_secrets_that_are_missing_are_named() -> None:
    with pytest.raises(SetupError, match=r"secret etcd-authority in trainyard-system has no tls\.crt"):
        authenticate(Store(), NAMES, "https://localhost:1")
