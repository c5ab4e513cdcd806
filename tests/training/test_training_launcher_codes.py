"""Scripts that end at once, with codes whose meaning the command line has changed: real launchers, real etcd."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_agents import ROOT, Agent, Etcd, Job, etcd_server, wait_for

from training.launch import exit_codes

pytestmark = [pytest.mark.engines, pytest.mark.timeout(900)]

SCRIPT = """
import os, sys
print("RAN", flush=True)
codes = [int(code) for code in sys.argv[1:]]
sys.exit(codes[min(int(os.environ["TRAINYARD_GENERATION"]), len(codes)) - 1])
"""


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def told_and_code(folder: Path, etcd: Etcd, codes: list[int], *options: str) -> tuple[str, int]:
    """Run a script that ends with these codes, one in each world; what was said, and the launcher's own code."""
    (folder / "script.py").write_text(SCRIPT)
    job = Job(folder, etcd, ["script.py", *map(str, codes)], nnodes="1:2", run=folder.name)
    try:
        agent = job.start("a", "--restart-pause=0", *options)
        code = agent.wait()
        return agent.log.read_text(), code
    finally:
        job.stop()


def test_a_script_that_has_nothing_to_do_is_finished(tmp_path: Path, etcd: Etcd) -> None:
    text, code = told_and_code(tmp_path, etcd, [0])
    assert (code, text.count("RAN")) == (exit_codes.FINISHED, 1)


@pytest.mark.parametrize("code", [exit_codes.FINISHED, exit_codes.DO_NOT_RESTART])
def test_a_launcher_whose_job_has_ended_says_so_without_importing_torch(tmp_path: Path, etcd: Etcd, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    job = Job(tmp_path, etcd, ["script.py", str(code)], nnodes="1:2", run=tmp_path.name)
    try:
        assert job.start("first").wait() == code
        (tmp_path / "broken" / "torch").mkdir(parents=True)
        (tmp_path / "broken" / "torch" / "__init__.py").write_text("raise ImportError('torch is imported')")
        late = job.start("late", environment={"PYTHONPATH": f"{tmp_path / 'broken'}:{ROOT}"})
        assert late.wait() == code
        words = "has finished already" if code == exit_codes.FINISHED else "has been given up already"
        assert words in late.log.read_text()
        assert "torch is imported" not in late.log.read_text()
    finally:
        job.stop()


def test_a_script_that_fails_at_once_is_given_up_with_a_sentence(tmp_path: Path, etcd: Etcd) -> None:
    text, code = told_and_code(tmp_path, etcd, [1])
    assert (code, text.count("RAN")) == (exit_codes.DO_NOT_RESTART, 3)
    assert "the workers have failed 3 times without a new step: giving up; see the first error above" in text


def test_a_script_that_fails_too_often_has_failed(tmp_path: Path, etcd: Etcd) -> None:
    text, code = told_and_code(tmp_path, etcd, [1], "--max-restarts=1")
    assert (code, text.count("RAN")) == (exit_codes.FAILED, 2)


def test_a_code_that_is_made_final_ends_the_job(tmp_path: Path, etcd: Etcd) -> None:
    text, code = told_and_code(tmp_path, etcd, [3, 0], "--no-restart-on=3-5")
    assert (code, text.count("RAN")) == (exit_codes.DO_NOT_RESTART, 1)


def test_a_final_code_can_be_made_an_ordinary_one(tmp_path: Path, etcd: Etcd) -> None:
    text, code = told_and_code(tmp_path, etcd, [78, 0], "--restart-on=78")
    assert (code, text.count("RAN")) == (exit_codes.FINISHED, 2)


PAIR = """
import os, sys, torch.distributed as dist
print("RAN", os.environ["TRAINYARD_GENERATION"], flush=True)
dist.init_process_group("gloo")
if dist.get_world_size() == 2 and dist.get_rank() == 0:
    sys.exit("no storage")
dist.barrier()
dist.destroy_process_group()
"""


def test_nodes_pause_together_after_a_failure_without_a_step_and_a_signal_ends_the_pause(
    tmp_path: Path, etcd: Etcd
) -> None:
    (tmp_path / "script.py").write_text(PAIR)
    job = Job(tmp_path, etcd, ["script.py"], nnodes="1:2", run=tmp_path.name)

    def pausing(agent: Agent) -> bool:
        return any("pausing" in event["message"] for event in agent.events("notice"))

    try:
        options = ("--restart-pause=300", "--rdzv-conf=last_call_timeout=120")
        agents = first, second = job.start("a", *options), job.start("b", *options)
        wait_for(lambda: all(map(pausing, agents)), f"both to pause: {job.tail()}")
        first.process.send_signal(signal.SIGTERM)
        assert (first.wait(), second.wait()) == (143, exit_codes.FINISHED), job.tail()
        assert [first.log.read_text().count("RAN"), second.log.read_text().count("RAN 2")] == [1, 1]
        assert "pause" in second.events("recovery")[-1]["seconds"]
    finally:
        job.stop()
