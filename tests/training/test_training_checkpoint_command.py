"""`python -m training checkpoints`: what a person sees of a folder of checkpoints, and may do with it."""

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from training.checkpoint.folder import CheckpointFolder, Writer
from training.checkpoint.main import run
from training.checkpoint.remote import OBJECTS, Remote
from training.checkpoint.retention import Retention


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Steps 10 to 40; 30 is damaged."""
    folder = CheckpointFolder(tmp_path / "all", writer=Writer(run="job.1", generation=3), keep=Retention(last=9))
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.7), (40, 0.6)):
        model = {"weight": torch.full((2, 3), float(step)), "half": torch.ones(4, dtype=torch.bfloat16)}
        path = folder.save(step, {"model": model, "step": step}, metrics={"accuracy": accuracy})
        if step == 30:
            data = bytearray((path / "values.pt").read_bytes())
            data[-30] ^= 1
            (path / "values.pt").write_bytes(data)
    return folder.root


def told(capsys: pytest.CaptureFixture[str], *argv: Any, code: int = 0) -> str:
    assert run([str(word) for word in argv]) == code
    output = capsys.readouterr()
    return output.out + output.err


def test_list_shows_the_newest_first(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "list", checkpoints).splitlines()
    assert [line.split()[0][-2:] for line in lines] == ["40", "30", "20", "10"]
    assert "job.1 generation 3" in lines[0]
    assert lines[0].endswith("accuracy=0.6")
    document = json.loads(told(capsys, "list", checkpoints, "--json"))
    assert [found["step"] for found in document["checkpoints"]] == [40, 30, 20, 10]
    assert told(capsys, "list", checkpoints.parent) == f"{checkpoints.parent} has no checkpoints\n"


def test_verify_reads_everything(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = told(capsys, "verify", checkpoints, code=1)
    assert "step-000000030  DAMAGED: " in output
    assert "values.pt does not match its SHA-256" in output
    document = json.loads(told(capsys, "verify", checkpoints, "--json", code=1))
    assert [found["whole"] for found in document["checkpoints"]] == [True, False, True, True]
    assert "step-000000020" in told(capsys, "verify", checkpoints, "--step", 20)
    assert "has no checkpoint of step 21" in told(capsys, "verify", checkpoints, "--step", 21, code=1)


def test_prune_keeps_what_the_rules_say_and_the_newest_good_one(
    checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = told(capsys, "prune", checkpoints, "--last", 1, "--best", 1, "--metric", "accuracy")
    assert output.splitlines() == [f"deleted {checkpoints / name}" for name in ("step-000000030", "step-000000010")]
    assert json.loads(told(capsys, "prune", checkpoints, "--last", 1, "--json")) == {
        "deleted": [str(checkpoints / "step-000000020")]
    }
    assert [path.name for path in checkpoints.iterdir()] == ["step-000000040"]
    assert "at least one checkpoint must be kept, not 0" in told(capsys, "prune", checkpoints, "--last", 0, code=1)


def test_prune_never_leaves_only_a_damaged_one(checkpoints: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoints / "step-000000040" / "__0_0.distcp").write_bytes(b"")
    told(capsys, "prune", checkpoints, "--last", 1)
    newest = CheckpointFolder(checkpoints).newest()
    assert newest is not None
    assert newest.step == 20


def test_export_writes_one_plain_file(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "export", checkpoints, tmp_path / "model.pt")
    assert torch.equal(torch.load(tmp_path / "model.pt")["weight"], torch.full((2, 3), 40.0))

    output = told(capsys, "export", checkpoints, tmp_path / "model.safetensors", "--step", 20)
    assert "'model' of step 20" in output
    data = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert header["__metadata__"] == {"format": "pt", "step": "20"}
    assert header["weight"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
    assert header["half"] == {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}
    assert struct.unpack("<6f", data[8 + length : 8 + length + 24]) == (20.0,) * 6
    assert len(data) == 8 + length + 32


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("model.bin", [], r"must end in .safetensors or .pt"),
        ("model.pt", ["--key", "modell"], "has no 'modell': it holds model, step"),
        ("model.pt", ["--step", 30], "values.pt does not match"),
        ("model.safetensors", ["--key", "step"], "there are no tensors to export"),
        ("none/model.pt", [], "cannot be written"),
    ],
)
def test_export_says_what_is_wrong_and_leaves_nothing(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, options: list[Any], message: str
) -> None:
    assert message in told(capsys, "export", checkpoints, tmp_path / output, *options, code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["all"]


def test_a_folder_that_is_not_there_is_told_and_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"there is no folder {tmp_path / 'none'}" in told(capsys, "list", tmp_path / "none", code=1)
    assert not (tmp_path / "none").exists()


def test_the_launcher_s_command_knows_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "training", "checkpoints", "list", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path} has no checkpoints\n"), done.stderr


@pytest.fixture
def url(checkpoints: Path, tmp_path: Path) -> str:
    """Steps 10, 20 and 40 behind a URL; an object of 40 is missing there."""
    remote = Remote(f"memory://{tmp_path.name}")
    for step in (10, 20, 40):
        remote.push(checkpoints / f"step-{step:09d}")
    digests = {one.step: {digest for _, digest in one.files.values()} for one in remote.manifests()}
    remote._store.delete(OBJECTS + min(digests[40] - digests[20] - digests[10]))
    return remote.url


def test_all_of_it_works_on_a_url(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(told(capsys, "list", url, "--json"))
    assert [found["path"] for found in document["checkpoints"]] == [
        f"{url}/step-0000000{step}" for step in (40, 20, 10)
    ]
    assert [found["whole"] for found in document["checkpoints"]] == [False, True, True]
    output = told(capsys, "verify", url, code=1)
    assert "step-000000040  DAMAGED: objects/" in output
    assert " is missing or has another size than " in output
    assert "accuracy=0.9" in told(capsys, "verify", url, "--step", 20)
    assert f"{url} has no checkpoint of step 30" in told(capsys, "verify", url, "--step", 30, code=1)

    assert "'model' of step 20" in told(capsys, "export", url, tmp_path / "newest.pt")
    assert torch.equal(torch.load(tmp_path / "newest.pt")["weight"], torch.full((2, 3), 20.0))
    assert "'model' of step 10" in told(capsys, "export", url, tmp_path / "old.safetensors", "--step", 10)
    assert f"{url} has no checkpoint that is whole" in told(
        capsys, "export", url, tmp_path / "x.pt", "--step", 40, code=1
    )
    assert "has no 'modell': it holds model, step" in told(
        capsys, "export", url, tmp_path / "x.pt", "--key", "modell", code=1
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "newest.pt", "old.safetensors"]

    assert told(capsys, "prune", url, "--last", 1) == f"deleted {url}/step-000000010\n"
    assert [found["step"] for found in json.loads(told(capsys, "list", url, "--json"))["checkpoints"][1:]] == [20]


def test_a_url_that_nobody_knows_is_told_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    output = told(capsys, "list", "nonsense://user:secret@host/x", code=1)
    assert "nonsense://host/x: Protocol not known: nonsense. Known are file and" in output
    assert "secret" not in output
    assert told(capsys, "list", "memory://empty-place") == "memory://empty-place has no checkpoints\n"
