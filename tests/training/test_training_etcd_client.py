"""The client against a real etcd: compare-and-swap, leases, lost answers, failover, and plain errors."""

import contextlib
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from local_agents import Etcd, closed_port, etcd_server, patient_client, wait_for, wipe
from self_signed import certificate

from training.launch.etcd_client import Endpoint, EtcdClient, EtcdError, EtcdUnreachableError, parse_endpoints


def test_endpoints_are_read_in_every_usual_form() -> None:
    several = [Endpoint(host="a", port=1), Endpoint(host="b", port=2379), Endpoint(host="::1", port=3)]

    assert parse_endpoints("a:1;b;[::1]:3") == (several, None)
    assert parse_endpoints("https://a:1") == ([Endpoint(host="a", port=1)], True)
    assert parse_endpoints("http://a|http://b:2") == ([Endpoint(host="a"), Endpoint(host="b", port=2)], False)


@pytest.mark.parametrize("text", ["", "a:b", "ftp://a", "https://a http://b", "a:99999"])
def test_endpoints_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        parse_endpoints(text)


def test_a_password_in_an_endpoint_is_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="holds no user") as caught:
        parse_endpoints("https://job:secret@etcd:x")
    assert "secret" not in str(caught.value)


def test_an_etcd_that_does_not_answer_is_told_within_the_time_limit() -> None:
    told = r"etcd does not answer at 127\.0\.0\.1:\d+ .*check the address"
    with closed_port() as port, pytest.raises(EtcdUnreachableError, match=told):
        EtcdClient([Endpoint(host="127.0.0.1", port=port)], call_timeout=timedelta(seconds=0.5)).get(b"key")


def test_who_is_in_a_hurry_does_not_wait_for_the_time_limit() -> None:
    """A call that another thread is making ends too."""
    limit = timedelta(seconds=300)
    with closed_port() as port:
        client = EtcdClient([Endpoint(host="127.0.0.1", port=port)], call_timeout=limit)
        timer = threading.Timer(0.3, client.hurry, [timedelta(seconds=0.3)])
        start = time.monotonic()
        timer.start()
        for _ in range(2):
            with pytest.raises(EtcdUnreachableError):
                client.get(b"key")
    assert time.monotonic() - start < limit.total_seconds() / 5


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def client(etcd: Etcd) -> EtcdClient:
    client = patient_client(parse_endpoints(etcd.endpoint)[0])
    wipe(client)
    return client


pytestmark = pytest.mark.engines


def test_a_key_is_written_read_counted_and_deleted(client: EtcdClient) -> None:
    assert client.get(b"a/1") is None
    revision = client.put(b"a/1", b"\x00\xffbinary")
    client.put(b"a/2", b"")

    found = client.get(b"a/1")
    assert found is not None
    assert (found.value, found.mod_revision) == (b"\x00\xffbinary", revision)
    first, missing, empty = client.get_many([b"a/1", b"a/0", b"a/2"])
    assert first == found
    assert missing is None
    assert empty is not None
    assert empty.value == b""
    assert client.count(b"a/") == 2
    assert client.delete(b"a/1")
    assert not client.delete(b"a/1")
    assert client.count(b"a/") == 1


def test_compare_and_swap_writes_only_on_top_of_what_was_read(client: EtcdClient) -> None:
    created, first = client.compare_and_swap(b"k", b"one", 0)
    assert created
    assert first is not None

    again, current = client.compare_and_swap(b"k", b"two", 0)
    assert not again
    assert current == first

    swapped, second = client.compare_and_swap(b"k", b"two", first.mod_revision)
    assert swapped
    assert second is not None
    assert client.get(b"k") == second

    on_nothing, current = client.compare_and_swap(b"absent", b"x", 5)
    assert not on_nothing
    assert current is None


def test_of_many_writers_at_once_exactly_one_wins_each_revision(client: EtcdClient) -> None:
    wins = []

    def write(name: int) -> None:
        for attempt in range(20):
            held = client.get(b"race")
            revision = held.mod_revision if held else 0
            if client.compare_and_swap(b"race", b"%d:%d" % (name, attempt), revision)[0]:
                wins.append(revision)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(wins) == len(set(wins)) >= 20


