"""How a run of the Pulumi CLI is read. The CLI is a small script here; the real one is in tests/end_to_end."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from infra.engine import Engine, EngineRunError, Summary

URN = "urn:pulumi:local::trainyard::trainyard:in_cluster:Etcd$kubernetes:apps/v1:StatefulSet::etcd"


def engine(folder: Path, script: str) -> Engine:
    """An engine whose CLI is a shell script; the stack exists already."""
    pulumi = folder / "pulumi"
    pulumi.write_text(f"#!/bin/sh\n{script}\n")
    pulumi.chmod(pulumi.stat().st_mode | stat.S_IXUSR)
    stacks = folder / "backend/.pulumi/stacks/trainyard"
    stacks.mkdir(parents=True)
    (stacks / "local.json").write_text("{}")
    return Engine(folder, "local", pulumi, {}, folder / "backend", folder / "run-")


def says(*events: Mapping[str, object]) -> str:
    return "\n".join(f"echo '{json.dumps(event)}'" for event in events)


def step(op: str) -> dict[str, object]:
    return {"resourcePreEvent": {"metadata": {"op": op, "urn": URN, "type": "kubernetes:apps/v1:StatefulSet"}}}


def test_a_run_reports_each_resource_and_the_counts(tmp_path: Path) -> None:
    summary = {"summaryEvent": {"resourceChanges": {"create": 1, "same": 3}}}
    seen: list[str] = []
    result = engine(tmp_path, says(step("create"), step("same"), summary)).run("up", seen.append)
    assert seen == ["create StatefulSet etcd"]
    assert result.changes == {"create": 1, "same": 3}
    assert result.changed == 1
    assert result.sentence(done=True) == "1 created"
    assert result.sentence(done=False) == "1 to create"


def test_temporary_files_of_a_run_are_private_and_go_with_it(tmp_path: Path) -> None:
    runner = engine(tmp_path, 'echo key > "$TMPDIR/kubeconfig"; stat -c %a "$TMPDIR" > "$TMPDIR/../mode"')
    runner.run("up")
    assert (tmp_path / "mode").read_text().strip() == "700"
    assert list(tmp_path.rglob("kubeconfig")) == []


def test_much_output_on_both_channels_does_not_stop_a_run(tmp_path: Path) -> None:
    chatter = "for i in $(seq 3000); do echo 'warning: something that nobody reads in time' >&2; echo '{not json'; done"
    result = engine(tmp_path, chatter + "\n" + says({"summaryEvent": {"resourceChanges": {"same": 1}}})).run("up")
    assert result.changes == {"same": 1}


def test_an_interrupted_run_lets_the_engine_finish_its_step(tmp_path: Path) -> None:
    script = f"""trap 'seq 20000; echo unlocked > "{tmp_path}/end"; exit 1' INT
