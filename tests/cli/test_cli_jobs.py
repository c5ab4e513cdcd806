"""The commands on jobs before they reach a cluster: mistakes in plain words with exit code 2, and nothing done."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import infra.cli
from infra.cli import workspace

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def trainyard(capsys: Capture, monkeypatch: Patch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trainyard", *arguments])
    with pytest.raises(SystemExit) as ended:
        infra.cli.main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


@pytest.fixture
def sent(monkeypatch: Patch) -> list[Any]:
    """What is done to the jobs of the stack, which has one: digits."""
    done: list[Any] = []
    jobs = SimpleNamespace(
        namespace="training",
        existing=lambda name: name,
        summaries=lambda: [{"job": "digits"}, {"job": "train"}],
        delete=lambda name: done.append(("delete", name)),
        scale=lambda name, workers: done.append(("scale", name, workers)),
        suspend=lambda name: done.append(("suspend", name)),
        resume=lambda name: done.append(("resume", name)),
        create_with_script=lambda job, script: done.append((job, script)),
    )
    monkeypatch.setattr("infra.cli.workspace.Workspace.jobs", lambda _: jobs)
    return done


def test_cancel_asks_and_does_not_hang_without_a_terminal(capsys: Capture, monkeypatch: Patch, sent: list[Any]) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    code, _, err = trainyard(capsys, monkeypatch, "cancel", "digits")
    assert (code, sent) == (2, [])
    assert "add --yes" in err
    code, out, _ = trainyard(capsys, monkeypatch, "cancel", "digits", "--yes", "--json")
    assert (code, sent) == (0, [("delete", "digits")])
    assert yaml.safe_load(out) == {"job": "digits", "state": "cancelled"}


def test_scale_suspend_and_resume_say_what_they_did(capsys: Capture, monkeypatch: Patch, sent: list[Any]) -> None:
    assert trainyard(capsys, monkeypatch, "scale", "digits", "2") == (0, "digits: scaled\n", "")
    assert trainyard(capsys, monkeypatch, "suspend", "digits")[:2] == (0, "digits: suspended\n")
    assert trainyard(capsys, monkeypatch, "resume", "digits")[:2] == (0, "digits: resumed\n")
    assert sent == [("scale", "digits", 2), ("suspend", "digits"), ("resume", "digits")]


def test_no_worker_at_all_is_a_suspension(capsys: Capture, monkeypatch: Patch, sent: list[Any]) -> None:
    assert trainyard(capsys, monkeypatch, "scale", "digits", "0")[0] == 2
    assert sent == []


def test_the_newest_lines_and_those_to_come_are_two_wishes(capsys: Capture, monkeypatch: Patch) -> None:
    assert trainyard(capsys, monkeypatch, "logs", "digits", "--follow", "--tail", "3")[0] == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"def x(:\n", "train.py, line 1: invalid syntax"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"a = 1\n\x00", "null bytes"),
        (b"#" * (901 * 1024), "has 901 KiB"),
    ],
    ids=["missing", "syntax", "binary", "zero", "large"],
)
def test_a_script_that_cannot_run_is_not_submitted(
    capsys: Capture, monkeypatch: Patch, sent: list[Any], tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    script = tmp_path / "train.py"
    if content is not None:
        script.write_bytes(content)
    code, _, err = trainyard(capsys, monkeypatch, "run", str(script))
    assert (code, sent) == (2, [])
    assert sentence in err
    assert "train.py" in err


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--pool", "gpu"], 2, "stack local has no pool 'gpu'; its pools: system, gpu-on-demand, gpu-spot"),
        (["--workers", "4"], 2, "has 3 machines"),
        (["--workers", "some"], 2, "--workers is 'some'"),
        (["--name", "No"], 2, "--name is 'No'"),
        (["--name", "digits"], 1, "there is a job digits already"),
        (["-s", "prod"], 2, "which pool of stack prod: --pool "),
    ],
)
def test_what_the_stack_does_not_have_is_said(
    capsys: Capture, monkeypatch: Patch, sent: list[Any], tmp_path: Path, options: list[str], code: int, sentence: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    found, _, err = trainyard(capsys, monkeypatch, "run", str(script), "--detach", *options)
    assert (found, sent) == (code, [])
    assert sentence in err


def test_a_stack_without_machines_of_its_own_asks_for_a_file(
    capsys: Capture, monkeypatch: Patch, sent: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "Pulumi.there.yaml").write_text(
        "config:\n  trainyard:target: kubeconfig\n  trainyard:kubeconfig: {path: kubeconfig}\n"
        "  trainyard:images: {controller: 'r.example/c@sha256:1', etcd: 'r.example/e@sha256:1'}\n"
    )
    monkeypatch.setattr(workspace, "CHECKOUT", tmp_path)
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    code, _, err = trainyard(capsys, monkeypatch, "run", str(script), "-s", "there")
    assert (code, sent) == (2, [])
    assert "trainyard submit" in err


def test_a_script_becomes_a_job_of_the_next_free_name(
    capsys: Capture, monkeypatch: Patch, sent: list[Any], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    arguments = ("run", str(script), "--pool", "gpu-spot", "--detach", "--json", "--", "--epochs", "3")
    code, out, _ = trainyard(capsys, monkeypatch, *arguments)
    assert code == 0
    assert yaml.safe_load(out) == {
        "job": "train-2",
        "namespace": "training",
        "image": "trainyard/training:local",
        "min": 1,
        "max": 2,
        "state": "Submitted",
    }
    ((job, config_map),) = sent
    assert config_map.data == {"train.py": "print(1)"}
    (container,) = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["args"] == ["--nproc_per_node=1", "/script/train.py", "--epochs", "3"]
    assert config_map.metadata.name == "train-2-script"
