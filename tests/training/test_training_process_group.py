"""Workers meet by each of the three init methods, and what the launcher promised them is there."""

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from local_agents import ROOT, free_port

from training.launch import exit_codes, hardware, init_method, process_group

MEETING = """
import os, json, torch, torch.distributed as dist
from training.launch import process_group
process_group.init()
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
if dist.get_rank() == 0:
    method = os.environ["TRAINYARD_INIT_METHOD"]
    print(json.dumps({"sum": total.item(), "backend": dist.get_backend(), "method": method}), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("method", ["env", "tcp", "file"])
def test_the_workers_of_a_launcher_meet_by_each_method(tmp_path: Path, method: str) -> None:
    script = tmp_path / "meet.py"
    script.write_text(MEETING)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "TRAINYARD_"))}
    command = ["--nproc-per-node=2", "--backend=gloo", f"--init-method={method}", str(script)]
    done = subprocess.run(
        [sys.executable, "-m", "training", *command],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]  # older gloo prints there as well
    result = json.loads(line)
    assert (result["sum"], result["backend"]) == (3.0, "gloo")
    assert result["method"].startswith(f"{method}://")
    folder = Path(result["method"].removeprefix("file://"))
    assert method != "file" or (folder.is_absolute() and not folder.exists())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": str(free_port())}
    for name in ("TRAINYARD_BACKEND", "TRAINYARD_INIT_METHOD", "TRAINYARD_GENERATION", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("world")
def test_a_file_is_another_one_in_each_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_INIT_METHOD", "file:///shared")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job/7")
    names = []
    for generation in ("1", "2"):
        monkeypatch.setenv("TRAINYARD_GENERATION", generation)
        names.append(process_group.arguments("gloo")["init_method"])
    assert names == ["file:///shared/trainyard-job%2F7-1", "file:///shared/trainyard-job%2F7-2"]


@pytest.mark.usefixtures("world")
def test_arguments_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_group.arguments() == {
        "backend": "nccl" if torch.cuda.is_available() else "gloo",
        "init_method": "env://",
    }
    monkeypatch.setenv("TRAINYARD_BACKEND", "mpi")
    assert process_group.arguments() == {"backend": "mpi"}
    monkeypatch.setenv("TRAINYARD_INIT_METHOD", "tcp")
    address = f"tcp://10.0.0.1:{os.environ['MASTER_PORT']}"
    assert process_group.arguments("gloo") == {
        "backend": "gloo",
        "init_method": address,
        "rank": 1,
        "world_size": 3,
    }


@pytest.mark.usefixtures("world")
def test_without_a_launcher_the_sentence_says_what_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_INIT_METHOD", "tcp")
    monkeypatch.delenv("RANK")
    with pytest.raises(ValueError, match=r"no RANK in the environment: start with python -m training"):
        process_group.arguments("gloo")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TRAINYARD_INIT_METHOD", "udp")
    with pytest.raises(ValueError, match=r"TRAINYARD_INIT_METHOD=udp://: write env://"):
        process_group.arguments("gloo")


def test_a_shared_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert init_method.mistake(f"file://{tmp_path}", is_one_node=False) is None
    assert init_method.mistake("env://", is_one_node=False) is None


def test_a_backend_that_this_torch_lacks_is_refused_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    monkeypatch.setattr(dist, "is_mpi_available", lambda: False)
    with pytest.raises(hardware.MissingError, match="--backend mpi: this torch is built without it; it has gloo"):
        hardware.check("1", "mpi")
    hardware.check("1", "gloo")


@pytest.mark.parametrize(
    ("number", "backend", "message"),
    [
        ("gpu", None, "--nproc-per-node gpu: torch .* sees no such device here"),
        ("xpu", None, "--nproc-per-node xpu: torch .* sees no such device here"),
        ("1", "nccl", "--backend nccl: torch .* sees no such device here"),
    ],
)
def test_gpus_that_are_not_there_are_missed(
    monkeypatch: pytest.MonkeyPatch, number: str, backend: str | None, message: str
) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 0)
    with pytest.raises(hardware.MissingError, match=message):
        hardware.check(number, backend)


def test_more_workers_than_gpus_are_refused_for_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(hardware.MissingError, match="4: each worker needs a GPU of its own, and there are 2"):
        hardware.check("4", "nccl")
    hardware.check("2", "nccl")
    hardware.check("gpu", None)


def test_a_driver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: time.sleep(600))
    with pytest.raises(TimeoutError, match=r"has not answered in 0\.5 s"):
        hardware.check("gpu", None, timedelta(seconds=0.5))


def test_a_gpu_that_is_not_there_ends_the_launcher_as_a_usage_mistake(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "training", "--nproc-per-node=gpu", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_codes.USAGE
    assert "--nproc-per-node gpu: torch" in done.stderr
    assert "Traceback" not in done.stderr
