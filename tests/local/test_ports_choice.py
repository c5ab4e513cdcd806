"""Ports and loopback networks: free ones, the same again, and a plain word when a fixed one is taken."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local import ports
from infra.local.errors import LocalClusterError


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_same_key_gives_the_same_ports() -> None:
    assert ports.choose("here", 3) == ports.choose("here", 3)
    assert len(set(ports.choose("here", 3))) == 3


def test_ports_in_use_are_passed_over() -> None:
    [first] = ports.choose("a key", 1)
    with socket.create_server(("127.0.0.1", first)):
        assert ports.choose("a key", 1) != [first]
    assert ports.choose("a key", 1, taken=[first]) != [first]


def test_a_port_that_is_about_to_be_free_is_waited_for(taken: int) -> None:
    assert not ports.becomes_free(taken, seconds=0.05)
    server = socket.create_server(("127.0.0.1", 0))
    threading.Timer(0.2, server.close).start()
    assert ports.becomes_free(server.getsockname()[1], seconds=60)


def test_ports_stay_clear_of_outgoing_connections() -> None:
    assert all(ports.FIRST_PORT <= port < ports.LAST_PORT for port in ports.choose("range", 5))


def test_none_left_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda _: False)
    with pytest.raises(LocalClusterError, match="no 1 free ports"):
        ports.choose("x", 1)


def test_a_taken_fixed_port_is_an_error_that_names_the_listener(taken: int) -> None:
    with pytest.raises(LocalClusterError) as caught:
        ports.require_free(taken, "the API server", "apiServerPort")
    message = str(caught.value)
    assert f"port {taken}" in message
    assert "apiServerPort" in message
    assert "pytest" in message or "python" in message


def test_a_free_fixed_port_is_fine() -> None:
    [port] = ports.choose("fixed", 1)
    ports.require_free(port, "the API server", "apiServerPort")


def test_a_network_in_use_is_passed_over(tmp_path: Path) -> None:
    first = ports.choose_network(tmp_path)
    with socket.create_server((f"127.{first}.9.9", 0)):
        second = ports.choose_network(tmp_path)
    assert first != second
    assert 1 <= second <= 253


def test_only_who_listens_uses_a_network(tmp_path: Path) -> None:
    network = ports.choose_network(tmp_path)
    with socket.create_server((f"127.{network}.9.9", 0)) as server:
        assert network in ports.used_networks()
        client = socket.create_connection(server.getsockname(), source_address=(f"127.{network}.9.8", 0))
        accepted = server.accept()[0]
    with client, accepted:
        assert network not in ports.used_networks()