def test_a_lease_takes_its_keys_with_it(client: EtcdClient) -> None:
    lease = client.grant_lease(timedelta(seconds=600))
    client.put(b"leased", b"x", lease=lease)
    assert client.keep_lease(lease)

    client._call("/v3/lease/revoke", {"ID": str(lease)})  # as if nobody had kept it for so long

    assert client.get(b"leased") is None
    assert not client.keep_lease(lease)
    with pytest.raises(EtcdError, match="lease not found"):
        client.put(b"leased", b"x", lease=lease)


class LossyProxy:
    """Passes requests on to etcd and can swallow the answer of the next transaction: written, but nobody knows."""

    def __init__(self, target: str) -> None:
        proxy = self
        self.lose_next = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with urlopen(Request(f"http://{target}{self.path}", body)) as response:
                    answer = response.read()
                if proxy.lose_next and self.path.endswith("txn"):
                    proxy.lose_next -= 1
                    self.connection.shutdown(socket.SHUT_RDWR)  # at once: nobody waits for a time limit
                    self.close_connection = True
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def test_a_write_whose_answer_was_lost_is_recognised_as_ours(etcd: Etcd, client: EtcdClient) -> None:
    proxy = LossyProxy(etcd.endpoint)
    lossy = patient_client([Endpoint(host="127.0.0.1", port=proxy.server.server_address[1])])
    try:
        proxy.lose_next = 1
        swapped, current = lossy.compare_and_swap(b"k", b"mine:1", 0)
        assert swapped
        assert current == client.get(b"k")

        client.put(b"k", b"theirs")
        proxy.lose_next = 1
        assert current is not None
        swapped, current = lossy.compare_and_swap(b"k", b"mine:2", current.mod_revision)
        assert not swapped
        assert current is not None
        assert current.value == b"theirs"
    finally:
        proxy.server.shutdown()
        proxy.server.server_close()


def test_the_next_endpoint_is_used_when_one_does_not_answer(etcd: Etcd, client: EtcdClient) -> None:
    client.put(b"k", b"v")
    with closed_port() as port:
        dead = Endpoint(host="127.0.0.1", port=port)
        found = patient_client([dead, Endpoint(host="127.0.0.1", port=etcd.port)]).get(b"k")

    assert found is not None
    assert found.value == b"v"


def test_calls_survive_a_restart_of_etcd(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        client = patient_client(parse_endpoints(server.endpoint)[0])
        client.put(b"k", b"v")
        server.stop()
        restart = threading.Timer(0.5, server.start)
        restart.start()
        found = client.get(b"k")
        restart.join()
    assert found is not None
    assert found.value == b"v"


def test_something_else_on_the_port_is_told() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        client = EtcdClient(
            [Endpoint(host="127.0.0.1", port=server.server_address[1])], call_timeout=timedelta(seconds=1)
        )

        def told() -> bool:
            """The last attempt counts: one that was cut by the time limit has nothing to tell."""
            with pytest.raises(EtcdUnreachableError) as caught:
                client.check()
            return "is it really etcd's client port" in str(caught.value)

        wait_for(told, "a word about what is on the port")
    finally:
        server.shutdown()
        server.server_close()


def tls_server(folder: Path) -> Etcd:
    return Etcd(folder, f"--cert-file={folder / 'tls.crt'}", f"--key-file={folder / 'tls.key'}", scheme="https")


def test_tls_is_verified_by_authority_name_and_date(tmp_path: Path) -> None:
    certificate(tmp_path)
    server = tls_server(tmp_path)
    try:
        server.start()
        endpoints = parse_endpoints(server.endpoint)[0]
        trusting = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))

        patient_client(endpoints, tls=trusting, server_name="etcd.test").check()
        with pytest.raises(EtcdError, match="not accepted: IP address mismatch"):
            patient_client(endpoints, tls=trusting).check()
        with pytest.raises(EtcdError, match="not accepted: self-signed"):
            patient_client(endpoints, tls=ssl.create_default_context(), server_name="etcd.test").check()
        with pytest.raises(EtcdUnreachableError, match="whether it wants TLS"):
            EtcdClient(endpoints, call_timeout=timedelta(seconds=0.3)).check()
    finally:
        server.stop()


