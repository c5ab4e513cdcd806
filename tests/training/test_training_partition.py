"""The network between nodes is cut: never two worlds at once, the job goes on, and after healing it is whole again.

Each node has a network namespace of its own; where these are not allowed the tests say so and are left out.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local_agents import PATIENCE, ROOT, Agent, Etcd, Job, wait_for
from namespaces import CENTRE, INTERFACE, Network, network, why_not
from step_records import StepRecords, check

from training.launch import exit_codes

NOT_ALLOWED = why_not()
pytestmark = [
    pytest.mark.engines,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(NOT_ALLOWED), reason=NOT_ALLOWED),
]
LIVENESS = "--rdzv-conf=keep_alive_interval=1,keep_alive_max_attempt=8"


class Nodes(Job):
    """Three nodes, of which two are enough."""

    def __init__(self, folder: Path, etcd: Etcd, switch: Network) -> None:
        self.switch, self.records, self.enough = switch, StepRecords(folder / "records"), folder / "enough"
        script = [
            str(ROOT / "tests" / "training" / "programs" / "careful_ddp.py"),
            *(f"--records={self.records.path}", f"--checkpoint={folder / 'checkpoint'}", f"--enough={self.enough}"),
        ]
        super().__init__(folder, etcd, script, nnodes="2:3")

    def begin(self) -> list[Agent]:
        nodes = [
            self.start(name, LIVENESS, inside=self.switch.add(name), environment={"GLOO_SOCKET_IFNAME": INTERFACE})
            for name in ("a", "b", "c")
        ]
        self.wait_for_world(3)
        return nodes

    def wait_for_world(self, size: int) -> None:
        """Until a world of this size has made some steps, from now on."""
        before = len(self.records.read())
        wait_for(
            lambda: sum(step.world_size == size for step in self.records.read()[before:]) >= 5,
            f"steps of {size}",
            2 * PATIENCE,
        )

    def finish(self) -> None:
        self.enough.touch()
        assert [agent.wait() for agent in self.agents] == [exit_codes.FINISHED] * len(self.agents), self.tail()
        assert check(self.records.read()) == []


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with network() as switch:
        etcd = Etcd(tmp_path, host=switch.centre)
        job = Nodes(tmp_path, etcd, switch)
        try:
            etcd.start()
            yield job
        finally:
            job.stop()
            etcd.stop()


def each(cut: Callable[[str, str], None], name: str, others: list[str]) -> None:
    for other in others:
        cut(name, other)


@pytest.mark.parametrize("lost", [["a", "b", CENTRE], [CENTRE]], ids=["from all", "from etcd"])
def test_a_node_that_is_cut_off_is_left_out_and_comes_back(nodes: Nodes, lost: list[str]) -> None:
    nodes.begin()
    each(nodes.switch.cut, "c", lost)
    nodes.wait_for_world(2)
    each(nodes.switch.heal, "c", lost)
    nodes.wait_for_world(3)
    nodes.finish()


def test_a_cut_between_nodes_that_all_reach_etcd_makes_no_second_world(nodes: Nodes) -> None:
    """Nobody can tell who is to blame, so all wait; when it is healed they go on."""
    nodes.begin()
    each(nodes.switch.cut, "c", ["a", "b"])
    wait_for(lambda: time.time() - nodes.records.read()[-1].done > 2, "training to stand still")
    before = len(nodes.records.read())
    each(nodes.switch.heal, "c", ["a", "b"])
    wait_for(lambda: len(nodes.records.read()) > before + 20, "steps after healing")
    nodes.wait_for_world(3)
    nodes.finish()
