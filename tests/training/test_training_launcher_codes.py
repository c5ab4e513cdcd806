"""Scripts that end at once, with codes whose meaning the command line has changed: real launchers, real etcd."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_agents import Etcd, Job, etcd_server

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
        agent = job.start("a", *options)
        code = agent.wait()
        return agent.log.read_text(), code
    finally:
        job.stop()


def test_a_script_that_has_nothing_to_do_is_finished(tmp_path: Path, etcd: Etcd) -> None:
    text, code = told_and_code(tmp_path, etcd, [0])
    assert (code, text.count("RAN")) == (exit_codes.FINISHED, 1)


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
