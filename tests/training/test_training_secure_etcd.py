"""The rendezvous on etcd with TLS, users and roles, old and new, and what is said when something is wrong with it."""

import json
import os
import ssl
import textwrap
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from local_agents import Etcd, Job, closed_port, find_etcd, find_old_etcd, free_port, patient_client, wait_for
from self_signed import certificate
from torch.distributed.elastic.rendezvous import RendezvousParameters

from training.controller.certificates import RENDEZVOUS_USER, rendezvous_permissions
from training.launch import exit_codes, rendezvous
from training.launch.etcd_client import Endpoint, EtcdClient, EtcdError, EtcdUnreachableError, parse_endpoints
from training.launch.membership import decode
from training.launch.rendezvous import create_handler

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

PASSWORD = "a-jobs-password"
# Seconds that a token lives while nobody uses it. Half of etcd's own 300 would be as good, but tests wait for it.
TOKEN_LIFE = 1


class SecureEtcd(Etcd):
    """An etcd that asks everybody for a password, over TLS; jobs may touch the rendezvous' keys only."""

    def __init__(self, folder: Path, program: str, *options: str, days: int = 1) -> None:
        certificate(folder, days=days)
        self.folder = folder
        files = f"--cert-file={folder / 'tls.crt'}", f"--key-file={folder / 'tls.key'}"
        super().__init__(folder, *files, *options, scheme="https", program=program)

    def client(self, **options: Any) -> EtcdClient:
        trusting = ssl.create_default_context(cafile=str(self.folder / "tls.crt"))
        return patient_client(parse_endpoints(self.endpoint)[0], tls=trusting, server_name="etcd.test", **options)

    def secure(self) -> None:
        admin = self.client()
        for user, password, permissions in (
            ("root", "secret", []),
            (RENDEZVOUS_USER, PASSWORD, rendezvous_permissions()),
        ):
            admin._call("/v3/auth/role/add", {"name": user})
            for permission in permissions:
                admin._call("/v3/auth/role/grant", {"name": user, "perm": permission})
            admin._call("/v3/auth/user/add", {"name": user, "password": password})
            admin._call("/v3/auth/user/grant", {"user": user, "role": user})
        admin._call("/v3/auth/enable", {})

    @property
    def environment(self) -> dict[str, str]:
        """What a job needs, none of it on a command line."""
        return {
            "TRAINYARD_ETCD_CACERT": str(self.folder / "tls.crt"),
            "TRAINYARD_ETCD_SERVER_NAME": "etcd.test",
            "TRAINYARD_ETCD_USER": RENDEZVOUS_USER,
            "TRAINYARD_ETCD_PASSWORD": PASSWORD,
        }


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SecureEtcd]:
    etcd = SecureEtcd(tmp_path, find_etcd(), f"--auth-token-ttl={TOKEN_LIFE}")
    try:
        etcd.start()
        etcd.secure()
        yield etcd
    finally:
        etcd.stop()


# Says where it is, and stays until the test has seen enough.
PRESENT = """
    import os, time
    from training.metrics.progress import emit
    emit("present", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    while not os.path.exists("enough"):
        time.sleep(0.1)
"""


@pytest.mark.parametrize("program", [find_etcd, find_old_etcd], ids=["newest", "debian"])
def test_launchers_meet_part_and_finish_on_an_etcd_with_tls_and_users(tmp_path: Path, program: Any) -> None:
    etcd = SecureEtcd(tmp_path, program())
    (tmp_path / "present.py").write_text(textwrap.dedent(PRESENT))
    job = Job(tmp_path, etcd, [str(tmp_path / "present.py")], nnodes="1:2")

    def is_seen(world_size: int) -> bool:
        seen = [event["rank"] for event in job.events("present") if event["world_size"] == world_size]
        return set(seen) >= set(range(world_size))

    try:
        etcd.start()
        etcd.secure()
        stays, goes = (job.start(name, environment=etcd.environment) for name in "ab")
        wait_for(lambda: is_seen(2), f"a world of two: {job.tail()}")
        wrong = job.start("wrong", environment={**etcd.environment, "TRAINYARD_ETCD_PASSWORD": "guessed"})
        assert wrong.wait() == exit_codes.FAILED
        assert "authentication failed, invalid user ID or password" in wrong.log.read_text()
        assert "Traceback" not in wrong.log.read_text()

        goes.process.terminate()
        goes.wait()
        wait_for(lambda: is_seen(1), f"a world of one: {job.tail()}")
        (tmp_path / "enough").touch()
        assert stays.wait() == exit_codes.FINISHED, job.tail()
        held = etcd.client(user="root", password="secret").get(b"/trainyard/rendezvous/job/state")
        assert held is not None
        assert decode(held.value).outcome == "finished"
        assert json.loads(held.value)["job"] == "present.py on 1:2 nodes"
    finally:
        job.stop()
        etcd.stop()


