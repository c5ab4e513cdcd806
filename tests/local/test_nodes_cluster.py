"""The cluster around its nodes, without engines: what is refused, what is hidden, what is kept and for how long."""

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from lightkube import ApiError

from infra.local import cloud
from infra.local.cluster import CLOUD, LocalCluster, hidden_folders
from infra.local.errors import LocalClusterError
from infra.local.nodes import Machine, Nodes, NodeSpec
from infra.local.processes import Processes
from infra.local.progress import Silent
from infra.local.state import State


@pytest.fixture
def state(short_tmp: Path) -> State:
    return State(short_tmp / "state")


def record(state: State, name: str, number: int, network: int) -> None:
    machine = Machine(NodeSpec(name, name.rpartition("-")[0]), number, network)
    state.write_json(state.path("nodes", name, "spec.json"), machine.as_record())
    state.write_json(state.path("nodes", "network.json"), network)


@pytest.mark.parametrize("act", [LocalCluster.reclaim, LocalCluster.replace])
def test_before_the_first_up_there_is_nothing_to_change(state: State, act: Callable[..., Any]) -> None:
    with pytest.raises(LocalClusterError, match="there is no cluster yet") as caught:
        act(LocalCluster(state), "gpu-1")
    assert caught.value.remedy == "trainyard up"


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (ApiError(status=cast(Any, SimpleNamespace(code=404, message="no such Node", reason=""))), "no such Node"),
        (httpx2.ConnectError("Connection refused"), "Connection refused"),
    ],
)
def test_trouble_with_the_api_server_is_a_plain_error(
    state: State, monkeypatch: pytest.MonkeyPatch, trouble: Exception, why: str
) -> None:
    ports = {"etcd": 1, "etcd_peer": 2, "api_server": 3, "controller_manager": 4, "scheduler": 5}
    state.write_json(state.path("control_plane", "ports.json"), ports)
    state.write(state.path("kubeconfig"), "")

    def fail(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(Nodes, "reclaim", fail)
    with pytest.raises(LocalClusterError, match="API server") as caught:
        LocalCluster(state).reclaim("gpu-1")
    assert why in caught.value.why
    assert "trainyard up" in caught.value.remedy


def test_a_cluster_whose_kubeconfig_is_lost_can_be_looked_at(state: State) -> None:
    ports = {"etcd": 1, "etcd_peer": 2, "api_server": 3, "controller_manager": 4, "scheduler": 5}
    state.write_json(state.path("control_plane", "ports.json"), ports)
    record(state, "gpu-1", 1, 7)
    status = LocalCluster(state).status()
    assert not status.healthy
    assert [(node.machine.name, node.ready) for node in status.nodes] == [("gpu-1", False)]


def test_the_whole_home_is_hidden_wherever_it_is(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/opt/people/someone")
    assert hidden_folders(state) == [state.directory, Path("/opt/people/someone")]
    # Without the root folder there would be no programs.
    monkeypatch.setenv("HOME", "/")
    assert Path("/") not in hidden_folders(state)


def test_the_cloud_is_well_while_its_heart_beats(state: State) -> None:
    processes = Processes(state)
    processes.start(CLOUD, ["sleep", "60"])
    beat = cloud.heartbeat(state.directory)

    def healthy() -> bool:
        return next(part.healthy for part in LocalCluster(state).status().components if part.name == CLOUD)

    try:
        assert not healthy()
        beat.parent.mkdir()
        beat.touch()
        assert healthy()
        earlier = time.time() - cloud.BEAT_LIMIT - 1
        os.utime(beat, (earlier, earlier))
        assert not healthy()
    finally:
        processes.stop(CLOUD, grace=0.1)


def nodes_of(state: State) -> Nodes:
    return Nodes(state, {}, cast(Any, None))


def test_a_network_that_others_took_is_left_to_them_while_no_node_runs(state: State) -> None:
    nodes = nodes_of(state)
    network = nodes._network()
    record(state, "gpu-1", 1, network)
    record(state, "gpu-2", 2, network)
    with socket.create_server((f"127.{network}.2.1", 0)):
        processes = Processes(state)
        processes.start("node-gpu-1", ["sleep", "60"])
        nodes._avoid_clash(Silent())
        processes.stop("node-gpu-1", grace=0.1)
        assert {machine.network for machine in nodes.machines()} == {network}
        nodes._avoid_clash(Silent())
    [chosen] = {machine.network for machine in nodes.machines()}
    assert chosen == nodes._network() != network


def test_a_place_is_taken_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = nodes_of(state)
    for name in ("_start", "wait_ready", "_delete_object"):
        monkeypatch.setattr(nodes, name, lambda *_: None)
    for number in (1, 2):
        record(state, f"gpu-{number}", number, 7)
        nodes._forget(f"gpu-{number}")
    state.write_json(state.path("nodes", "ordinals.json"), {"gpu": 2})
    assert nodes.replace("gpu-1").name == "gpu-3"
    with pytest.raises(LocalClusterError, match="there is no node gpu-1"):
        nodes.replace("gpu-1")
    assert list(nodes._retired()) == ["gpu-2"]
