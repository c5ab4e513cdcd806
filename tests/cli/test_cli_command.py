"""The command as a user meets it: help, plain errors, exit codes, JSON alone on stdout."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import infra.cli
from infra.cli import rehearse, workspace
from infra.cli.console import Steps, counted, row, show, table
from infra.cli.workspace import RehearsedWorkspace
from infra.engine import Summary

TRAINYARD = Path(sys.executable).with_name("trainyard")


def environment_in(folder: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "TRAINYARD_STATE_DIR": str(folder / "state"), "HOME": str(folder)}


def leaf_commands() -> list[tuple[str, ...]]:
    """The path of every command of the tree."""
    found: list[tuple[str, ...]] = []

    def walk(command: object, path: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children is None:
            found.append(path)
        for name, child in (children or {}).items():
            walk(child, (*path, name))

    walk(get_command(infra.cli.app), ())
    return found


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trainyard", *arguments])
    with pytest.raises(SystemExit) as ended:
        infra.cli.main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


@pytest.mark.parametrize("path", leaf_commands(), ids=" ".join)
def test_every_command_has_help_with_an_example_and_can_speak_json(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, *path, "--help")
    assert code == 0
    assert re.search(r"Example:.*trainyard", " ".join(out.split()))
    assert "--json" in out


def test_an_unknown_stack_is_a_settings_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = run(capsys, monkeypatch, "up", "-s", "nowhere")
    assert code == 2
    assert out == ""
    assert re.search(r"Stacks here: .*\blocal\b", err)
    assert "Traceback" not in err


def test_mistakes_in_a_stack_file_stop_everything_before_it_starts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Pulumi.bad.yaml").write_text(
        "config:\n  trainyard:target: local\n  trainyard:nodePols: []\n  trainyard:etcd: {storage: 3}\n"
    )
    monkeypatch.setattr(workspace, "CHECKOUT", tmp_path)
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    code, _, err = run(capsys, monkeypatch, "up", "-s", "bad")
    assert code == 2
    assert "trainyard:nodePols (line 3): unknown key; did you mean 'nodePools'?" in err
    assert "trainyard:etcd.storage (line 4)" in err
    assert not (tmp_path / "state").exists()


def test_without_a_cluster_commands_say_how_to_start_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    for arguments in (["jobs"], ["preview"], ["submit", "job.yaml"]):
        code, _, err = run(capsys, monkeypatch, *arguments)
        assert code == 1
        assert "Start it: trainyard up -s local" in err


def test_down_asks_before_it_removes_and_does_not_hang_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    code, _, err = run(capsys, monkeypatch, "down")
    assert code == 2
    assert "add --yes" in err


def test_down_of_what_never_was_is_fine(short_tmp: Path) -> None:
    for _ in range(2):
        done = subprocess.run(
            [TRAINYARD, "down", "--yes", "--state", "--json"],
            env=environment_in(short_tmp),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"stack": "local", "changes": {}}
        assert not (short_tmp / "state").exists()


def test_status_of_what_does_not_run_says_so(short_tmp: Path) -> None:
    done = subprocess.run(
        [TRAINYARD, "status", "--json"], env=environment_in(short_tmp), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert not (short_tmp / "state").exists()
    assert report["healthy"] is False
    assert not any(part["pid"] for part in report["processes"])


def test_what_others_say_is_shown_as_it_is_and_never_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    steps = Steps()
    with steps.step("job [bold]x[/checkpoints]"):
        steps.note("no room on [gpu-spot-1] [/]")
    steps.say("[red]said[/red]")
    err = capsys.readouterr().err
    for text in ("job [bold]x[/checkpoints]", "no room on [gpu-spot-1] [/]", "[red]said[/red]"):
        assert text in err
    assert [step.note for step in steps.finished] == ["no room on [gpu-spot-1] [/]"]


@pytest.mark.parametrize("columns", ["20", "80", "300"])
def test_a_narrow_terminal_cuts_no_name_and_wraps_sentences(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    names = [f"{'x' * 40}-{number}.us-east-2.compute.internal" for number in range(3)]
    shown = table("node", "pool", "message")
    row(shown, names[0], names[1], "word " * 30)
    row(shown, "n", names[2], None)
    show(shown)
    out = capsys.readouterr().out
    assert all(name in out for name in names)
    assert out.count("word") == 30
    assert ("word " * 30 in out) == (columns == "300")


def test_one_thing_is_not_called_things() -> None:
    assert [counted(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert Summary({"same": 1}).sentence(done=True) == "no changes (1 resource)"


def test_a_replacement_is_one_row_of_a_preview(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    urn = "urn:pulumi:local::trainyard::aws:eks/cluster:Cluster::cluster"
    old, new = ({"type": "aws:eks/cluster:Cluster", "urn": urn, "inputs": {"name": name}} for name in ("a", "b"))
    about = {"type": "aws:eks/cluster:Cluster", "urn": urn, "old": old, "new": new, "keys": ["name"]}

    def played(workspace: RehearsedWorkspace, *, wait: bool) -> str:
        for operation in ("create-replacement", "replace", "delete-replaced"):
            workspace.on_event({"resourcePreEvent": {"metadata": {**about, "op": operation}}})
        workspace.on_event({"summaryEvent": {"resourceChanges": {"replace": 1}}})
        return "played"

    monkeypatch.setattr(rehearse, "preview", played)
    code, out, _ = run(capsys, monkeypatch, "preview", "-s", "dev", "--rehearse")
    assert code == 0
    rows = [line.split() for line in out.splitlines() if "eks/cluster" in line]
    assert [row[:3] for row in rows] == [["replace", "aws:eks/cluster:Cluster", "cluster"]]
    assert "name: a -> b" in out
    assert "1 to replace" in out


def test_the_state_folder_is_deleted_without_what_others_put_there(short_tmp: Path) -> None:
    theirs = short_tmp / "state" / "thesis.txt"
    theirs.parent.mkdir(mode=0o700)
    theirs.write_text("years of work")
    arguments = [str(TRAINYARD), "down", "--yes", "--state"]
    subprocess.run(arguments, env=environment_in(short_tmp), capture_output=True, check=True)
    assert [path.name for path in theirs.parent.iterdir()] == ["thesis.txt"]


def test_doctor_looks_at_engines_and_namespaces() -> None:
    done = subprocess.run([TRAINYARD, "doctor", "--json"], capture_output=True, text=True, check=False)
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert {"memory", "etcd", "kubelet", "process-runtime", "namespaces"} <= set(findings)
    for finding in findings.values():
        assert finding["ok"] or finding["remedy"]


def test_output_that_cannot_be_written_is_said_plainly() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [TRAINYARD, "engines", "key"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert "output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_channels_are_no_traceback(short_tmp: Path) -> None:
    def with_closed(channels: str) -> subprocess.CompletedProcess[str]:
        command = f"exec {shlex.quote(str(TRAINYARD))} down --json {channels}"
        return subprocess.run(
            ["/bin/sh", "-c", command], env=environment_in(short_tmp), capture_output=True, text=True, check=False
        )

    told = with_closed(">&-")
    assert told.returncode == 1
    assert told.stderr == "trainyard: stdout is closed, so that no result can be shown; >/dev/null hides it as well\n"
    told = with_closed("<&-")
    assert told.returncode == 2
    assert "There is no terminal to ask: add --yes" in told.stderr
    assert with_closed("--yes 2>&-").returncode == 0
    assert with_closed(">&- 2>&-").returncode == 1


def test_a_stack_file_that_became_wrong_does_not_keep_a_cluster_alive(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    (short_tmp / "Pulumi.local.yaml").write_text("config: {trainyard:target: nowhere}")
    (short_tmp / "state" / "control_plane").mkdir(parents=True)
    monkeypatch.setattr(workspace, "CHECKOUT", short_tmp)
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(short_tmp / "state"))
    code, _, err = run(capsys, monkeypatch, "down", "--yes", "--state")
    assert code == 0, err
    assert not (short_tmp / "state").exists()


def test_the_command_is_what_the_package_installs() -> None:
    assert isinstance(infra.cli.app, typer.Typer)
    done = subprocess.run([TRAINYARD, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "kept alive" in " ".join(done.stdout.split())
