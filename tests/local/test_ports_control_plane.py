"""What the control plane keeps: its ports while they are its own, and everything while it's only looked at."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.local.control_plane import API_SERVER, COMPONENTS, SCHEDULER, ControlPlane
from infra.local.control_plane.pki import Pair
from infra.local.errors import LocalClusterError
from infra.local.processes import Processes
from infra.local.state import State

PORTS = {"etcd": 20001, "etcd_peer": 20002, "api_server": 20003, "controller_manager": 20004, "scheduler": 20005}


@pytest.fixture
def state(short_tmp: Path) -> State:
    state = State(short_tmp / "state")
    state.write_json(state.path("control_plane", "ports.json"), PORTS)
    return state


@pytest.fixture
def running(state: State) -> Iterator[Processes]:
    """All components, as far as ports go."""
    processes = Processes(state)
    for name in COMPONENTS:
        processes.start(name, ["sleep", "60"])
    yield processes
    processes.stop(*COMPONENTS, grace=0.1)


def test_an_api_server_goes_on_where_its_new_port_is_taken(state: State, running: Processes) -> None:
    before = running.running()[API_SERVER].pid
    with socket.create_server(("127.0.0.1", 0)) as server:
        plane = ControlPlane(state, {}, server.getsockname()[1])
        with pytest.raises(LocalClusterError, match="is taken"):
            plane.start()
    assert running.running()[API_SERVER].pid == before
    assert json.loads(state.path("control_plane", "ports.json").read_text()) == PORTS


def test_a_part_that_does_not_run_gives_up_the_port_that_the_user_fixed(state: State, running: Processes) -> None:
    running.stop(SCHEDULER, grace=0.1)
    plane = ControlPlane(state, {}, PORTS["scheduler"])
    chosen = plane._choose_ports()
    assert chosen.api_server == PORTS["scheduler"]
    assert chosen.scheduler != PORTS["scheduler"]


@pytest.mark.parametrize("damage", ["no certificates", "half an authority", "half a key"])
def test_looking_changes_nothing(state: State, damage: str) -> None:
    plane, folder = ControlPlane(state, {}), state.path("control_plane")
    if damage != "no certificates":
        plane._certificates()
        pair = Pair.named("ca" if damage == "half an authority" else "admin", folder)
        path = pair.certificate if damage == "half an authority" else pair.key
        path.write_text(path.read_text()[:100])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert plane.health() == dict.fromkeys(COMPONENTS, False)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
