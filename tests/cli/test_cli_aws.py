"""The commands on stacks of target aws, as far as they go without engines: rehearsal, credentials, template, doctor."""

from __future__ import annotations

import json
import stat
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import infra.cli
from infra.cli import rehearse
from infra.cli.console import Steps
from infra.cli.workspace import RehearsedWorkspace
from infra.engine import EngineRunError
from infra.errors import TrainyardError
from infra.local.state import State
from infra.rehearsal import tools
from infra.rehearsal.environment import MemoryLostError, Rehearsal, UnfinishedError
from infra.settings import Settings
from infra.settings.image_lock import ImageLock

REFERENCE = f"123456789012.dkr.ecr.us-east-2.amazonaws.com/trainyard-dev/controller:1@sha256:{'1' * 64}"


def built(monkeypatch: pytest.MonkeyPatch, **images: str) -> None:
    """What was built and pushed for any stack, by row."""
    monkeypatch.setattr("infra.settings.image_lock.read", lambda *_: ImageLock(images=images))


@pytest.fixture(autouse=True)
def nobody(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without credentials, profile or rehearsal."""
    for name in (
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "TRAINYARD_REHEARSAL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(short_tmp / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(short_tmp / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(short_tmp / "state"))


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["trainyard", *arguments])
    with pytest.raises(SystemExit) as ended:
        infra.cli.main()
    output = capsys.readouterr()
    return int(ended.value.code or 0), output.out, output.err


@pytest.mark.parametrize("command", ["up", "preview", "status", "env", "down"])
def test_only_aws_stacks_are_rehearsed(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    code, out, err = run(capsys, monkeypatch, command, "-s", "local", "--rehearse")
    assert code == 2
    assert out == ""
    assert "only stacks of target aws are rehearsed" in err
    assert not (short_tmp / "state").exists()


def test_a_rehearsal_trains_no_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = run(capsys, monkeypatch, "up", "-s", "dev", "--rehearse", "--with-example")
    assert code == 2
    assert "no program runs there" in err


def pulumi_of_a_user_with_a_backend(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Pulumi is a shell script, and records are kept where the user said."""
    program = folder / "pulumi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o700)
    found = SimpleNamespace(path=program)
    monkeypatch.setattr("infra.local.engines.ensure", lambda names, *_: dict.fromkeys(names, found))
    monkeypatch.setattr("infra.cli.workspace._build", lambda *_: None)
    monkeypatch.setenv("PULUMI_BACKEND_URL", "s3://theirs")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "theirs")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "theirs")


def test_a_stack_whose_record_is_in_the_users_own_backend_is_previewed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    counts = json.dumps({"summaryEvent": {"resourceChanges": {"create": 3}}})
    pulumi_of_a_user_with_a_backend(short_tmp, monkeypatch, f"echo '{counts}'")
    code, out, err = run(capsys, monkeypatch, "preview", "-s", "dev", "--json")
    assert code == 2
    assert "trainyard:images.controller: is missing, and images.dev.toml has none: it was not built yet" in err
    assert "fix: trainyard images build -s dev --push, or pulumi config set" in err
    built(monkeypatch, controller=REFERENCE)
    code, out, err = run(capsys, monkeypatch, "preview", "-s", "dev", "--json")
    assert code == 0, err
    assert json.loads(out)["changes"] == {"create": 3}
    made = short_tmp / "state" / "pulumi"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert list(made.iterdir()) == []


