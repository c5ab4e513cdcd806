"""The steps of the workflows on the real engine, by rehearsal: previews of all stacks, a deployment, drift."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import psutil
import pytest
import yaml

from ci import deploy, drift
from ci.failures import StepError
from ci.preview import Wanted, preview
from ci.stacks import ROOT, stacks
from infra.cli import policies
from infra.cli.console import Steps
from infra.cli.workspace import MUTATING, PREVIEWING, RehearsedWorkspace
from infra.clusters import STATE_VARIABLE
from infra.engine import EngineRunError
from infra.rehearsal.tools import project_folder

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]


def ours() -> set[int]:
    """Processes that were started for a preview, anywhere."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        if any("ty-" in part for part in process.info["cmdline"] or ()):
            found.add(process.pid)
    return found


def test_all_stacks_are_previewed_side_by_side_and_nothing_is_left(
    tmp_path: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(short_tmp))
    monkeypatch.setattr("tempfile.tempdir", str(short_tmp))
    monkeypatch.setenv(STATE_VARIABLE, str(short_tmp / "none"))  # whatever runs here, the local stack is seen as new
    chosen = [one for one in stacks(ROOT) if one["target"] != "kubeconfig"]
    results = {one.stack: one for one in preview(Wanted(chosen, tmp_path, "rehearsal", jobs=4))}
    assert {name: one.code for name, one in results.items()} == dict.fromkeys(results, 0), results
    assert {"local", "dev", "prod"} <= set(results)
    for name, one in results.items():
        assert one.document is not None
        assert one.document["rehearsal"] == (one.how == "rehearsal")
        assert one.document["rules_run"] > 30
        assert one.document["complete"]
        text = (tmp_path / f"{name}.md").read_text()
        assert text.startswith(f"<!-- trainyard preview trainyard/{name} -->")
        assert len(text) < 60_000
    prod = results["prod"].document or {}
    assert float(prod["cost"]["after"]["usd_per_hour_at_max"]["usd"]["low"]) > 50
    assert [path for path in short_tmp.iterdir() if path.name.startswith("ty-")] == []
    mark = str(short_tmp)
    left = [pid for pid in ours() if mark in " ".join(psutil.Process(pid).cmdline())]
    assert left == []


@pytest.fixture
def rehearsed(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RehearsedWorkspace]:
    """The stack dev in a rehearsal that is up, with nothing in it yet."""
    monkeypatch.setenv(STATE_VARIABLE, str(short_tmp / "s"))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    workspace = policies.with_policies(RehearsedWorkspace.open("dev"), none=False, others=None)
    steps = Steps()
    with workspace.changing(steps, wait=True):
        workspace.build_engines(steps)
        rehearsal = workspace.rehearsal(steps)
        try:
            rehearsal.up(workspace.region)
            workspace.write_project()
            yield workspace
        finally:
            rehearsal.down()


def change(workspace: RehearsedWorkspace, days: int) -> None:
    """Change the stack file of the rehearsal: how long logs are kept."""
    file = project_folder(workspace.state) / "Pulumi.dev.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["config"]["trainyard:aws"]["logs"]["retentionDays"] = days
    file.write_text(yaml.safe_dump(settings))


def test_what_was_approved_is_brought_up_and_what_drifts_is_told(rehearsed: RehearsedWorkspace, tmp_path: Path) -> None:
    approved = deploy.look(rehearsed, PREVIEWING).fingerprint
    assert deploy.look(rehearsed, PREVIEWING).fingerprint == approved, "the same change has the same fingerprint"
    with pytest.raises(StepError, match="not what was approved of"):
        deploy.bring_up(rehearsed, "0" * 64)
    assert not rehearsed.rehearsal().has_record(), "nothing was done"

    deploy.bring_up(rehearsed, approved)
    assert rehearsed.rehearsal().has_record()
    assert drift.drifted(drift.look(rehearsed)) == []
    with pytest.raises(StepError, match="not what was approved of"):
        deploy.bring_up(rehearsed, approved)  # it is done: what was approved would be something else now

    change(rehearsed, 30)
    deploy.bring_up(rehearsed, deploy.look(rehearsed, PREVIEWING).fingerprint)  # this one with the engine's plan
    assert drift.drifted(drift.look(rehearsed)) == []

    plan = tmp_path / "plan.json"
    rehearsed.engine(PREVIEWING).run("preview", plan=plan)
    change(rehearsed, 14)
    with pytest.raises(EngineRunError, match="plan"):
        rehearsed.engine(MUTATING).run("up", plan=plan)  # the engine itself is held to its plan

    connection = rehearsed.rehearsal().connection()
    session = boto3.session.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name=connection.region)
    iam, logs = (session.client(name, endpoint_url=connection.aws_endpoint_url) for name in ("iam", "logs"))
    iam.update_role(RoleName="trainyard-dev-node", Description="theirs")
    logs.delete_log_group(logGroupName="/aws/eks/trainyard-dev/cluster")
    found = drift.drifted(drift.look(rehearsed))
    assert [(became, name, properties) for became, _, name, properties in found] == [
        ("gone", "control-plane-logs", ()),
        ("changed", "node", ("description",)),
    ]
    assert drift.drifted(drift.look(rehearsed)) == found, "to look changes nothing, not even the record"