def test_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    certificate(tmp_path, days=-1)
    server = tls_server(tmp_path)
    try:
        server.start()
        trusting = ssl.create_default_context(cafile=str(tmp_path / "tls.crt"))
        with pytest.raises(EtcdError, match="certificate has expired"):
            patient_client(parse_endpoints(server.endpoint)[0], tls=trusting, server_name="etcd.test").check()
    finally:
        server.stop()


def test_users_are_logged_in_and_again_when_their_token_is_forgotten(tmp_path: Path) -> None:
    server = Etcd(tmp_path)
    try:
        server.start()
        endpoints = parse_endpoints(server.endpoint)[0]
        admin = patient_client(endpoints)
        admin._call("/v3/auth/user/add", {"name": "root", "password": "secret"})
        admin._call("/v3/auth/role/add", {"name": "root"})
        admin._call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        admin._call("/v3/auth/enable", {})

        client = patient_client(endpoints, user="root", password="secret")
        client.put(b"k", b"v")
        first_token = client._token
        client._token = "forgotten.1"
        found = client.get(b"k")
        assert found is not None
        assert client._token not in {first_token, "forgotten.1", None}

        # With a new password, even the same, etcd forgets the user's tokens, as it does when nobody uses them for long.
        client._call("/v3/auth/user/changepw", {"name": "root", "password": "secret"})
        with pytest.raises(EtcdError):
            client._send(endpoints[0], "/v3/kv/range", {"key": "aw=="}, float("inf"), token=client._token)
        assert client.get(b"k") is not None

        with pytest.raises(EtcdError, match="authentication failed"):
            patient_client(endpoints, user="root", password="wrong").check()
        with pytest.raises(EtcdError, match="refuses"):
            patient_client(endpoints).check()
    finally:
        server.stop()


def test_an_exception_in_the_middle_of_a_call_does_not_spoil_the_next(etcd: Etcd, client: EtcdClient) -> None:
    """A signal's exception can arrive anywhere; the answer to the interrupted request must not be read by another."""
    client.put(b"k", b"v")

    def interrupted() -> None:
        with client._connection(Endpoint(host="127.0.0.1", port=etcd.port), 30) as connection:
            connection.request("POST", "/v3/kv/range", body=b"{}")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    found = client.get(b"k")
    assert found is not None
    assert found.value == b"v"


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd that holds a key and has stopped in the middle: its kernel takes connections, it does not answer."""
    with etcd_server(tmp_path) as server:
        patient_client(parse_endpoints(server.endpoint)[0]).put(b"k", b"v")
        server.signal(signal.SIGSTOP)
        try:
            yield server
        finally:
            server.signal(signal.SIGCONT)


# What is limited to a second would take the other limit's two minutes if it were not; a slow machine takes seconds.
SHORT, LONG, SLOW = timedelta(seconds=1), timedelta(seconds=120), timedelta(seconds=30)


def test_a_frozen_etcd_costs_one_time_limit_and_no_more(frozen: Etcd) -> None:
    client = EtcdClient(parse_endpoints(frozen.endpoint)[0], attempt_timeout=LONG, call_timeout=SHORT)
    start = time.monotonic()
    with pytest.raises(EtcdUnreachableError):
        client.get(b"k")
    assert time.monotonic() - start < SLOW.total_seconds()

    frozen.signal(signal.SIGCONT)

    def answers() -> bool:
        with contextlib.suppress(EtcdUnreachableError):
            return client.get(b"k") is not None
        return False

    wait_for(answers, "the same client to be answered again")


def test_a_frozen_member_is_given_up_for_the_next_after_one_attempt(
    frozen: Etcd, etcd: Etcd, client: EtcdClient
) -> None:
    client.put(b"k", b"from the next")
    endpoints = parse_endpoints(f"{frozen.endpoint};{etcd.endpoint}")[0]
    start = time.monotonic()
    found = EtcdClient(endpoints, attempt_timeout=SHORT, call_timeout=LONG).get(b"k")
    assert found is not None
    assert found.value == b"from the next"
    assert time.monotonic() - start < SLOW.total_seconds()