def test_the_registry_alone_needs_no_image_and_is_all_that_the_engine_touches(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    told = short_tmp / "told"
    counts = json.dumps({"summaryEvent": {"resourceChanges": {"create": 9}}})
    script = f"""case "$*" in
    "stack export"*) echo '{{"deployment": {{"resources": []}}}}' ;;
    up*) echo "$@" > {told}; echo "$TRAINYARD_ONLY" >> {told}; echo '{counts}' ;;
    esac"""
    pulumi_of_a_user_with_a_backend(short_tmp, monkeypatch, script)
    code, out, err = run(capsys, monkeypatch, "up", "-s", "dev", "--only", "registry", "--json")
    assert code == 0, err
    assert (json.loads(out)["only"], json.loads(out)["changes"]) == ("registry", {"create": 9})
    arguments, variable = told.read_text().splitlines()
    assert "--target **$trainyard:aws:Registry** " in arguments + " "
    assert variable.startswith("registry:alone:")
    code, out, _ = run(capsys, monkeypatch, "up", "-s", "dev", "--only", "registry")
    assert code == 0
    assert "Next: trainyard images build -s dev --push" in out
    built(monkeypatch, controller=REFERENCE)
    code, _, err = run(capsys, monkeypatch, "up", "-s", "dev", "--json")
    assert code == 0, err
    arguments, variable = told.read_text().splitlines()
    assert ("--target" in arguments, variable) == (False, "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-s", "dev", "--only", "network"], "--only is 'network': parts that can be brought up alone are registry"),
        (["-s", "local", "--only", "registry"], "--only is for AWS stacks"),
        (["-s", "dev", "--only", "registry", "--with-example"], "leave one of them out"),
        (["-s", "dev", "--rehearse", "--only", "network"], "--only is 'network'"),
    ],
)
def test_parts_that_cannot_be_brought_up_alone_are_usage_errors(
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    short_tmp: Path,
) -> None:
    code, out, err = run(capsys, monkeypatch, "up", *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert not (short_tmp / "state").exists()


def test_submit_warns_of_images_that_may_be_others_tomorrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    container = {"name": "c", "image": "123456789012.dkr.ecr.us-east-2.amazonaws.com/trainyard-dev/controller:1"}
    worker = {"template": {"spec": {"containers": [container]}}}
    job = {"metadata": {"name": "train"}, "spec": {"replicaSpecs": {"Worker": worker}}}

    def submit(_: Path, look: Callable[[list[dict[str, object]]], None]) -> list[str]:
        look([job])
        return ["train"]

    monkeypatch.setattr("infra.cli.workspace.Workspace.jobs", lambda _: SimpleNamespace(submit=submit, namespace="t"))
    built(monkeypatch, controller=REFERENCE)
    code, out, err = run(capsys, monkeypatch, "submit", str(short_tmp / "job.yaml"), "-s", "dev", "--json")
    assert code == 0
    (warning,) = json.loads(out)["warnings"]
    assert "without a digest" in warning
    assert REFERENCE in warning
    assert "Warning: job train names image" in " ".join(err.split())
    code, out, _ = run(capsys, monkeypatch, "submit", str(short_tmp / "job.yaml"), "-s", "local", "--json")
    assert json.loads(out)["warnings"] == [], "the images of the local cluster are commands"


@pytest.mark.parametrize("command", ["up", "preview"])
def test_without_credentials_an_aws_stack_says_so_at_once_and_names_the_rehearsal(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    code, _, err = run(capsys, monkeypatch, command, "-s", "dev")
    assert code == 1
    assert "there are no AWS credentials" in err
    assert "trainyard up -s dev --rehearse" in err
    assert not (short_tmp / "state").exists()


def test_a_profile_that_is_not_there_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "gone")
    code, _, err = run(capsys, monkeypatch, "up", "-s", "dev")
    assert code == 1
    assert "The config profile (gone) could not be found" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (["up"], "add --rehearse"),
        (["preview"], "add --rehearse"),
        (["down"], "add --rehearse"),
        (["env"], "add --rehearse"),
        (["submit", "a job.yaml"], "submit to the rehearsal: kubectl apply -f 'a job.yaml'"),
        (["jobs"], "look into the rehearsal: kubectl get elasticjobs -n training"),
    ],
)
def test_in_a_shell_of_a_rehearsal_nothing_is_done_for_real(
    command: list[str],
    instead: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    short_tmp: Path,
) -> None:
    monkeypatch.setenv("TRAINYARD_REHEARSAL", str(short_tmp / "rehearsal"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    code, out, err = run(capsys, monkeypatch, *command, "-s", "dev")
    assert (code, out) == (2, "")
    assert f"Open a new shell for the real stack, or {instead}" in err
    assert not (short_tmp / "state").exists()


def test_in_a_shell_of_a_rehearsal_the_catalogue_is_not_compared_with_a_stand_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_REHEARSAL", str(short_tmp / "rehearsal"))
    code, out, err = run(capsys, monkeypatch, "gpus", "--refresh")
    assert (code, out) == (2, "")
    assert "open a new shell" in err


def test_doctor_does_not_take_a_rehearsals_keys_for_credentials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_REHEARSAL", str(short_tmp / "rehearsal"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    code, out, _ = run(capsys, monkeypatch, "doctor", "-s", "prod", "--json")
    assert code == 1
    found = {finding["what"]: finding for finding in json.loads(out)["findings"]}
    assert found["AWS credentials"]["ok"] is False
    assert found["AWS credentials"]["remedy"] == "open a new shell to look at the account"
    assert found["aws command"]["ok"] is None


def test_down_of_a_protected_stack_names_the_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run(capsys, monkeypatch, "down", "-s", "prod", "--yes")
    assert code == 1
    assert "trainyard:aws.protect is true in Pulumi.prod.yaml" in err


def test_where_nothing_is_rehearsed_commands_say_how_to_begin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    for command in ("status", "env"):
        code, _, err = run(capsys, monkeypatch, command, "-s", "dev", "--rehearse")
        assert code == 1
        assert "trainyard up -s dev --rehearse" in err
    code, out, _ = run(capsys, monkeypatch, "down", "-s", "dev", "--rehearse", "--json")
    assert code == 0
    assert json.loads(out)["changes"] == {}
    assert not (short_tmp / "state").exists()


def test_a_removal_that_fails_ends_the_rehearsal_and_says_that_there_is_nothing_to_go_on_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, short_tmp: Path
) -> None:
    folder = short_tmp / "state" / "rehearsal-dev"
    folder.mkdir(parents=True)

    def fails(*_: object) -> dict[str, int]:
        raise TrainyardError("pulumi destroy failed: mend the cause and run it again")

    monkeypatch.setattr(rehearse, "_destroy", fails)
    code, out, err = run(capsys, monkeypatch, "down", "-s", "dev", "--rehearse", "--json")
    assert (code, out) == (1, "")
    assert "there is nothing to go on from. Begin anew: trainyard up -s dev --rehearse" in err
    assert not folder.exists()


@pytest.mark.parametrize("waiting", [1, 3])
def test_who_waits_for_a_removal_gets_the_lock_in_a_folder_made_anew(waiting: int) -> None:
    seen: list[str] = []
    removes, begun = threading.Event(), threading.Barrier(waiting + 1)

    def workspace() -> RehearsedWorkspace:  # each command has its own
        return RehearsedWorkspace("dev", Settings(target="local"))

    def remove() -> None:
        mine = workspace()
        with mine.changing(Steps(), wait=True):
            mine.state.write(mine.state.path("logs", "moto.log"), "x")
            removes.set()
            begun.wait(60)
            time.sleep(0.3)  # the others poll for the lock meanwhile
            Rehearsal(mine.state).down()

    def wait() -> None:
        removes.wait(60)
        mine = workspace()
        begun.wait(60)
        with mine.changing(Steps(), wait=True):
            assert stat.S_IMODE(mine.state_directory.stat().st_mode) == 0o700
            seen.extend(path.name for path in mine.state_directory.iterdir())

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(remove), *(pool.submit(wait) for _ in range(waiting))]:
            done.result(120)
    assert set(seen) == {"lock", "lock.holder"}
    assert len(seen) == 2 * waiting