echo '{{"resourcePreEvent": {json.dumps(step("create")["resourcePreEvent"])}}}'
while :; do sleep 0.05; done"""

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine(tmp_path, script).run("up", interrupt)
    assert (tmp_path / "end").read_text() == "unlocked\n"


def test_a_run_that_takes_too_long_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = tmp_path / "ready"

    class Late(threading.Timer):
        """Its time begins when the script can be interrupted, however long that takes to start."""

        def run(self) -> None:
            while not ready.exists():
                time.sleep(0.01)
            super().run()

    script = f"trap 'echo interrupted >&2; exit 1' INT; touch '{ready}'; while :; do sleep 0.05; done"
    monkeypatch.setattr("infra.engine.threading.Timer", Late)
    with pytest.raises(EngineRunError, match="interrupted"):
        engine(tmp_path, script).run("destroy", within=timedelta(seconds=0.3))


def test_nothing_to_do_is_said_as_such() -> None:
    assert Summary({"same": 4}).sentence(done=True) == "no changes (4 resources)"


def test_a_failed_run_says_what_failed_and_what_to_do_next(tmp_path: Path) -> None:
    failed = {"resOpFailedEvent": {"metadata": {"urn": URN}}}
    told = {"diagnosticEvent": {"severity": "error", "message": "no room for the pod"}}
    aside = {"diagnosticEvent": {"severity": "info", "message": "irrelevant"}}
    with pytest.raises(EngineRunError) as caught:
        engine(tmp_path, says(step("create"), failed, told, aside) + "\nexit 255").run("up")
    message = str(caught.value)
    assert "pulumi up of stack local failed at StatefulSet etcd" in message
    assert "no room for the pod" in message
    assert 'eval "$(trainyard env -s local)"' in message
    assert "irrelevant" not in message


@pytest.mark.parametrize(
    "refusal",
    [
        "unable to replace resource %r\nas it is currently marked for protection. To unprotect the resource, remove it",
        "resource %r cannot be deleted\nbecause it is protected. To unprotect the resource, either remove the",
    ],
)
def test_a_refusal_to_touch_what_is_protected_names_the_setting_that_protects_it(tmp_path: Path, refusal: str) -> None:
    told = {"diagnosticEvent": {"severity": "error", "message": refusal % URN}}
    script = f"cat {tmp_path / 'events'}; exit 255"
    (tmp_path / "events").write_text(json.dumps(told) + "\n")
    says = r"(?s)To unprotect the resource.*aws\.protect in Pulumi\.local\.yaml.* set trainyard:aws\.protect: false"
    with pytest.raises(EngineRunError, match=says):
        engine(tmp_path, script).run("up")


def test_a_preview_that_fails_has_changed_nothing(tmp_path: Path) -> None:
    with pytest.raises(EngineRunError, match="\nNothing was changed; mend the cause"):
        engine(tmp_path, "exit 1").run("preview")


def test_a_run_that_dies_without_a_word_is_still_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineRunError, match="cannot open shared object"):
        engine(tmp_path, "echo 'cannot open shared object' >&2; exit 127").run("preview")


def lock_file(folder: Path, pid: int, host: str) -> Path:
    lock = folder / "backend/.pulumi/locks/organization/trainyard/local/1.json"
    lock.parent.mkdir(parents=True)
    lock.write_text(json.dumps({"pid": pid, "hostname": host}))
    return lock


def test_the_lock_of_a_killed_run_does_not_stop_the_next(tmp_path: Path) -> None:
    runner = engine(tmp_path, says({"summaryEvent": {"resourceChanges": {}}}))
    dead = lock_file(tmp_path, 2**22 + 1, socket.gethostname())
    runner.run("up")
    assert not dead.exists()


@pytest.mark.parametrize(
    ("pid", "host"),
    [(os.getpid(), socket.gethostname()), (2**22 + 1, "another-computer")],
    ids=["of this very process", "on another computer"],
)
def test_the_lock_of_a_run_that_may_be_alive_stays(tmp_path: Path, pid: int, host: str) -> None:
    runner = engine(tmp_path, says({"summaryEvent": {"resourceChanges": {}}}))
    living = lock_file(tmp_path, pid, host)
    runner.run("up")
    assert living.exists()


def test_a_run_that_cannot_succeed_is_interrupted_by_who_sees_it(tmp_path: Path) -> None:
    script = f"""trap 'echo interrupted >&2; exit 1' INT
echo '{{"resourcePreEvent": {json.dumps(step("create")["resourcePreEvent"])}}}'
while :; do sleep 0.05; done"""
    stop = threading.Event()
    with pytest.raises(EngineRunError, match="interrupted"):
        engine(tmp_path, script).run("up", lambda _: stop.set(), stop=stop)


def test_hidden_variables_do_not_reach_the_engine_and_ours_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "PULUMI_ACCESS_TOKEN", "EDITOR"):
        monkeypatch.setenv(name, "theirs")
    runner = engine(tmp_path, f"env > {tmp_path / 'seen'}")
    runner = dataclasses.replace(runner, hidden=("AWS_", "PULUMI_"), environment={"AWS_PROFILE": "ours"})
    runner.run("up")
    seen = (tmp_path / "seen").read_text().splitlines()
    assert "AWS_PROFILE=ours" in seen
    assert "EDITOR=theirs" in seen
    assert not any(line.startswith(("AWS_SESSION_TOKEN", "PULUMI_ACCESS_TOKEN")) for line in seen)


def test_a_failure_says_how_to_repeat_it_where_it_happened(tmp_path: Path) -> None:
    runner = dataclasses.replace(engine(tmp_path, "exit 1"), by_hand="cd elsewhere; pulumi {operation} -s {stack}")
    with pytest.raises(EngineRunError, match="By hand: cd elsewhere; pulumi refresh -s local"):
        runner.run("refresh")