def test_a_token_that_has_expired_is_replaced_without_a_word(secure: SecureEtcd) -> None:
    client = secure.client(user=RENDEZVOUS_USER, password=PASSWORD)
    key = b"/trainyard/rendezvous/k"
    client.put(key, b"v")
    expired = client._token

    def has_expired() -> bool:
        """Whether etcd has forgotten it; to ask would be to use it, so first nobody does for a while."""
        time.sleep(2 * TOKEN_LIFE + 1)
        try:
            client._send(client._endpoints[0], "/v3/kv/range", {"key": "aw=="}, float("inf"), token=expired)
        except EtcdError as error:
            return "invalid auth token" in str(error)
        return False

    wait_for(has_expired, "the token to expire")
    held = client.get(key)
    assert held is not None
    assert held.value == b"v"
    assert client._token != expired


def test_a_job_reaches_no_keys_but_those_of_the_rendezvous(secure: SecureEtcd) -> None:
    with pytest.raises(EtcdError, match="permission denied"):
        secure.client(user=RENDEZVOUS_USER, password=PASSWORD).get(b"/somebody/else")


def parameters(endpoint: str, **config: str) -> RendezvousParameters:
    return RendezvousParameters("etcd-v3", endpoint, "job", 1, 2, None, **config)


def told(endpoint: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a launcher that is started with this says, and ends."""
    monkeypatch.setattr(rendezvous, "START_PATIENCE", timedelta(seconds=1))
    for name in [name for name in os.environ if name.startswith("TRAINYARD_ETCD_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EtcdError) as caught:
        create_handler(parameters(endpoint))
    return str(caught.value)


def test_an_etcd_that_is_not_there_is_told_after_a_bounded_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_port() as port:
        message = told(f"127.0.0.1:{port}", {}, monkeypatch)
    assert message.startswith(f"etcd does not answer at 127.0.0.1:{port} (")
    assert "Connection refused" in message
    assert "check the address, that etcd runs, and whether it wants TLS" in message


def test_a_certificate_that_is_expired_or_of_another_authority_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "expired").mkdir()
    (tmp_path / "foreign").mkdir()
    certificate(tmp_path / "foreign")
    etcd = SecureEtcd(tmp_path / "expired", find_etcd(), days=-1)
    try:
        etcd.start()
        message = told(etcd.endpoint, etcd.environment, monkeypatch)
        assert f"the certificate of etcd at {etcd.endpoint} is not accepted: certificate has expired" in message
        foreign = {**etcd.environment, "TRAINYARD_ETCD_CACERT": str(tmp_path / "foreign" / "tls.crt")}
        message = told(etcd.endpoint, foreign, monkeypatch)
        assert f"the certificate of etcd at {etcd.endpoint} is not accepted" in message
        assert "check that `cacert` is the authority that signed it" in message
    finally:
        etcd.stop()


class Member(BaseHTTPRequestHandler):
    """A member of etcd that has lost its leader: it refuses with what etcd says then."""

    refusal = ""

    def do_POST(self) -> None:
        body = json.dumps({"code": 14, "message": self.refusal}).encode()
        self.send_response(503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("refusal", ["etcdserver: no leader", "etcdserver: leader changed"])
def test_a_member_without_leader_is_left_for_the_next(refusal: str) -> None:
    leaderless = ThreadingHTTPServer(("127.0.0.1", 0), type("Leaderless", (Member,), {"refusal": refusal}))
    well = ThreadingHTTPServer(("127.0.0.1", 0), type("Well", (Member,), {"do_POST": _answer_empty}))
    servers = (leaderless, well)
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        endpoints = [Endpoint(host="127.0.0.1", port=server.server_address[1]) for server in servers]
        assert patient_client(endpoints).get(b"k") is None
        with pytest.raises(EtcdUnreachableError, match=refusal):
            EtcdClient(endpoints[:1], call_timeout=timedelta(seconds=1)).get(b"k")
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _answer_empty(self: Member) -> None:
    self.send_response(200)
    self.send_header("Content-Length", "2")
    self.end_headers()
    self.wfile.write(b"{}")


def test_of_three_real_members_one_may_die_whichever_it_is(tmp_path: Path) -> None:
    """The client goes to another member, and a heartbeat survives the election of a new leader."""
    peers = {name: free_port() for name in "abc"}
    cluster = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in peers.items())
    members = []
    for name, port in peers.items():
        (tmp_path / name).mkdir()
        url = f"http://127.0.0.1:{port}"
        members.append(
            Etcd(
                tmp_path / name,
                *(f"--name={name}", f"--initial-cluster={cluster}", f"--listen-peer-urls={url}"),
                f"--initial-advertise-peer-urls={url}",
            )
        )
    starts = [threading.Thread(target=member.start) for member in members]
    try:
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        client = patient_client([Endpoint(host="127.0.0.1", port=member.port) for member in members])
        swapped, held = client.compare_and_swap(b"k", b"0", 0)
        assert swapped
        for number, member in enumerate(members, 1):
            assert held is not None
            member.stop()
            swapped, held = client.compare_and_swap(b"k", b"%d" % number, held.mod_revision)
            assert swapped
            member.start()
    finally:
        for member in members:
            member.stop()