def test_a_rehearsal_whose_memory_is_gone_is_not_gone_on_with(short_tmp: Path) -> None:
    state = State(short_tmp / "rehearsal")
    record = state.path("pulumi/backend/.pulumi/stacks/trainyard/dev.json")
    state.write(record, json.dumps({"checkpoint": {"latest": {"resources": [{"urn": "urn:x"}]}}}))
    with pytest.raises(MemoryLostError, match="Begin the rehearsal anew"):
        Rehearsal(state).up("us-east-2")
    assert Rehearsal(state).down() == []
    assert not state.directory.exists()


def test_after_a_run_that_was_killed_a_failure_says_what_may_be_there() -> None:
    workspace = RehearsedWorkspace("dev", Settings(target="local"))
    record = workspace.state.path("pulumi/backend/.pulumi/stacks/trainyard/dev.json")

    def fails() -> None:
        with rehearse._explaining(workspace):
            raise EngineRunError("Cluster already exists")

    def pending(kind: str, name: str) -> dict[str, object]:
        return {"type": kind, "resource": {"urn": f"urn:pulumi:dev::trainyard::a:b:C$aws:eks/cluster:Cluster::{name}"}}

    for latest in (None, {}, {"pending_operations": [pending("deleting", "old")]}):
        workspace.state.write(record, json.dumps({"checkpoint": {"latest": latest}}))
        with pytest.raises(EngineRunError, match=r"^Cluster already exists$"):
            fails()
    latest = {"pending_operations": [pending("creating", "new"), pending("deleting", "old")]}
    workspace.state.write(record, json.dumps({"checkpoint": {"latest": latest}}))
    with pytest.raises(UnfinishedError, match=r"already exists\n.* killed while it made Cluster new: .*down -s dev"):
        fails()


def test_protection_is_switched_off_in_the_rehearsals_own_stack_file_alone(short_tmp: Path) -> None:
    state = State(short_tmp / "rehearsal")
    checkout = short_tmp / "checkout"
    checkout.mkdir()
    (checkout / "Pulumi.yaml").write_text("name: trainyard\nruntime: {name: python}\n")
    theirs = checkout / "Pulumi.prod.yaml"
    theirs.write_text("config:\n  trainyard:target: aws\n  trainyard:aws: {region: us-east-2, protect: true}\n")
    tools.write_project(state, "prod", checkout)
    assert tools.switch_off_protection(state, "prod") is True
    assert tools.switch_off_protection(state, "prod") is False
    ours = yaml.safe_load((tools.project_folder(state) / "Pulumi.prod.yaml").read_text())
    assert ours["config"]["trainyard:aws"] == {"region": "us-east-2", "protect": False}
    assert "protect: true" in theirs.read_text()


def test_what_is_removed_is_what_is_up_and_not_what_was_previewed_or_refused_since(short_tmp: Path) -> None:
    state, checkout = State(short_tmp / "rehearsal"), short_tmp / "checkout"
    checkout.mkdir()
    (checkout / "Pulumi.yaml").write_text("name: trainyard\nruntime: {name: python}\n")
    ours = tools.project_folder(state) / "Pulumi.prod.yaml"

    def edit(region: str, protect: str = "true") -> None:
        aws = f"{{region: {region}, protect: {protect}}}"
        (checkout / "Pulumi.prod.yaml").write_text(f"config:\n  trainyard:target: aws\n  trainyard:aws: {aws}\n")
        tools.write_project(state, "prod", checkout)

    def removed() -> object:
        assert tools.switch_off_protection(state, "prod") is True
        return yaml.safe_load(ours.read_text())["config"]["trainyard:aws"]

    edit("us-east-1")
    tools.keep_attempted(state, "prod")  # and it fails
    ours.write_text(ours.read_text() + "encryptionsalt: v1:salt\n")
    edit("eu-west-1")  # a preview
    assert removed() == {"region": "us-east-1", "protect": False}
    edit("us-east-2")
    tools.keep_attempted(state, "prod")
    tools.keep_applied(state, "prod")
    edit("eu-west-1")
    tools.keep_attempted(state, "prod")  # it would replace what is protected, and the engine refuses
    edit("eu-west-2")
    assert removed() == {"region": "us-east-2", "protect": False}
    assert yaml.safe_load(ours.read_text())["encryptionsalt"] == "v1:salt"
    edit("us-east-2", protect="false")
    tools.keep_applied(state, "prod")
    edit("us-east-2")
    tools.keep_attempted(state, "prod")  # it fails when some resources are protected already
    assert removed() == {"region": "us-east-2", "protect": False}


class TestTemplate:
    def test_a_job_asks_for_what_a_machine_of_the_pool_offers(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code, out, _ = run(
            capsys,
            monkeypatch,
            "template",
            "gpu-block",
            "-s",
            "prod",
            "--image",
            "r.example.com/t:1",
            "--workers",
            "2:4",
        )
        assert code == 0
        job = yaml.safe_load(out)
        assert (job["kind"], job["spec"]["minReplicas"], job["spec"]["maxReplicas"]) == ("ElasticJob", 2, 4)
        spec = job["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
        limits = spec["containers"][0]["resources"]["limits"]
        assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "32")
        assert spec["nodeSelector"] == {"trainyard.dev/pool": "gpu-block"}

    def test_its_image_is_the_one_that_was_built_for_gpu_and_fabric_of_the_pool(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        efa, plain = REFERENCE.replace("1" * 64, "2" * 64), REFERENCE.replace("1" * 64, "3" * 64)
        built(monkeypatch, **{"torch2.15-cuda13.2-efa": efa, "torch2.15-cuda13.2": plain})
        for stack, image in (("prod", efa), ("dev", plain)):
            code, out, _ = run(capsys, monkeypatch, "template", "gpu-spot", "-s", stack)
            assert code == 0
            spec = yaml.safe_load(out)["spec"]["replicaSpecs"]["Worker"]["template"]["spec"]
            assert spec["containers"][0]["image"] == image
        _, out, _ = run(capsys, monkeypatch, "template", "gpu-spot", "-s", "dev", "--image", "mine:1")
        assert "image: mine:1" in out, "who names one gets that"

    def test_without_a_pool_it_lists_them_with_their_images(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code, out, _ = run(capsys, monkeypatch, "template", "-s", "prod", "--json")
        assert code == 0
        pools = {pool["pool"]: pool for pool in json.loads(out)["pools"]}
        assert {"gpu-block", "gpu-spot"} <= set(pools)
        assert pools["gpu-block"]["image_row"] == "torch2.15-cuda13.2-efa"
        assert pools["gpu-block"]["image"] is None
        _, out, _ = run(capsys, monkeypatch, "template", "-s", "prod")
        assert "Not built yet: torch2.15-cuda13.2-efa. Build: trainyard images build -s prod --push" in out
        built(monkeypatch, **{"torch2.15-cuda13.2-efa": REFERENCE})
        _, out, _ = run(capsys, monkeypatch, "template", "-s", "prod")
        assert "Not built yet" not in out

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["gpu-spt", "-s", "dev"], "did you mean 'gpu-spot'?"),
            (["gpu-spot", "-s", "dev"], "Build it: trainyard images build -s dev --push. Or name one: --image"),
            (["gpu-spot", "-s", "dev", "--image", ""], "--image is '': must be one reference"),
            (["gpu-spot", "-s", "dev", "--image", "i:1\nx"], "must be one reference"),
            (["gpu-spot", "-s", "dev", "--image", "i:1", "--workers", "few"], "for example 2:8"),
            (["gpu-spot", "-s", "dev", "--image", "i:1", "--workers", "²"], "for example 2:8"),
            (["gpu-spot", "-s", "dev", "--image", "i:1", "--name", ""], "must begin with a letter"),
            (["gpu-spot", "-s", "dev", "--image", "i:1", "--name", "My job"], "lower-case letters"),
            (["gpu-spot", "-s", "dev", "--image", "i:1", "--name", 52 * "a"], "at most 51"),
            (["gpu", "-s", "local"], "take training/examples/digits.yaml"),
        ],
    )
    def test_mistakes_are_usage_errors(
        self, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        code, out, err = run(capsys, monkeypatch, "template", *arguments)
        assert code == 2
        assert out == ""
        assert says in err


def test_doctor_names_what_an_aws_stack_needs_of_the_account(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, "doctor", "-s", "prod", "--json")
    assert code == 1  # no credentials
    found = {finding["what"]: finding for finding in json.loads(out)["findings"]}
    assert found["AWS credentials"]["ok"] is False
    quota = found["quota: All P5 Spot Instance Requests"]
    assert "vCPUs needed in us-east-2; not asked for" in quota["found"]
    assert quota["ok"] is None  # neither enough nor too little
    assert "L-C4BD4855" in quota["remedy"]
    _, out, _ = run(capsys, monkeypatch, "doctor", "-s", "prod")
    (shown,) = (line for line in out.splitlines() if "All P5 Spot Instance Requests" in line)
    assert shown.lstrip().startswith("·")
    _, out, _ = run(capsys, monkeypatch, "doctor", "-s", "dev")
    assert "1 address needed" in out
